"""What a way into the product admits: who pays for it, and what bounds it.

Every route, file, page that is fetched and database role has one row, built from the constants that
the code enforces. docs/reference/admission.md is generated from the rows, and tests walk the ways
in: one without a row fails them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

NONE = "-"
"""A bound that has no meaning for a way in, such as the records of a request without a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One way in. Each bound is a short text with its unit; NONE where it has no meaning."""

    way_in: str
    """`POST /v1/queue`, `import usage FILE`, `page of an exporter`, `role of one team`."""
    payer: str
    """Whose limit it counts against: node, reader, team, address, file, device."""
    bytes: str
    """Before decoding or decompression."""
    inflated_bytes: str
    records: str
    """Counted before they become objects."""
    age: str
    rate: str
    in_progress: str
    deadline: str
    """For the whole exchange."""
    query: str
    """Rows and time that a query may take, and its temporary disk."""
    adds: str
    """What it may add to pages that others read."""


BOUNDS = tuple(field.name for field in fields(Admission))[2:]
"""The names of the bounds, in the order of the reference."""

"""Postings: an invoice in the parts that the general ledger tells apart; its cents are split over
them.

Direct cost and shares of common costs are split each by itself, as the chargeback rounds them: the
parts of an owner add up to its invoice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.statement import split_minor

SHARED, TIME = "shared", "gpu_time"
"""Kinds of postings beside those of adjustments."""
Cells = tuple[str, ...]
"""The values of the fields that tell parts apart."""


@dataclass(frozen=True, slots=True)
class Posting:
    """A part of an invoice. `names` are the fields that tell parts apart."""

    owner: str
    currency: str
    names: Mapping[str, str]
    minor: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class PostedMonth:
    """A month's postings; `closed_on` None: it is open, and its invoices have no number yet."""

    name: str
    first_day: dt.date
    last_day: dt.date
    closed_on: dt.date | None
    postings: Sequence[Posting]


@dataclass(slots=True)
class InvoiceParts:
    """An invoice by cells: micro-units of direct cost and of shares, and GPU-nanoseconds."""

    direct: dict[Cells, int] = field(default_factory=dict)
    shared: dict[Cells, int] = field(default_factory=dict)
    gpu_ns: dict[Cells, int] = field(default_factory=dict)

    def add(self, cells: Cells, micro: int, gpu_ns: int, *, is_shared: bool) -> None:
        """Add a line or a share."""
        sums = self.shared if is_shared else self.direct
        sums[cells] = sums.get(cells, 0) + micro
        self.gpu_ns[cells] = self.gpu_ns.get(cells, 0) + gpu_ns

    def minors(self, unit: int, direct_minor: int, shared_minor: int) -> dict[Cells, int]:
        """The minor units of each part, in the order of the cells; they add up to both amounts."""
        minors = dict.fromkeys(sorted(self.gpu_ns), 0)
        for sums, total in ((self.direct, direct_minor), (self.shared, shared_minor)):
            cells = sorted(sums)
            for each, minor in zip(
                cells, split_minor([sums[each] for each in cells], unit, total), strict=True
            ):
                minors[each] += minor
        return minors

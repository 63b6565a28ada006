"""The identities of the ledger: which of its numbers must be equal, by what, and in what.

A bill follows from evidence in steps, and each step is stored: hours, charges, the ledgers of days
and of months, what a close sealed and invoiced. An identity names two neighbors of this chain.
`services/reconciliation.py` compares them; whatever says that a ledger holds (reconcile, close,
periods --verify, doctor, pages, assistants) asks that.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuledger_collector.accounting.measures import MEASURES

Key = TypeVar("Key", bound=tuple[str, ...])


class Depth(enum.StrEnum):
    """What a comparison reads."""

    tables = "tables"
    """Derived tables only: sums of the database, whatever the size of the fleet."""
    declarations = "declarations"
    """Also prices, inventory, imported files and policies, from which one side is computed again.
    """
    evidence = "evidence"
    """Also usage intervals and hours: fold and rating run again."""
    sealed = "sealed"
    """What the close of a month stored."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Two sides of the ledger that must be equal for each value of the keys, in each of the
    measures.
    """

    name: str
    expected: str
    stored: str
    keys: tuple[str, ...]
    measures: tuple[str, ...]
    depth: Depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Where an identity does not hold: `place` by its keys; an amount is None where that side has
    no line.
    """

    identity: Identity
    place: Mapping[str, str]
    measure: str
    expected: int | None
    stored: int | None


_LINE = ("owner", "state", "pool", "gpu_model", "currency")
HOURS = Identity(
    "hours",
    "usage intervals, folded again",
    "the hours of use",
    ("day", "accelerator", "hour", "state", "workload"),
    ("held_ms", "busy_ms", "idle_ms", "unknown_ms", "energy_mj", "workload_attributes_id"),
    Depth.evidence,
)
CHARGES = Identity(
    "charges",
    "hours, imported rows, prices and rules, rated again",
    "the charges and their corrections",
    (
        *(
            "day",
            "accelerator",
            "workload",
            "owner",
            "state",
            "pool",
            "gpu_model",
            "node",
            "currency",
            "price",
        ),
        *("declaration", "time"),
    ),
    MEASURES,
    Depth.evidence,
)
RECORDED = Identity(
    "recorded",
    "the check of the day, made again",
    "the recorded check",
    ("day",),
    (),
    Depth.evidence,
)
CHECKED = Identity(
    "checked",
    "the charges of the day",
    "the recorded check of the day",
    ("day",),
    ("gpu_ns",),
    Depth.tables,
)
CAPACITY = Identity(
    "capacity",
    "capacity x rate, commitments and node costs",
    "the charges of accelerators, and the sums recorded when they were rated",
    ("day", "state", "currency"),
    ("gpu_ns", "cost_micro"),
    Depth.declarations,
)
IMPORTED = Identity(
    "imported",
    "the rows of imported usage",
    "their charges",
    ("day", "pool", "gpu_model", "node"),
    ("gpu_ns",),
    Depth.declarations,
)
ADJUSTMENTS = Identity(
    "adjustments",
    "policies and entries, applied to what was held",
    "the charges of adjustments",
    ("day", "adjustment", "owner", "pool", "gpu_model", "currency"),
    ("cost_micro",),
    Depth.declarations,
)
MOVED = Identity(
    "moved",
    "what the payers of these servers get back",
    "the charges of tenants' owners for shared servers",
    ("day", "server", "pool", "gpu_model", "currency"),
    ("cost_micro",),
    Depth.tables,
)
INFERENCE = Identity(
    "inference",
    "what shared servers cost, split again among those who asked",
    "the charges of shared servers",
    ("day", "server", "gateway", "tenant", "trust", "owner", "pool", "gpu_model", "currency"),
    ("cost_micro",),
    Depth.declarations,
)
DAYS = Identity(
    "days", "the charges", "the ledger of days", ("day", *_LINE), MEASURES, Depth.tables
)
MONTHS = Identity(
    "months",
    "the ledger of days",
    "the ledger of months",
    ("month", *_LINE),
    MEASURES,
    Depth.tables,
)
DECLARED = Identity(
    "declared",
    "the audit log",
    "the declared rows",
    ("table", "row", "column"),
    (),
    Depth.declarations,
)
BOOKED = Identity(
    "booked",
    "the day on which a correction was found, or the last day of the month that was about to be"
    " closed",
    "the day on which it is booked",
    ("day", "booked"),
    ("booked_day_ms",),
    Depth.tables,
)
TIMES = Identity(
    "times",
    "the hash of when it was rated, and of the times of corrections",
    "the check of the day",
    ("table", "day"),
    (),
    Depth.tables,
)
SEALED_TABLES = Identity(
    "tables",
    "what the close recorded in the audit log",
    "the table",
    ("table", "month"),
    (),
    Depth.sealed,
)
SEAL = Identity(
    "seal",
    "the lines that were sealed",
    "the charges and corrections",
    ("month",),
    ("lines",),
    Depth.sealed,
)
INVOICES = Identity(
    "invoices",
    "the receipt of the close",
    "the invoices",
    ("owner", "currency"),
    ("micro", "minor"),
    Depth.sealed,
)
RECEIPT = Identity(
    "receipt",
    "the sealed lines",
    "the receipt of the close",
    ("owner", "currency"),
    ("micro",),
    Depth.sealed,
)
IDENTITIES = (
    *(
        HOURS,
        CHARGES,
        RECORDED,
        DECLARED,
        CHECKED,
        CAPACITY,
        IMPORTED,
        ADJUSTMENTS,
        MOVED,
        INFERENCE,
        DAYS,
        BOOKED,
        TIMES,
        MONTHS,
    ),
    *(SEAL, RECEIPT, INVOICES, SEALED_TABLES),
)
"""All of them, in the order of the way from evidence to an invoice."""


def differences(
    identity: Identity,
    expected: Mapping[Key, Sequence[int | None]],
    stored: Mapping[Key, Sequence[int | None]],
) -> list[Mismatch]:
    """Compare two sides by the identity's keys; what is zero in every measure equals a line that is
    not there.

    In a line that both sides have, unknown is not zero.
    """
    mismatches = []
    nothing = (None,) * len(identity.measures)
    for key in sorted(expected.keys() | stored.keys()):
        sides = expected.get(key, nothing), stored.get(key, nothing)
        is_in_both = key in expected and key in stored
        mismatches += [
            Mismatch(
                identity=identity,
                place=dict(zip(identity.keys, key, strict=True)),
                measure=measure,
                expected=left,
                stored=right,
            )
            for measure, left, right in zip(identity.measures, *sides, strict=True)
            if (left != right if is_in_both else (left or 0) != (right or 0))
        ]
    return mismatches

"""Waste: what was paid for and did nothing, as one amount.

It is the cost of held time that was idle, of time that nobody held, of what a commitment left
unused and of the parts of boards that lie outside every MIG slice. Time that nobody observed or
whose activity nobody could read is unknown, so it is not counted and is named beside the amount;
broken accelerators (unavailable) are a loss, and no waste.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.chargeback import WASTED_STATES, ReportRow, sum_known
from gpuledger_collector.accounting.usage import HELD, UNALLOCATED, UNOBSERVED

UNREAD, IMPORTED = "unread", "imported"
"""Parts of unknown time, besides unobserved time."""
NO_IMPORTS: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class UnknownTime:
    """Time of which nobody knows whether it was used, in GPU-nanoseconds: nobody observed it, it was
    held without a reading, or it was imported as counts of GPUs, which say nothing of work.

    Where imported time is not told apart it counts as held without a reading, which it is.
    """

    unobserved_ns: int = 0
    unread_ns: int = 0
    imported_ns: int = 0

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """The parts by name, without those that are zero."""
        named = (
            (UNOBSERVED, self.unobserved_ns),
            (UNREAD, self.unread_ns),
            (IMPORTED, self.imported_ns),
        )
        return tuple((name, gpu_ns) for name, gpu_ns in named if gpu_ns)

    @property
    def gpu_ns(self) -> int:
        """All of it."""
        return self.unobserved_ns + self.unread_ns + self.imported_ns


@dataclass(frozen=True, slots=True)
class WholeWaste:
    """The waste of a report in one currency; minor units as printed, micro-units exact.

    None: unknown.

    `parts`: what it consists of, by name. `unknown` was held or unobserved, and nobody knows what
    it did.
    """

    currency: str
    exchange: str
    minor: int | None
    micro: int | None
    cost_minor: int | None
    parts: tuple[tuple[str, int | None], ...]
    unknown: UnknownTime

    @property
    def unknown_ns(self) -> int:
        """Time that was held or unobserved, and of which nobody knows what it did."""
        return self.unknown.gpu_ns


def whole_waste(
    rows: Iterable[ReportRow],
    has_inventory: bool,
    months: Collection[str] = (),
    imported_ns: Mapping[str, int] = NO_IMPORTS,
) -> tuple[WholeWaste, ...]:
    """The waste of each currency (and rate of a view) of a report.

    Without an inventory unallocated time is unknown.

    `months` are those that the report is about: what a correction of one of them says of unknown
    time counts. `imported_ns`: by currency, the held time of these rows that was imported as counts.
    """
    groups: dict[tuple[str, str], list[ReportRow]] = {}
    for row in rows:
        if row.currency is not None:
            groups.setdefault((row.currency, row.exchange), []).append(row)
    return tuple(
        _waste(*key, group, has_inventory, {"", *months}, imported_ns.get(key[0], 0))
        for key, group in groups.items()
    )


def _waste(
    currency: str,
    exchange: str,
    rows: Sequence[ReportRow],
    has_inventory: bool,
    months: Collection[str],
    imported_ns: int,
) -> WholeWaste:
    parts: list[tuple[str, int | None]] = []
    if held := [row for row in rows if row.state == HELD]:
        parts.append(("held_idle", sum_known(row.waste_minor for row in held)))
    for state in WASTED_STATES:
        own = [row.waste_minor for row in rows if row.state == state]
        if own:
            parts.append((state, sum_known(own)))
        elif state == UNALLOCATED and not has_inventory:
            parts.append((state, None))
    return WholeWaste(
        currency,
        exchange,
        sum_known(row.waste_minor for row in rows),
        sum_known(row.waste_micro for row in rows),
        sum_known(row.effective_minor for row in rows),
        tuple(parts),
        _unknown_time([row for row in rows if row.correction_of in months], imported_ns),
    )


def _unknown_time(rows: Sequence[ReportRow], imported_ns: int) -> UnknownTime:
    """The unknown time of rows; a correction of an earlier month is not among them: what it takes
    back or adds is none of these months' time.
    """
    held_ns = sum(row.unknown_ns for row in rows if row.state != UNOBSERVED)
    imported_ns = min(imported_ns, max(held_ns, 0))
    return UnknownTime(
        sum(row.gpu_ns for row in rows if row.state == UNOBSERVED),
        held_ns - imported_ns,
        imported_ns,
    )

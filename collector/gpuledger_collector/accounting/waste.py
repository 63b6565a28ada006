"""Waste: what was paid for and did nothing, as one amount.

It is the cost of held time that was idle, of time that nobody held, of what a commitment left
unused and of the parts of boards that lie outside every MIG slice. Time that nobody observed or
whose activity nobody could read is unknown, so it is not counted and is named beside the amount;
broken accelerators (unavailable) are a loss, and no waste.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.chargeback import WASTED_STATES, ReportRow, sum_known
from gpuledger_collector.accounting.usage import HELD, UNALLOCATED, UNOBSERVED


@dataclass(frozen=True, slots=True)
class WholeWaste:
    """The waste of a report in one currency; minor units as printed, micro-units exact.

    None: unknown.

    `parts`: what it consists of, by name. `unknown_ns` was held or unobserved, and nobody knows
    what it did.
    """

    currency: str
    exchange: str
    minor: int | None
    micro: int | None
    cost_minor: int | None
    parts: tuple[tuple[str, int | None], ...]
    unknown_ns: int


def whole_waste(
    rows: Iterable[ReportRow], has_inventory: bool, months: Collection[str] = ()
) -> tuple[WholeWaste, ...]:
    """The waste of each currency (and rate of a view) of a report.

    Without an inventory unallocated time is unknown.

    `months` are those that the report is about: what a correction of one of them says of unknown
    time counts.
    """
    groups: dict[tuple[str, str], list[ReportRow]] = {}
    for row in rows:
        if row.currency is not None:
            groups.setdefault((row.currency, row.exchange), []).append(row)
    return tuple(_waste(*key, group, has_inventory, {"", *months}) for key, group in groups.items())


def _waste(
    currency: str,
    exchange: str,
    rows: Sequence[ReportRow],
    has_inventory: bool,
    months: Collection[str],
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
        # A correction of an earlier month takes back or adds time that is none of these months'.
        sum(
            row.gpu_ns if row.state == UNOBSERVED else row.unknown_ns
            for row in rows
            if row.correction_of in months
        ),
    )

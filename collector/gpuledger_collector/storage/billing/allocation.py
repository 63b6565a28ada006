"""What stands beside the direct cost in a report: shares of common costs, and grams of carbon.

Both are worked out from the ledger's lines when a report is asked for, month by month. Of a closed
month the shared costs and intensities count that were in force when it was closed, so that its
report stays the same ever after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby

from gpuledger_collector.accounting.carbon import Intensity, intensity_of, micrograms
from gpuledger_collector.accounting.chargeback import Allocations, SharedOut, SharedPart, shown_keys
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.shared_costs import (
    AMOUNT,
    DIMENSIONS,
    UNSHARED,
    SharedCost,
    month_part,
    share,
)
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.billing import declarations, periods, reports
from gpuledger_collector.storage.billing.owner_shares import SplitCost, own_shares
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

Lines = Callable[[Period], Sequence[ChargedLine]]


def allocate(
    connection: Connection,
    period: Period,
    by: Sequence[str],
    now_ms: int,
    owner: Mapping[str, str] | None = None,
) -> Allocations:
    """Shares and grams for a report of a period up to now, by these dimensions.

    `owner` (levels of the tree): only what it pays itself, for which no lines of others are read.
    """
    if owner:
        allocations = own_carbon(connection, period, by, owner)
        own = own_shared(connection, period, by, now_ms, owner)
        return replace(allocations, shared=own.shared, parts=own.parts)
    calendar, allocations = zones.calendar(connection), Allocations()
    lines = cache(partial(_all_lines, connection, by))
    for month, part, closed_ms in months(connection, calendar, period):
        for split_cost in shared_costs(connection, closed_ms, month, part, now_ms, calendar):
            _share(allocations, split_cost, lines, by)
        for run, in_force in intensities(connection, closed_ms, part, calendar):
            _emit(allocations, in_force, lines(run), by)
    return allocations


def own_shared(
    connection: Connection, period: Period, by: Sequence[str], now_ms: int, owner: Mapping[str, str]
) -> Allocations:
    """What an owner (level -> value) pays of shared costs in a period up to now, by these
    dimensions.
    """
    calendar, allocations = zones.calendar(connection), Allocations()
    for month, part, closed_ms in months(connection, calendar, period):
        split_costs = list(shared_costs(connection, closed_ms, month, part, now_ms, calendar))
        _share_own(allocations, connection, split_costs, by, owner)
    return allocations


def own_carbon(
    connection: Connection, period: Period, by: Sequence[str], owner: Mapping[str, str]
) -> Allocations:
    """The grams of an owner (level -> value) in a period, by these dimensions."""
    calendar, allocations = zones.calendar(connection), Allocations()
    for _, part, closed_ms in months(connection, calendar, period):
        for run, in_force in intensities(connection, closed_ms, part, calendar):
            with row_level_security.as_viewer(connection, owner):
                lines = reports.charged_lines(connection, run, (*DIMENSIONS, *by), owner=owner)
            _emit(allocations, in_force, lines, by)
    return allocations


def shares(
    connection: Connection, period: Period, level: str, now_ms: int, at_ms: int | None = None
) -> list[SharedPart]:
    """What each owner of a level pays of shared costs in a period up to now.

    `at_ms`: when an open month is closed.
    """
    calendar, allocations = zones.calendar(connection), Allocations()
    lines = cache(partial(_all_lines, connection, (level,)))
    for month, part, closed_ms in months(connection, calendar, period):
        as_of_ms = at_ms if closed_ms is None else closed_ms
        for split_cost in shared_costs(connection, as_of_ms, month, part, now_ms, calendar):
            _share(allocations, split_cost, lines, (level,))
    return allocations.parts


def _all_lines(connection: Connection, by: Sequence[str], part: Period) -> Sequence[ChargedLine]:
    """Everybody's lines of a part of a month."""
    return reports.charged_lines(connection, part, (*DIMENSIONS, *by))


def months(
    connection: Connection, calendar: Calendar, period: Period
) -> Iterator[tuple[Period, Period, int | None]]:
    """Each month, its part of the period, and when it was closed."""
    closed = {
        closed_period.period.start_ms: closed_period.closed_ms
        for closed_period in periods.list_closed(connection)
    }
    start_ms = period.start_ms
    while start_ms < period.end_ms:
        month = calendar.month(calendar.month_of(start_ms))
        part = Period(start_ms, min(month.end_ms, period.end_ms))
        # A closed month is shared by the declarations that were in force when it was closed.
        yield (
            month,
            part,
            closed.get(month.start_ms),
        )
        start_ms = part.end_ms


def shared_costs(
    connection: Connection,
    at_ms: int | None,
    month: Period,
    part: Period,
    now_ms: int,
    calendar: Calendar,
) -> Iterator[SplitCost]:
    """The costs that are shared in a part of a month up to now, as declared at an instant (None:
    now).
    """
    for cost in declarations.SHARED_COSTS.in_force(connection, at_ms):
        days = _held_days(cost, calendar.days(part), calendar)
        held = None if days is None else days.clip(Period(0, now_ms))
        if held is None:
            continue
        amount = 0
        if cost.source == AMOUNT:
            assert cost.amount_micro is not None
            bounds = held.start_ms - month.start_ms, held.end_ms - month.start_ms
            amount = month_part(cost.amount_micro, month.ms, *bounds)
        yield SplitCost(cost, held, amount)


def intensities(
    connection: Connection, at_ms: int | None, part: Period, calendar: Calendar
) -> Iterator[tuple[Period, Sequence[Intensity]]]:
    """Each run of days of a part of a month with the carbon intensities that hold on them."""
    known = declarations.CARBON.in_force(connection, at_ms)
    if not known:
        return

    def holding(day: Period) -> tuple[Intensity, ...]:
        return tuple(
            intensity for intensity in known if intensity.holds_on(calendar.date_of(day.start_ms))
        )

    for in_force, days in groupby(calendar.days(part), holding):
        run = list(days)
        yield Period(run[0].start_ms, run[-1].end_ms), in_force


def _held_days(cost: SharedCost, days: Sequence[Period], calendar: Calendar) -> Period | None:
    """The days on which a cost is shared, as one period."""
    held = [day for day in days if cost.holds_on(calendar.date_of(day.start_ms))]
    return Period(held[0].start_ms, held[-1].end_ms) if held else None


def _share(
    allocations: Allocations, split_cost: SplitCost, lines: Lines, by: Sequence[str]
) -> None:
    """Add the shares of everybody, and how much is shared."""
    moved: dict[str, int] = defaultdict(int)
    borne: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    for line_share in share(split_cost.cost, lines(split_cost.period), split_cost.amount_micro):
        moved[line_share.currency] += (
            line_share.micro if line_share.line is None or line_share.line.state == HELD else 0
        )
        unshared = (UNSHARED, *[""] * (len(by) - 1))
        cells = unshared if line_share.line is None else _keys_of_line(line_share.line, by)
        borne[line_share.currency, cells] += line_share.micro
    _add(allocations, split_cost, borne)
    allocations.costs.extend(
        SharedOut(split_cost.cost, currency, micro) for currency, micro in moved.items() if micro
    )


def _share_own(
    allocations: Allocations,
    connection: Connection,
    split_costs: Sequence[SplitCost],
    by: Sequence[str],
    owner: Mapping[str, str],
) -> None:
    """Add the shares of an owner in the costs of a month; those of the same days are read together."""
    for period in dict.fromkeys(split_cost.period for split_cost in split_costs):
        together = [split_cost for split_cost in split_costs if split_cost.period == period]
        borne = {
            id(split_cost): defaultdict[tuple[str, tuple[str, ...]], int](int)
            for split_cost in together
        }
        for split_cost, line, micro in own_shares(connection, together, by, owner):
            borne[id(split_cost)][line.currency or "", _keys_of_line(line, by)] += micro
        for split_cost in together:
            _add(allocations, split_cost, borne[id(split_cost)])


def _add(
    allocations: Allocations,
    split_cost: SplitCost,
    borne: Mapping[tuple[str, tuple[str, ...]], int],
) -> None:
    for (currency, cells), micro in borne.items():
        allocations.shared[currency, cells] = allocations.shared.get((currency, cells), 0) + micro
        allocations.parts.append(
            SharedPart(split_cost.cost, split_cost.period, currency, cells, micro)
        )


def _keys_of_line(line: ChargedLine, by: Sequence[str]) -> tuple[str, ...]:
    return shown_keys(replace(line, keys=line.keys[len(DIMENSIONS) :]), by)


def _emit(
    allocations: Allocations,
    in_force: Sequence[Intensity],
    lines: Sequence[ChargedLine],
    by: Sequence[str],
) -> None:
    """Add the grams of lines of days on which these intensities hold."""
    for line in lines:
        if line.energy_mj is None:
            continue
        intensity = intensity_of(in_force, line.keys[len(LEVELS)])
        at = (line.currency, _keys_of_line(line, by))
        before = allocations.emitted.get(at, 0)
        grams = None if intensity is None else micrograms(line.energy_mj, intensity)
        # One line without a known intensity makes the sum unknown: a partial sum would look
        # complete.
        allocations.emitted[at] = None if before is None or grams is None else before + grams

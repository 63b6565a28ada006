"""What stands beside the direct cost in a report: shares of common costs, and grams of carbon.

Both are worked out from the ledger's lines when a report is asked for, month by month. Of a closed month the shared
costs and intensities count that were in force when it was closed, so that its report stays the same ever after.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
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
    LineShare,
    SharedCost,
    month_part,
    share,
)
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.storage.billing import declarations, periods
from gpuledger_collector.storage.ledger import reports, zones
from gpuledger_collector.storage.locks import Connection

Lines = Callable[[Period], Sequence[ChargedLine]]


def allocate(
    connection: Connection, period: Period, by: Sequence[str], now_ms: int, owner: Mapping[str, str] | None = None
) -> Allocations:
    """Shares and grams for a report of a period up to now, by these dimensions. `owner`: only what it pays itself."""
    calendar, lines, allocations = zones.calendar(connection), _lines(connection, by), Allocations()
    for month, part, at in _months(connection, calendar, period):
        for cost in declarations.shared_costs(connection, at):
            _share(allocations, cost, _held_days(cost, calendar.days(part), calendar), month, now_ms, lines, by, owner)
        known = declarations.carbon(connection, at)
        if known:
            _emit(allocations, known, calendar, part, lines, by, owner)
    return allocations


def shares(
    connection: Connection, period: Period, level: str, now_ms: int, at_ms: int | None = None
) -> list[SharedPart]:
    """What each owner of a level pays of shared costs in a period up to now. `at_ms`: when an open month is closed."""
    calendar, lines, allocations = zones.calendar(connection), _lines(connection, (level,)), Allocations()
    closing = None if at_ms is None else dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    for month, part, at in _months(connection, calendar, period):
        for cost in declarations.shared_costs(connection, at or closing):
            _share(
                allocations, cost, _held_days(cost, calendar.days(part), calendar), month, now_ms, lines, (level,), None
            )
    return allocations.parts


def _lines(connection: Connection, by: Sequence[str]) -> Lines:
    """The lines of a usage interval of time, read once."""

    @cache
    def lines(part: Period) -> Sequence[ChargedLine]:
        return reports.charged_lines(connection, part, (*DIMENSIONS, *by))

    return lines


def _months(
    connection: Connection, calendar: Calendar, period: Period
) -> Iterator[tuple[Period, Period, dt.datetime | None]]:
    """Each month, its part of the period, and when it was closed."""
    closed = {closed_period.period.start_ms: closed_period.closed_ms for closed_period in periods.closed(connection)}
    start_ms = period.start_ms
    while start_ms < period.end_ms:
        month = calendar.month(calendar.month_of(start_ms))
        part = Period(start_ms, min(month.end_ms, period.end_ms))
        # A closed month is shared by the declarations that were in force when it was closed.
        closed_ms = closed.get(month.start_ms)
        yield month, part, None if closed_ms is None else dt.datetime.fromtimestamp(closed_ms / 1000, dt.UTC)
        start_ms = part.end_ms


def _held_days(cost: SharedCost, days: Sequence[Period], calendar: Calendar) -> Period | None:
    """The days on which a cost is shared, as one period."""
    held = [day for day in days if cost.holds_on(calendar.date_of(day.start_ms))]
    return Period(held[0].start_ms, held[-1].end_ms) if held else None


def _share(
    allocations: Allocations,
    cost: SharedCost,
    part: Period | None,
    month: Period,
    now_ms: int,
    lines: Lines,
    by: Sequence[str],
    owner: Mapping[str, str] | None,
) -> None:
    part = None if part is None else part.clip(Period(0, now_ms))
    if part is None:
        return
    amount = 0
    if cost.source == AMOUNT:
        assert cost.amount_micro is not None
        amount = month_part(cost.amount_micro, month.ms, part.start_ms - month.start_ms, part.end_ms - month.start_ms)
    moved: dict[str, int] = defaultdict(int)
    borne: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    for line_share in share(cost, lines(part), amount):
        moved[line_share.currency] += (
            line_share.micro if line_share.line is None or line_share.line.state == HELD else 0
        )
        keys = _keys(line_share, by, owner)
        if keys is not None:
            borne[line_share.currency, keys] += line_share.micro
    for (currency, cells), micro in borne.items():
        allocations.shared[currency, cells] = allocations.shared.get((currency, cells), 0) + micro
        allocations.parts.append(SharedPart(cost, part, currency, cells, micro))
    if not owner:
        allocations.costs.extend(SharedOut(cost, currency, micro) for currency, micro in moved.items() if micro)


def _keys(line_share: LineShare, by: Sequence[str], owner: Mapping[str, str] | None) -> tuple[str, ...] | None:
    """The cells of the row that pays a share, None where this reader does not see it."""
    if line_share.line is None:
        return None if owner else (UNSHARED, *[""] * (len(by) - 1))
    assert isinstance(line_share.line, ChargedLine)
    return _shown(line_share.line, by) if _seen(line_share.line, owner) else None


def _shown(line: ChargedLine, by: Sequence[str]) -> tuple[str, ...]:
    return shown_keys(replace(line, keys=line.keys[len(DIMENSIONS) :]), by)


def _seen(line: ChargedLine, owner: Mapping[str, str] | None) -> bool:
    return all(line.keys[LEVELS.index(level)] == name for level, name in (owner or {}).items())


def _emit(
    allocations: Allocations,
    known: Sequence[Intensity],
    calendar: Calendar,
    part: Period,
    lines: Lines,
    by: Sequence[str],
    owner: Mapping[str, str] | None,
) -> None:
    """Grams of each run of days in which the same intensities hold."""

    def holding(day: Period) -> tuple[Intensity, ...]:
        return tuple(intensity for intensity in known if intensity.holds_on(calendar.date_of(day.start_ms)))

    for in_force, days in groupby(calendar.days(part), holding):
        run = list(days)
        for line in lines(Period(run[0].start_ms, run[-1].end_ms)):
            if line.energy_mj is None or not _seen(line, owner):
                continue
            intensity = intensity_of(in_force, line.keys[len(LEVELS)])
            at = (line.currency, _shown(line, by))
            before = allocations.emitted.get(at, 0)
            grams = None if intensity is None else micrograms(line.energy_mj, intensity)
            # One line without a known intensity makes the sum unknown: a partial sum would look complete.
            allocations.emitted[at] = None if before is None or grams is None else before + grams

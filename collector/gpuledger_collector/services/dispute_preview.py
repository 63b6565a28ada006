"""Preview a decision: rate the affected days with it and without it, in memory; the ledger is not
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuledger_collector.accounting.adjustments import Adjustment, Place
from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.dispute_moves import (
    Decided,
    Move,
    ReversedShare,
    destination_cost,
    find_moves,
)
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.rating import Charge, held_costs
from gpuledger_collector.accounting.reattribution import Reattribution
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.rating import DayUsage, priced, usage_of
from gpuledger_collector.storage.billing import adjustments, periods
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


def preview_decision(
    connection: Connection, decisions: Sequence[Reattribution], now_ms: int
) -> Decided:
    """What these decisions of one dispute would change, by day, owner and currency.

    It is the difference of two ratings of what is folded and rated: evidence that waits for either
    is not seen.
    """
    closed, book = periods.closed(connection), book_of(connection)
    calendar = zones.calendar(connection)
    to = decisions[0].owner
    moves: list[Move] = []
    gain: dict[str, int] = {}
    moved: dict[Place, int] = {}
    month = ""
    for day in affected_days(connection, decisions, now_ms):
        if month != calendar.month_of(day.start_ms):
            month, moved = calendar.month_of(day.start_ms), {}
        # Both sides by the same rating: whatever else has changed since the days were rated is on
        # both.
        before, *_ = priced(usage_of(connection, day, now_ms), book)
        after, *_ = priced(_with_volumes(usage_of(connection, day, now_ms, decisions), moved), book)
        for charges, sign in ((before, -1), (after, 1)):
            for place, gpu_ns in _volumes(charges).items():
                moved[place] = moved.get(place, 0) + sign * gpu_ns
        changes = difference(before, after)
        moves += find_moves(changes, to, closed=any(each.period.clip(day) for each in closed))
        for currency, micro in destination_cost(changes, to).items():
            gain[currency] = gain.get(currency, 0) + micro
    return Decided(moves, to, dict(sorted(gain.items())))


def preview_reversals(
    connection: Connection, opposites: Sequence[Adjustment]
) -> list[ReversedShare]:
    """What booking these entries, which take contested adjustments back, would change."""
    closed, calendar = periods.closed(connection), zones.calendar(connection)
    shares = []
    for opposite in opposites:
        day = calendar.day_of(adjustments.span_of(opposite, calendar).start_ms)
        is_closed = any(each.period.clip(day) for each in closed)
        shares += [
            ReversedShare(
                day.start_ms,
                share.owner,
                opposite.name,
                opposite.currency or "",
                share.micro,
                is_closed,
            )
            for share in opposite.entry_shares()
        ]
    return shares


def affected_days(
    connection: Connection, decisions: Sequence[Reattribution], now_ms: int
) -> list[Period]:
    """Days whose charges depend on a decision: its own, and later ones of a month with a volume
    price.
    """
    calendar = zones.calendar(connection)
    starts = {
        calendar.day_of(day.start_ms).start_ms
        for decision in decisions
        for day in calendar.days(Period(decision.start_ms, decision.end_ms))
        if day.start_ms < now_ms
    }
    for name in {calendar.month_of(start_ms) for start_ms in starts}:
        month = calendar.month(name)
        first_ms = min(start_ms for start_ms in starts if month.start_ms <= start_ms < month.end_ms)
        starts |= _tiered_days(connection, calendar, Period(first_ms, month.end_ms), now_ms)
    return [calendar.day_of(start_ms) for start_ms in sorted(starts)]


def _tiered_days(connection: Connection, calendar: Calendar, rest: Period, now_ms: int) -> set[int]:
    """Starts of the days of the rest of a month whose volume price follows from its first day."""
    if not adjustments.tiered_between(
        connection, calendar.date_of(rest.start_ms), calendar.date_of(rest.end_ms)
    ):
        return set()
    return {day.start_ms for day in calendar.days(rest) if day.start_ms < now_ms}


def _volumes(charges: Sequence[Charge]) -> dict[Place, int]:
    return {place: held.gpu_ns for place, held in held_costs(charges).items()}


def _with_volumes(usage: DayUsage, moved: Mapping[Place, int]) -> DayUsage:
    """The usage of a day after a decision has moved hours of earlier days of its month."""
    if not any(moved.values()):
        return usage
    known = usage.adjusting.volumes
    volumes = {place: known.get(place, 0) + moved.get(place, 0) for place in {*known, *moved}}
    return replace(usage, adjusting=replace(usage.adjusting, volumes=volumes))

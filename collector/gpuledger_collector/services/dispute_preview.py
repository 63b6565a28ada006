"""Preview a decision: rate the days of a dispute with it and without it, in memory; the ledger is not changed."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.dispute_moves import Move, find_moves
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reattribution import Reattribution
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.rating import priced, usage_of
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


def preview_decision(connection: Connection, decisions: Sequence[Reattribution], now_ms: int) -> list[Move]:
    """What these decisions of one dispute would move, by day, owner and currency.

    Evidence that is not folded yet is not seen.
    """
    calendar, closed, book = zones.calendar(connection), periods.closed(connection), book_of(connection)
    starts = {
        calendar.day_of(day.start_ms).start_ms
        for decision in decisions
        for day in calendar.days(Period(decision.start_ms, decision.end_ms))
        if day.start_ms < now_ms
    }
    moves: list[Move] = []
    for start_ms in sorted(starts):
        day = calendar.day_of(start_ms)
        # Both sides by the same rating: whatever else has changed since the days were rated is on both.
        before, *_ = priced(usage_of(connection, day, now_ms), book)
        after, *_ = priced(usage_of(connection, day, now_ms, decisions), book)
        is_closed = any(closed_period.period.clip(day) for closed_period in closed)
        moves += find_moves(before, after, decisions[0].owner, closed=is_closed)
    return moves

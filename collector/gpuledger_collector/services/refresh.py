"""What a report calls first: fold and rate whatever may be billed in its period."""

from __future__ import annotations

import os

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.rating import OnDay, booking_day, rate_usage, with_months_before
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.database import Database

MOST_WORKERS = 4
"""Processes of one command that rate days; each takes memory for a day and three connections."""


def refresh(
    database: Database,
    period: Period,
    now_ms: int,
    on_day: OnDay | None = None,
    book_at_ms: int | None = None,
) -> int:
    """Fold and rate the days of a period up to now, and closed days whose corrections are booked in
    the period.

    How many days were rated. Nothing to do costs a few queries. A close says by `book_at_ms` that
    corrections of months closed before are booked at the end of its month, not now. On a read
    replica nothing is done: the primary does it.
    """
    if database.standby:
        return 0
    asked = Period(min(day.start_ms for day in period.days()), period.end_ms)
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    rated = 0
    to_correct, whole = _to_refresh(database, asked, now_ms if book_at_ms is None else book_at_ms)
    for closed in to_correct:
        fold_usage(database, closed)
        rated += rate_usage(
            database, now_ms, closed, on_day, book_at_ms=book_at_ms, workers=workers
        )
    # Closed months first: their corrections are booked on days of this period.
    fold_usage(database, whole)
    return rated + rate_usage(database, now_ms, whole, on_day, workers=workers)


def _to_refresh(database: Database, period: Period, book_at_ms: int) -> tuple[list[Period], Period]:
    """Closed months with days to fold or rate again, where what changes them is booked in the
    period; and the period with the days before it whose hours its prices depend on.
    """
    with database.transaction(read_only=True) as connection:
        whole = with_months_before(connection, period)
        marked = periods.list_marked(connection)
        if not marked:
            return [], whole
        booked_ms = booking_day(connection, book_at_ms)
        return list(marked) if period.start_ms <= booked_ms < period.end_ms else [], whole

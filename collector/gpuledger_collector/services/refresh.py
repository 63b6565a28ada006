"""What a report calls first: fold and rate whatever may be billed in its period."""

from __future__ import annotations

import os

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.rating import OnDay, booking_day, rate_usage, with_months_before
from gpuledger_collector.storage.billing import periods, rated_days
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones

MOST_WORKERS = 4
"""Processes of one command that rate days; each takes memory for a day and three connections."""
LARGE_FLEET = 10_000
"""Accelerators from which on rating the present day takes longer than somebody who asks waits."""
MOST_BEHIND_MS = 600_000
"""A rating of the present day that is older than this is not the present day's."""


def refresh(
    database: Database,
    period: Period,
    now_ms: int,
    on_day: OnDay | None = None,
    book_at_ms: int | None = None,
    behind_ms: int = 0,
) -> int:
    """Fold and rate the days of a period up to now, and closed days whose corrections are booked in
    the period.

    With `behind_ms` the present day of a large fleet stays as it was rated last, if that is not
    longer ago and nothing but usage has arrived since; its check says up to when it is rated.

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
    past = _without_today(database, whole, now_ms, behind_ms)
    if past is not None:
        # Days before it first: the price of the present day may follow from theirs.
        if past.start_ms < past.end_ms:
            fold_usage(database, past)
            rated += rate_usage(database, now_ms, past, on_day, workers=workers)
        if _without_today(database, whole, now_ms, behind_ms) is not None:
            return rated
    fold_usage(database, whole)
    return rated + rate_usage(database, now_ms, whole, on_day, workers=workers)


def _without_today(
    database: Database, period: Period, now_ms: int, behind_ms: int
) -> Period | None:
    """The days of a period before the present one, where that may stay as it is; else None."""
    if not behind_ms:
        return None
    with database.transaction(read_only=True) as connection:
        today = zones.calendar(connection).day_of(now_ms)
        if not period.start_ms < today.end_ms <= period.end_ms or not rated_days.stands(
            connection, today, now_ms - min(behind_ms, MOST_BEHIND_MS), LARGE_FLEET
        ):
            return None
    return Period(min(period.start_ms, today.start_ms), today.start_ms)


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

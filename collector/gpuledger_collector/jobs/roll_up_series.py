"""Roll up five-minute series of days that were rated since, the newest first, and delete series
that are too old.

Each rating stores another instant in the day's conservation check; a day whose series were made
from another instant is rolled up again. So late evidence, a new rule and a new price all reach the
charts.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_collector.accounting.period import DAY_MS, day_of
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import series


def roll_up_series(
    database: Database, keep_days: int, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Roll up every day that needs it and delete days older than `keep_days` (0: none); return how
    many were rolled up.

    `stopping` is asked before each day: True leaves the rest to the next run.
    """
    since_ms = day_of(now_ms).start_ms - keep_days * DAY_MS if keep_days else 0
    with database.connect() as connection:
        if keep_days:
            series.expire(connection, since_ms)
        days = series.days_to_roll_up(connection, since_ms)
    count = 0
    for day_ms in days:
        if stopping():
            break
        with database.transaction(Lock.SERIES) as connection:
            series.roll_up_day(connection, zones.calendar(connection).day_of(day_ms))
        count += 1
    return count

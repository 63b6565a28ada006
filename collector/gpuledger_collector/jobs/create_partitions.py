"""Create partitions ahead of time, so that the first batch of a day finds its partition."""

from __future__ import annotations

from gpuledger_collector.accounting.period import DAY_MS, day_of
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import partitions

DAYS_AHEAD = 3


def create_partitions(database: Database, now_ms: int, ahead: int = DAYS_AHEAD) -> int:
    """Create today's partitions and those of the `ahead` days after it; return how many were
    missing.
    """
    today_ms = day_of(now_ms).start_ms
    days_ms = [today_ms + number * DAY_MS for number in range(ahead + 1)]
    created = 0
    for table in partitions.PARTITIONED:
        with database.transaction() as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{partitions.JOB_WAIT}'")
            created += len(partitions.ensure(connection, table, days_ms))
    return created

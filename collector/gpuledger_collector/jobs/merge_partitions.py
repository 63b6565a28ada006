"""Merge the days of months that ended long ago into one partition each, so that planning stays
fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import partition_merge


def merge_partitions(
    database: Database,
    tables: Sequence[str],
    before_ms: int,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Merge every month of these tables that ended by an instant; return how many partitions were
    merged.
    """
    return sum(
        partition_merge.merge(database, table, month_ms, stopping)
        for table in tables
        for month_ms in partition_merge.months(database, table, before_ms)
    )

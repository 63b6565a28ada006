"""Compute the node utilization of days that folding did not compute, and delete what is too old.

Folding recomputes the hours that it folds. This job adds the days before node utilization was
introduced, and computes each day once more after it ended.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_collector.accounting.period import DAY_MS, day_of
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import node_utilization


def roll_up_node_utilization(
    database: Database, keep_days: int, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Compute every day that needs it and delete days older than `keep_days` (0: none); return how
    many were computed.

    `stopping` is asked before each day: True leaves the rest to the next run.
    """
    count = 0
    since_ms = day_of(now_ms).start_ms - keep_days * DAY_MS if keep_days else 0
    with database.connect() as connection:
        if keep_days:
            node_utilization.expire(connection, since_ms)
        for day_ms in node_utilization.days_to_recompute(connection, since_ms, now_ms):
            if stopping():
                break
            node_utilization.recompute_day(connection, day_ms, now_ms)
            count += 1
    return count

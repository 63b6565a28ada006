"""Partitions ahead of time: the days to come have their place before the first batch of the day asks for it."""

from __future__ import annotations

from gpuledger_collector.accounting.period import DAY_MS, day_of
from gpuledger_collector.accounting.ports import Store

DAYS_AHEAD = 3


def create_partitions(store: Store, now_ms: int, ahead: int = DAYS_AHEAD) -> int:
    """Make today's partitions and those of the `ahead` days after it; how many were missing."""
    today = day_of(now_ms).start_ms
    return store.ensure_partitions([today + number * DAY_MS for number in range(ahead + 1)])

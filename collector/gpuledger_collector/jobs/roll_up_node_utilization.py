"""Heat of nodes: days that were there before it are made from their minutes, and what is too old is let go.

Folding keeps the heat of the hours that it folds. This job makes what folding did not: the days of before the first
collector that knows heat, and each day once more when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpuledger_collector.accounting.period import DAY_MS


class NodeUtilizationStore(Protocol):
    """Where heat is kept."""

    def days_to_make(self, since_ms: int, now_ms: int) -> Sequence[int]:
        """Days (UTC) since an instant that were never made as a whole, or not since they ended; the newest first."""

    def make(self, day_ms: int, now_ms: int) -> None:
        """Make a day again from its minutes."""

    def forget(self, before_ms: int) -> int:
        """Remove the heat of before an instant; how many rows."""


def roll_up_node_utilization(
    store: NodeUtilizationStore, keep_days: int, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Make every day that needs it and let go what is older than `keep_days` (0: nothing); how many days were made.

    `stopping` is asked before each day: True leaves the rest to the next run.
    """
    since_ms = now_ms - now_ms % DAY_MS - keep_days * DAY_MS if keep_days else 0
    if keep_days:
        store.forget(since_ms)
    made = 0
    for day_ms in store.days_to_make(since_ms, now_ms):
        if stopping():
            break
        store.make(day_ms, now_ms)
        made += 1
    return made

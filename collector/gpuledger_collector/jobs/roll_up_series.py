"""Five-minute series: days that were rated since are drawn again, the newest first; what is too old is let go.

Rating is what marks a day: each one leaves another instant in its proof, and a day whose series were made from another
one is made again. So late evidence, a new rule and a new price all reach the drawing, and a run that stopped anywhere
is simply run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpuledger_collector.accounting.period import DAY_MS, day_of


class SeriesStore(Protocol):
    """Where series are kept; a day is a transaction of its own."""

    def days_to_roll(self, since_ms: int) -> Sequence[int]:
        """Days from here on that were rated since their series were made, the newest first."""

    def roll(self, day_ms: int) -> None:
        """Make a day's series again."""

    def forget(self, before_ms: int) -> int:
        """Remove series of days before this one; how many days."""


def roll_up_series(
    store: SeriesStore, keep_days: int, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Draw every day that needs it, and let go what is older than `keep_days` (0: nothing); how many were drawn.

    `stopping` is asked before each day: True leaves the rest to the next run.
    """
    since_ms = day_of(now_ms).start_ms - keep_days * DAY_MS if keep_days else 0
    if keep_days:
        store.forget(since_ms)
    drawn = 0
    for day_ms in store.days_to_roll(since_ms):
        if stopping():
            break
        store.roll(day_ms)
        drawn += 1
    return drawn

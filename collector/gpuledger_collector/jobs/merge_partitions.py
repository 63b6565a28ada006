"""Days of months that are long over become one partition each, so that years of evidence stay quick to plan for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class MergeStore(Protocol):
    """Where partitions lie; a call may be stopped anywhere and made again."""

    def months(self, table: str, before_ms: int) -> Sequence[int]:
        """Starts of the months that ended by an instant and have more than one partition."""

    def merge(self, table: str, month_ms: int) -> int:
        """Turn a month's partitions into one; how many there were, 0 when it has to wait for the next run."""


def merge_partitions(store: MergeStore, tables: Sequence[str], before_ms: int) -> int:
    """Merge every month of these tables that ended by an instant; how many partitions became parts of one."""
    return sum(store.merge(table, month) for table in tables for month in store.months(table, before_ms))

"""What packing and retention ask of the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PackedDay:
    """A UTC day that was packed: rows and accelerators of its partition, bytes before and after."""

    day_ms: int
    rows: int
    accelerators: int
    hot_bytes: int
    archive_bytes: int


class Archive(Protocol):
    """Days of samples and usage intervals; a call may be stopped anywhere and made again."""

    def days(self, table: str) -> Sequence[int]:
        """Starts of the UTC days for which a table has a partition, by time."""

    def pack(self, day_ms: int) -> PackedDay | None:
        """Pack a day of samples; None when it has gone, another packs it, or it cannot be locked now."""

    def drop_archive(self, before_ms: int) -> int:
        """Remove packed days before this one; how many accelerator-days."""

    def forget_batches(self, before_ms: int) -> int:
        """Remove keys of batches received before an instant; how many."""

    def droppable_usage_intervals(self, before_ms: int) -> Sequence[int]:
        """Days before this one of closed periods, the day after included, whose usage intervals are still there."""

    def drop_usage_intervals(self, day_ms: int, now_ms: int) -> bool:
        """Drop a day's usage intervals; False when it cannot be locked now."""

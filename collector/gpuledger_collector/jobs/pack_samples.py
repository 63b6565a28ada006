"""Old samples are packed, and what is older than the settings say is let go.

Stopped anywhere, a day is packed or its rows are still there. What is packed again is what came late. It runs beside
the other jobs: a day of a large fleet takes minutes, and holds nobody off but at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, day_of
from gpuledger_collector.storage.telemetry.archive_ports import Archive, PackedDay
from gpuledger_common.plurals import plural


@dataclass(frozen=True, slots=True)
class Retention:
    """Days: when samples are packed, and how long packed samples, usage intervals and keys of batches are kept (0: for
    ever).

    A key must outlive whatever an agent may still send: 35 days with its rollups, and two more.
    """

    pack_after_days: int
    keep_archive_days: int
    keep_usage_interval_days: int
    keep_batches_days: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did; `busy` days could not be locked and wait for the next run."""

    packed: tuple[PackedDay, ...]
    forgotten: int
    dropped: tuple[int, ...]
    busy: tuple[int, ...]
    batches: int = 0

    def __str__(self) -> str:
        rows, days = sum(day.rows for day in self.packed), len(self.packed)
        return (
            f"{plural(days, 'day')} of {plural(rows, 'sample')} packed, "
            f"{plural(self.forgotten, 'packed accelerator-day')} and "
            f"{plural(len(self.dropped), 'day')} of usage intervals and {plural(self.batches, 'key')} of batches "
            f"let go, "
            f"{plural(len(self.busy), 'day')} busy"
        )


def days_to_pack(archive: Archive, retention: Retention, now_ms: int) -> list[int]:
    """Days that ended `pack_after_days` ago or earlier and have a partition of samples."""
    before = day_of(now_ms).start_ms - retention.pack_after_days * DAY_MS
    return [day for day in archive.days("gpu_sample") if day + DAY_MS <= before]


def pack_samples(
    archive: Archive, retention: Retention, now_ms: int, on_day: Callable[[int, int], None] | None = None
) -> Outcome:
    """Pack what is old, let go what is older than is to be kept. `on_day` hears how many are done, of how many."""
    packed: list[PackedDay] = []
    busy: list[int] = []
    dropped: list[int] = []
    days = days_to_pack(archive, retention, now_ms)
    for number, day in enumerate(days):
        if on_day is not None:
            on_day(number, len(days))
        done = archive.pack(day)
        if done is None:
            busy.append(day)
        else:
            packed.append(done)
    today = day_of(now_ms).start_ms
    forgotten = 0
    if retention.keep_archive_days:
        forgotten = archive.drop_archive(today - retention.keep_archive_days * DAY_MS)
    if retention.keep_usage_interval_days:
        for day in archive.droppable_usage_intervals(today - retention.keep_usage_interval_days * DAY_MS):
            (dropped if archive.drop_usage_intervals(day, now_ms) else busy).append(day)
    batches = 0
    if retention.keep_batches_days:
        batches = archive.forget_batches(now_ms - retention.keep_batches_days * DAY_MS)
    return Outcome(tuple(packed), forgotten, tuple(dropped), tuple(busy), batches)

"""Pack old samples, and delete packed samples, usage intervals and batch keys older than the
settings keep them.

A day is either packed or its rows are still there, wherever a run stops; late samples are packed by
the next run. The job runs in parallel to the others: a day of a large fleet takes minutes, and
blocks writers only at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, day_of
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import archive, day_rows
from gpuledger_collector.storage.telemetry.archive import PackedDay
from gpuledger_common.plurals import plural


@dataclass(frozen=True, slots=True)
class ArchiveRetention:
    """Days until samples are packed, and days that packed samples, usage intervals and batch keys
    are kept (0: always).

    A batch key must outlive whatever an agent may still send again: 35 days with its rollups, and
    two more.
    """

    pack_after_days: int
    keep_archive_days: int
    keep_usage_interval_days: int
    keep_batches_days: int = 0


@dataclass(frozen=True, slots=True)
class PackingReport:
    """What a run did; `busy` days could not be locked and wait for the next run."""

    packed: tuple[PackedDay, ...]
    expired_blobs: int
    expired_days: tuple[int, ...]
    busy: tuple[int, ...]
    expired_batches: int = 0

    def __str__(self) -> str:
        return (
            f"{plural(len(self.packed), 'day')} of"
            f" {plural(sum(day.rows for day in self.packed), 'sample')} packed;"
            f" {plural(self.expired_blobs, 'packed accelerator-day')},"
            f" {plural(len(self.expired_days), 'day')} of usage intervals and"
            f" {plural(self.expired_batches, 'batch key')} deleted; {plural(len(self.busy), 'day')}"
            " busy"
        )


def days_to_pack(database: Database, retention: ArchiveRetention, now_ms: int) -> list[int]:
    """Days that ended `pack_after_days` ago or earlier and have a partition of samples."""
    before_ms = day_of(now_ms).start_ms - retention.pack_after_days * DAY_MS
    with database.connect() as connection:
        return [day for day in day_rows.days(connection, "gpu_sample") if day + DAY_MS <= before_ms]


def pack_samples(
    database: Database,
    retention: ArchiveRetention,
    now_ms: int,
    on_day: Callable[[int, int], None] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> PackingReport:
    """Pack and expire; `on_day` is called before each day with how many are done, of how many."""
    packed: list[PackedDay] = []
    busy: list[int] = []
    expired_days: list[int] = []
    days = days_to_pack(database, retention, now_ms)
    for number, day_ms in enumerate(days):
        if on_day is not None:
            on_day(number, len(days))
        packed_day = archive.pack_day(database, day_ms, stopping)
        if packed_day is None:
            busy.append(day_ms)
        else:
            packed.append(packed_day)
    today_ms = day_of(now_ms).start_ms
    blobs = batches = 0
    if retention.keep_archive_days:
        blobs = archive.expire_archive(database, today_ms - retention.keep_archive_days * DAY_MS)
    if retention.keep_usage_interval_days:
        before_ms = today_ms - retention.keep_usage_interval_days * DAY_MS
        for day_ms in archive.expirable_usage_intervals(database, before_ms):
            (
                expired_days if archive.expire_usage_intervals(database, day_ms, now_ms) else busy
            ).append(day_ms)
    if retention.keep_batches_days:
        batches = archive.expire_batches(
            database, now_ms - retention.keep_batches_days * DAY_MS, stopping
        )
    return PackingReport(tuple(packed), blobs, tuple(expired_days), tuple(busy), batches)

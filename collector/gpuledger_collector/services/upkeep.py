"""What keeps the database small and fast: partitions ahead of time and merged later, rollups for
drawing, and retention.

Each function may stop after any step: the next run completes it. Where `stopping` is given it is
asked between days or batches, and leaves the rest to the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, day_of
from gpuledger_collector.services.hourly_usage import days_of_hours, ledger_day
from gpuledger_collector.storage.database import Database, retry_conflicts
from gpuledger_collector.storage.ledger import pool_hours, unused_names, zones
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.server import replicas
from gpuledger_collector.storage.telemetry import (
    archive,
    day_rows,
    interval_packing,
    node_utilization,
    partition_merge,
    partitions,
    retention,
    series,
    slow_metrics,
)
from gpuledger_collector.storage.telemetry.archive import PackedDay
from gpuledger_common.plurals import plural

DAYS_AHEAD = 3
SLOW_METRICS_WAIT_MS = 900_000
"""How long after its end an hour of slow metrics waits for late ones: agents push every minute."""


def create_partitions(database: Database, now_ms: int, ahead: int = DAYS_AHEAD) -> int:
    """Create today's partitions and those of the `ahead` days after it, so that the first batch of
    a day finds its partition; return how many were missing.
    """
    today_ms = day_of(now_ms).start_ms
    days_ms = [today_ms + number * DAY_MS for number in range(ahead + 1)]

    def create(table: str) -> int:
        with database.transaction() as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{partitions.JOB_WAIT}'")
            return len(partitions.ensure(connection, table, days_ms))

    # Citus ends one of two sessions that wait for each other over several servers.
    return sum(retry_conflicts(partial(create, table)) for table in partitions.PARTITIONED)


def merge_partitions(
    database: Database,
    tables: Sequence[str],
    before_ms: int,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Merge the days of months that ended by an instant into one partition each, so that planning
    stays fast; return how many partitions were merged.
    """
    return sum(
        partition_merge.merge(database, table, month_ms, stopping)
        for table in tables
        for month_ms in partition_merge.months(database, table, before_ms)
    )


def roll_up_series(
    database: Database, keep_days: int, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Roll up five-minute series of days that were rated since, the newest first, and delete days
    older than `keep_days` (0: none); return how many were rolled up.

    Each rating stores another instant in the day's conservation check; a day whose series were made
    from another instant is rolled up again. So late evidence, a new rule and a new price all reach
    the charts.
    """
    since_ms = day_of(now_ms).start_ms - keep_days * DAY_MS if keep_days else 0
    with database.connect() as connection:
        if keep_days:
            series.expire(connection, since_ms)
        days = series.days_to_roll_up(connection, since_ms)
    count = 0
    for day_ms in days:
        if stopping():
            break
        with database.transaction(Lock.SERIES) as connection:
            series.roll_up_day(connection, zones.calendar(connection).day_of(day_ms))
        count += 1
    return count


def roll_up_pool_hours(
    database: Database, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Add up and store the hours of pools that are over and not stored, the newest days first;
    return how many were.

    Beside a collector of another version, which may fold without deleting them, all are deleted.
    """
    if database.standby:
        return 0
    end_ms = now_ms // HOUR_MS * HOUR_MS
    with database.connect() as connection:
        if replicas.has_mixed_versions(connection):
            pool_hours.delete(connection)
            return 0
        period = Period(end_ms - pool_hours.DAYS * DAY_MS, end_ms)
        missing = pool_hours.missing_hours(connection, period)
        days = days_of_hours(missing, zones.calendar(connection))
    count = 0
    for day_ms in sorted(days, reverse=True):
        if stopping():
            break
        with ledger_day(database, day_ms) as (connection, day):
            start_ms, until_ms = day.start_ms // HOUR_MS * HOUR_MS, min(day.end_ms, end_ms)
            count += pool_hours.store(connection, Period(start_ms, until_ms // HOUR_MS * HOUR_MS))
    return count


def roll_up_node_utilization(
    database: Database, keep_days: int, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Compute the node utilization of days that folding did not compute, and delete days older than
    `keep_days` (0: none); return how many were computed.

    Folding recomputes the hours that it folds. This adds the days before node utilization was
    introduced, and computes each day once more after it ended.
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


@dataclass(frozen=True, slots=True)
class RetentionDays:
    """How many days each kind of record is kept; 0: for ever."""

    minutes: int = 0
    node_utilization: int = 0
    states: int = 0
    findings: int = 0
    names: int = 0


@dataclass(frozen=True, slots=True)
class Expired:
    """How many records of each kind a run deleted."""

    minutes: int = 0
    states: int = 0
    findings: int = 0
    names: int = 0

    def __str__(self) -> str:
        return (
            f"{plural(self.minutes, 'minute')}, {plural(self.states, 'change')} of slow metrics, "
            f"{plural(self.findings, 'finding')} and {plural(self.names, 'unused name')} deleted"
        )


def expire(
    database: Database,
    keep: RetentionDays,
    now_ms: int,
    stopping: Callable[[], bool] = lambda: False,
) -> Expired:
    """Delete what is older than its retention, counted from the start of today (UTC).

    Minutes expire by whole days, and only when the node utilization of every day before was
    computed from them. The bound is stored before the first minute is deleted: from then on no
    minutes are computed before it, so that late evidence leaves no day with only a few of its
    minutes. The last value of a slow metric before the bound stays, since it still holds.
    """
    today_ms = day_of(now_ms).start_ms

    def bound(days: int) -> int:
        return today_ms - days * DAY_MS

    minutes = states = findings = names = 0
    if keep.minutes:
        since_ms = bound(keep.node_utilization) if keep.node_utilization else 0
        with database.connect() as connection:
            # Node utilization of these days is still to be computed: nothing from the earliest of
            # them on is deleted.
            needed = node_utilization.days_to_recompute(connection, since_ms, now_ms)
        minutes = retention.expire_minutes(
            database, min(bound(keep.minutes), *needed, today_ms), stopping
        )
    if keep.states:
        states = slow_metrics.expire(database, bound(keep.states), stopping)
    if keep.findings:
        findings = retention.expire_findings(database, bound(keep.findings), stopping)
    if keep.names:
        names = unused_names.expire_names(database, bound(keep.names), stopping)
    return Expired(minutes, states, findings, names)


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
    """Pack old samples, and delete packed samples, usage intervals and batch keys past retention.

    A day is either packed or its rows are still there; late samples are packed by the next run. A
    day of a large fleet takes minutes, and blocks writers only at its end. `on_day` is called
    before each day with how many are done, of how many.
    """
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


def pack_slow_metrics(
    database: Database, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Pack changes of slow metrics of hours that are over, however many wait; return how many were
    packed.
    """
    before_ms = (now_ms - SLOW_METRICS_WAIT_MS) // HOUR_MS * HOUR_MS
    return slow_metrics.pack(database, before_ms, stopping)


@dataclass(frozen=True, slots=True)
class PackedEvidence:
    """What a run packed: usage intervals, and the days on which they begin."""

    intervals: int
    days_ms: tuple[int, ...]

    def __str__(self) -> str:
        return f"{plural(self.intervals, 'usage interval')} of {plural(len(self.days_ms), 'day')} packed"


def pack_usage_intervals(
    database: Database,
    after_days: int,
    now_ms: int,
    stopping: Callable[[], bool] = lambda: False,
) -> PackedEvidence:
    """Pack usage intervals that ended `after_days` ago or earlier, of days whose hours are folded.

    A run that was stopped, or found another process packing, leaves the rest to the next one; so
    does a run beside a collector of another version, which may not read packed evidence.
    """
    with database.connect() as connection:
        if replicas.has_mixed_versions(connection):
            return PackedEvidence(0, ())
    before_ms = day_of(now_ms).start_ms - after_days * DAY_MS
    intervals, days_ms = 0, []
    for day_ms in interval_packing.days_to_pack(database, before_ms):
        if stopping():
            break
        packed = interval_packing.pack_day(database, day_ms, now_ms, stopping)
        if packed:
            intervals += packed
            days_ms.append(day_ms)
    return PackedEvidence(intervals, tuple(days_ms))

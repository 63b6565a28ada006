"""Partitions stay few: old months lie in one each, packed and let go day by day; merged days lose
nothing.
"""

import datetime as dt
import threading
import time

import psycopg
import pytest

from fakes.batches import batch, free, samples
from fakes.collector import running
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.upkeep import ArchiveRetention, merge_partitions, pack_samples
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import archive, partitions
from gpuledger_collector.storage.telemetry import partition_merge as merging
from gpuledger_collector.storage.telemetry.partitions import DAY_MS, month_of

pytestmark = pytest.mark.slow

MARCH = int(dt.datetime(2025, 3, 1, tzinfo=dt.UTC).timestamp()) * 1000
APRIL = month_of(MARCH)[1]
NOW = APRIL + 200 * DAY_MS
USAGE_INTERVAL = (
    "accelerator_id, state, start_ms, end_ms, held_ms, busy_ms, idle_ms, unknown_ms, node_id,"
    " epoch, seq, record"
)


def rows(dsn, query, *values):
    with Database(dsn).transaction() as connection:
        return connection.execute(query, values or None).fetchall()


def names(dsn, table="usage_interval"):
    with Database(dsn).transaction() as connection:
        return [part.name for part in partitions.listing(connection) if part.table == table]


def put(dsn, days, coarse_before_ms=0):
    """A hundred usage intervals on each of these days."""
    with Database(dsn).transaction() as connection:
        partitions.ensure(connection, "usage_interval", days, coarse_before_ms)
        for day in days:
            connection.execute(
                f"INSERT INTO usage_interval ({USAGE_INTERVAL}) SELECT n, 'unallocated', %s + n *"
                " 1000, %s + n * 1000 + 500, 0, 0, 0, 0, 1,"
                " '00000000-0000-4000-8000-000000000001', %s, n FROM generate_series(0, 99) AS n",
                (day, day, day // DAY_MS),
            )


def whole(dsn):
    return sorted(map(repr, rows(dsn, "SELECT * FROM usage_interval")))


def test_a_day_of_an_old_month_gets_the_month(dsn):
    """One partition for all of it, unless days of it are there; a recent day gets one of its own."""
    before_ms = APRIL + DAY_MS
    with Database(dsn).transaction() as connection:
        made = partitions.ensure(
            connection, "usage_interval", [MARCH, MARCH + 5 * DAY_MS, APRIL], before_ms
        )
        assert made == ["usage_interval_p202503", "usage_interval_p20250401"]
        assert (
            partitions.ensure(connection, "usage_interval", [MARCH + 30 * DAY_MS], before_ms) == []
        )
        partitions.ensure(connection, "gpu_sample", [MARCH])
        made = partitions.ensure(connection, "gpu_sample", [MARCH, MARCH + DAY_MS], before_ms)
        assert made == ["gpu_sample_p20250302"]
        found = partitions.holding(connection, "usage_interval", MARCH + 7 * DAY_MS)
        assert (found.day_ms, found.end_ms, found.is_day) == (MARCH, APRIL, False)
        assert partitions.count(connection) == 4
    put(dsn, [MARCH, APRIL - DAY_MS])
    assert rows(dsn, "SELECT count(*) FROM usage_interval_p202503") == [(200,)]


def test_years_of_old_days_make_few_partitions(dsn):
    """A node with a usage interval a day for eight years costs a table a month, and others are
    answered.
    """
    start = int(dt.datetime(2000, 1, 1, tzinfo=dt.UTC).timestamp()) * 1000
    with running(dsn, node_new_days_per_hour=0) as collector:
        for seq in range(73):
            at = [start + (seq * 40 + day) * DAY_MS for day in range(40)]
            usage_intervals = [free(0, day, day + 60_000) for day in at]
            made = batch(
                seq, "old", accelerators=1, usage_intervals=usage_intervals, samples=samples(1, [])
            )
            assert collector.send(made)[0] == 200
        assert collector.send(batch(1, "other"))[0] == 200
    assert len(names(dsn)) == 96 + 1
    assert rows(dsn, "SELECT count(*) FROM usage_interval WHERE start_ms < %s", APRIL) == [
        (73 * 40,)
    ]


def sampled(dsn, days):
    with Database(dsn).transaction() as connection:
        for day in days:
            connection.execute(
                "INSERT INTO gpu_sample (accelerator_id, at_ms, gpu_utilization_ratio)"
                " SELECT 1 + n %% 3, %s + n * 1000, n / 100.0 FROM generate_series(0, 99) AS n",
                (day,),
            )


def read(dsn):
    with Database(dsn).transaction() as connection:
        found = archive.samples(connection, [1, 2, 3], Period(MARCH, APRIL))
    values = found.columns["gpu_utilization_ratio"].values.tolist()
    return sorted(zip(found.accelerator_id.tolist(), found.at_ms.tolist(), values, strict=True))


def test_days_of_a_month_are_packed_one_by_one(dsn):
    """What readers see stays the same; the partition goes with the last day's rows, and an empty
    one goes too.
    """
    days = [MARCH, MARCH + 3 * DAY_MS, APRIL - DAY_MS]
    with Database(dsn).transaction() as connection:
        partitions.ensure(connection, "gpu_sample", [*days, MARCH - DAY_MS], APRIL)
    sampled(dsn, days)
    before = read(dsn)
    assert len(before) == 300
    keep = ArchiveRetention(3, 0, 0)
    done = pack_samples(Database(dsn), keep, days[1] + 5 * DAY_MS)
    assert [(day.day_ms, day.rows, day.accelerators) for day in done.packed if day.rows] == [
        (days[0], 100, 3),
        (days[1], 100, 3),
    ]
    assert names(dsn, "gpu_sample") == ["gpu_sample_p202503"]
    assert rows(dsn, "SELECT count(*) FROM gpu_sample") == [(100,)]
    assert read(dsn) == before
    pack_samples(Database(dsn), keep, NOW)
    assert names(dsn, "gpu_sample") == []
    assert read(dsn) == before


def test_retention_takes_days_out_of_a_month(dsn):
    """A day of closed periods goes with its rows alone; the partition goes with the last."""
    days = [MARCH + DAY_MS, MARCH + 2 * DAY_MS, MARCH + 3 * DAY_MS]
    put(dsn, days, APRIL)
    with Database(dsn).transaction() as connection:
        connection.execute(
            "INSERT INTO billing_period (start_ms, end_ms, name, closed_ms, closed_by, level,"
            " lines, seal, receipt) VALUES (%s, %s, 'p', 0, 'me', 'team', 0, '', '{}')",
            (MARCH, APRIL),
        )
    done = pack_samples(Database(dsn), ArchiveRetention(3, 0, 40), days[2] + 40 * DAY_MS)
    assert done.expired_days == tuple(days[:2])
    assert rows(dsn, "SELECT count(*) FROM usage_interval") == [(100,)]
    done = pack_samples(Database(dsn), ArchiveRetention(3, 0, 40), NOW)
    assert done.expired_days == (days[2],)
    assert names(dsn) == []


def test_days_of_an_old_month_become_one_partition(dsn):
    """Every row is there, indexes too, recent months stay in days, and a second run has nothing to
    do.
    """
    days = [MARCH + number * DAY_MS for number in range(6)]
    put(dsn, [*days, APRIL, APRIL + DAY_MS])
    before = whole(dsn)
    assert merge_partitions(Database(dsn), ["usage_interval"], APRIL + 20 * DAY_MS) == 6
    assert names(dsn) == [
        "usage_interval_p202503",
        "usage_interval_p20250401",
        "usage_interval_p20250402",
    ]
    assert whole(dsn) == before
    attached = (
        "SELECT count(*) FROM pg_inherits i JOIN pg_index x ON x.indexrelid = i.inhrelid WHERE"
        " x.indrelid = %s"
    )
    assert rows(dsn, attached + "::regclass", "usage_interval_p202503") == [(3,)]
    checks = (
        "SELECT count(*) FROM pg_constraint WHERE conrelid = 'usage_interval_p202503'::regclass AND"
        " contype = 'c'"
    )
    assert rows(dsn, checks) == [(0,)]
    assert merge_partitions(Database(dsn), ["usage_interval"], APRIL + 20 * DAY_MS) == 0
    put(dsn, [MARCH + 20 * DAY_MS])
    assert len(whole(dsn)) == 900


@pytest.mark.parametrize("step", ["_lock_days", "_copy", "_wait_for_snapshots", "_swap"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_merge_killed_anywhere_loses_nothing(dsn, monkeypatch, step, when):
    """The days are as they were, and the next run merges them."""
    put(dsn, [MARCH, MARCH + DAY_MS])
    before = whole(dsn)
    true = getattr(merging, step)

    def faulty(*given):
        if when == "after":
            true(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(merging, step, faulty)
    with pytest.raises(KeyboardInterrupt):
        merging.merge(Database(dsn), "usage_interval", MARCH)
    monkeypatch.setattr(merging, step, true)
    assert whole(dsn) == before
    assert names(dsn) == ["usage_interval_p20250301", "usage_interval_p20250302"]
    assert merging.merge(Database(dsn), "usage_interval", MARCH) == 2
    assert whole(dsn) == before


def test_a_reader_of_before_sees_every_row(dsn, monkeypatch):
    """A snapshot of before the copy could see neither the days nor the month's rows: the swap waits
    for it to end.
    """
    put(dsn, [MARCH, MARCH + DAY_MS])
    monkeypatch.setattr(merging, "SNAPSHOT_SECONDS", 1.0)
    with psycopg.connect(dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM price").fetchall()
        assert merging.merge(Database(dsn), "usage_interval", MARCH) == 0
        assert reader.execute("SELECT count(*) FROM usage_interval").fetchone() == (200,)
    assert merging.merge(Database(dsn), "usage_interval", MARCH) == 2


def test_a_late_writer_waits_and_loses_nothing(dsn, monkeypatch):
    """What is written to one of the days meanwhile is there in the end, and so is what was copied."""
    put(dsn, [MARCH, MARCH + DAY_MS])
    copied, true = threading.Event(), merging._wait_for_snapshots

    def wait(*given):
        copied.set()
        time.sleep(0.5)  # the writer waits for its day by then
        return true(*given)

    monkeypatch.setattr(merging, "_wait_for_snapshots", wait)
    writer = threading.Thread(target=lambda: copied.wait(30) and put_late(dsn))
    writer.start()
    merging.merge(Database(dsn), "usage_interval", MARCH)
    writer.join(60)
    merging.merge(Database(dsn), "usage_interval", MARCH)
    assert names(dsn) == ["usage_interval_p202503"]
    assert rows(dsn, "SELECT count(*) FROM usage_interval WHERE state = 'unavailable'") == [(1,)]
    assert len(whole(dsn)) == 201


def put_late(dsn):
    """Write one more row to the first day, again when the server ends a deadlock, as ingest has
    agents send again.
    """
    try:
        put_one(dsn)
    except psycopg.errors.DeadlockDetected:
        put_late(dsn)


def put_one(dsn):
    with Database(dsn).transaction() as connection:
        connection.execute(
            f"INSERT INTO usage_interval ({USAGE_INTERVAL}) VALUES (1, 'unavailable', %s, %s, 0, 0,"
            " 0, 0, 1, '00000000-0000-4000-8000-000000000001', 1, 1)",
            (MARCH + 7, MARCH + 8),
        )


def test_two_do_not_merge_or_pack_at_once_and_a_stopping_program_gives_way(dsn):
    """Whoever comes second, or has to stop, leaves the month to the next run."""
    put(dsn, [MARCH, MARCH + DAY_MS])
    with Database(dsn).try_hold(Lock.PACKING) as first:
        assert first
        assert merging.merge(Database(dsn), "usage_interval", MARCH) == 0
    assert merging.merge(Database(dsn), "usage_interval", MARCH, lambda: True) == 0
    assert names(dsn) == ["usage_interval_p20250301", "usage_interval_p20250302"]
    assert rows(dsn, "SELECT count(*) FROM pg_class WHERE relname = 'usage_interval_merging'") == [
        (0,)
    ]

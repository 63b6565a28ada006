"""Names that nobody uses go; whatever refers to one keeps it, and what is in use counts as seen."""

import psycopg
import pytest

from fakes.batches import NOON_MS, batch, workload
from fakes.collector import running
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.ingest.batches import attributes
from gpuledger_collector.services.upkeep import (
    Expired,
    RetentionDays,
    expire,
    pack_usage_intervals,
)
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import unused_names as names
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.schema.columns import target_of
from gpuledger_collector.wiring import read_clock

pytestmark = pytest.mark.slow

NOW_MS = read_clock()
LATER_MS = NOW_MS + 60 * 86_400_000
KEEP = RetentionDays(0, 0, 0, 0, 37)


def rows(dsn, query, *values):
    with Database(dsn).transaction() as connection:
        return connection.execute(query, values or None).fetchall()


def test_made_up_names_go_and_those_with_evidence_stay(dsn):
    """A batch with workloads and accelerators that nothing of it speaks of leaves rows for some
    weeks only.
    """
    made_up = [workload(f"made-up-{number}") for number in range(50)]
    with running(dsn) as collector:
        assert collector.send(batch(1))[0] == 200
        assert collector.send(batch(2, workloads=[workload(), *made_up]))[0] == 200
        idle = batch(1, "node-9", usage_intervals=[], samples=batch(accelerators=0).samples)
        assert collector.send(idle)[0] == 200
        assert expire(Database(dsn), KEEP, NOW_MS) == Expired(0, 0, 0)
        assert expire(Database(dsn), KEEP, LATER_MS) == Expired(0, 0, 0, 52)
        assert rows(dsn, "SELECT external_id FROM workload") == [("job-1",)]
        assert rows(dsn, "SELECT uuid FROM accelerator ORDER BY uuid") == [
            ("GPU-node-1-0",),
            ("GPU-node-1-1",),
        ]
        assert expire(Database(dsn), KEEP, LATER_MS) == Expired(0, 0, 0)


def test_a_packed_day_keeps_its_workloads(dsn):
    """Also one that no hour of usage has, as of a second holder who was refused."""
    database = Database(dsn)
    with running(dsn) as collector:
        assert collector.send(batch(1, workloads=[workload(), workload("made-up")]))[0] == 200
    with database.transaction() as connection:
        connection.execute("DELETE FROM hour_recompute; DELETE FROM gpu_latest")
    assert pack_usage_intervals(database, 37, LATER_MS).intervals == 2
    with psycopg.connect(dsn, autocommit=True) as job:
        assert names.forget_unused(job, "workload", LATER_MS) == 1
    assert rows(dsn, "SELECT external_id FROM workload") == [("job-1",)]


def test_every_column_that_refers_to_a_name_is_looked_at():
    """Columns of the declared schema that could hold an id of either table, whatever they are
    called.
    """
    # A count, and the name that a scheduler has for one.
    numbers = {("queue_reading", "workloads"), ("queue_eviction", "workload")}
    # Bits, which `usage_evidence.WORKLOADS` reads.
    numbers |= {("usage_interval_day", "workload"), ("usage_interval_day", "workload_first")}
    for table in names.NAMED:
        looked_at = {*names.references(table), *numbers}
        for other in metadata.sorted_tables:
            for column in other.columns:
                if f"{table}_attributes" in (
                    other.name,
                    column.name.removesuffix("s").removesuffix("_id"),
                ):
                    continue  # attributes go with the name that they are of
                target = target_of(column)
                refers = target is not None and target.table.name == table
                assert (other.name, column.name) in looked_at or not (
                    refers or table in column.name
                ), column


@pytest.mark.parametrize("table", sorted(names.NAMED))
def test_whatever_refers_to_a_name_keeps_it(dsn, table):
    """A row in any one of those columns, also an array, is enough."""
    insert = {
        "workload": (
            "INSERT INTO workload (key, kind, external_id, first_seen_at) VALUES (%s, 'slurm', 'x',"
            " now())"
        ),
        "accelerator": "INSERT INTO accelerator (uuid, device_uuid) VALUES (%s, 'x')",
    }[table]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for other, column in names.references(table):
            if other in (*names.partitions.PARTITIONED, "usage_interval_day"):
                continue  # as the batch above and the packed day below show
            connection.execute(f"TRUNCATE {table} CASCADE")
            connection.execute(insert.encode(), ("used",))
            connection.execute(insert.encode(), ("unused",))
            key = "key" if table == "workload" else "uuid"
            used = connection.execute(f"SELECT id FROM {table} WHERE {key} = 'used'").fetchone()[0]
            value = f"ARRAY[{used}::bigint]" if column.endswith("s") else f"{used}::bigint"
            connection.execute(f"CREATE TABLE copied AS SELECT {value} AS {column}")
            connection.execute(f"ALTER TABLE {other} RENAME TO set_aside")
            connection.execute(f"ALTER TABLE copied RENAME TO {other}")
            with psycopg.connect(dsn, autocommit=True) as job:
                assert names.forget_unused(job, table, NOW_MS + 1 * DAY_MS) == 1, other
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)
            connection.execute(f"DROP TABLE {other}")
            connection.execute(f"ALTER TABLE set_aside RENAME TO {other}")


def test_a_name_in_use_is_seen_each_day_and_learnt_anew_when_it_has_gone(dsn, monkeypatch):
    """A collector does not go on with ids of old: it writes what it remembers as seen again within
    a day.
    """
    with running(dsn) as collector:
        store = collector.parts.commit._store
        assert collector.send(batch(1))[0] == 200
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE workload SET last_seen_at = now() - interval '40 days'")
            connection.execute("UPDATE accelerator SET last_seen_at = now() - interval '40 days'")
        assert collector.send(batch(2, start_ms=NOON_MS + 60_000))[0] == 200
        assert rows(
            dsn, "SELECT count(*) FROM workload WHERE last_seen_at > now() - interval '1 day'"
        ) == [(0,)]
        store.ids._since_ms -= attributes.RENEW_AFTER_MS
        assert collector.send(batch(3, start_ms=NOON_MS + 120_000))[0] == 200
        for table in ("workload", "accelerator"):
            query = f"SELECT count(*) FROM {table} WHERE last_seen_at < now() - interval '1 day'"
            assert rows(dsn, query) == [(0,)]


def test_names_of_before_this_was_noted_have_their_time_before_them(dsn):
    """Rows that an older version wrote count as seen when they are first looked at."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO workload (key, kind, external_id, first_seen_at, last_seen_at)"
            " VALUES ('x', 'slurm', 'x', now() - interval '1 year', NULL)"
        )
        with psycopg.connect(dsn, autocommit=True) as job:
            assert names.forget_unused(job, "workload", NOW_MS - 37 * DAY_MS) == 0
        with psycopg.connect(dsn, autocommit=True) as job:
            assert names.forget_unused(job, "workload", NOW_MS + 37 * DAY_MS) == 1


def test_a_program_that_stops_gives_way(dsn):
    """Nothing goes half-way, and the lock of imports is given back."""
    with running(dsn) as collector:
        collector.send(
            batch(
                1,
                workloads=[workload("made-up"), workload()],
                usage_intervals=batch().usage_intervals[:0],
            )
        )
    with (
        psycopg.connect(dsn, autocommit=True) as job,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        assert names.forget_unused(job, "workload", NOW_MS + 1 * DAY_MS, lambda: True) == 0
        assert locks.seize(other, locks.Lock.IMPORTS)
    assert rows(dsn, "SELECT count(*) FROM workload") == [(2,)]

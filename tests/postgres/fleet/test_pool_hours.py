"""Stored hours of pools are the sums of the hourly ledger, and go where it changes."""

from collections import Counter

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.rich_ledger import rich
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.ingest.batches.attributes import write_accelerators
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.upkeep import roll_up_pool_hours
from gpuledger_collector.storage.capacity import demand
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import pool_hours
from gpuledger_common.wire import WireAccelerator

__all__ = ["rich"]
END = NOW_MS // HOUR_MS * HOUR_MS
ALL = Period(END - 60 * DAY, END)
STORED = "SELECT hour_ms FROM pool_hour ORDER BY 1"


def read(dsn):
    with Database(dsn).connect() as connection:
        return sorted(pool_hours.read(connection, ALL), key=repr)


def counted(ledger):
    """Free and taken GPUs by hour, pool and model, GPU by GPU."""
    rows = ledger.rows(
        "SELECT c.accelerator_id, c.pool, coalesce(nullif(a.model, ''), c.gpu_model), c.in_ms, c.out_ms"
        " FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id"
        " WHERE c.gpu_micro = 1000000 AND a.mig_instance IS NULL"
    )
    used = Counter()
    for gpu, at_ms, state, ms in ledger.rows(
        "SELECT accelerator_id, hour_ms, state, held_ms FROM usage_hour"
    ):
        used[gpu, at_ms - at_ms % HOUR_MS, state == "unallocated"] += ms
    counts = Counter()
    for gpu, pool, model, in_ms, out_ms in rows:
        for at_ms in {at_ms for number, at_ms, _ in used if number == gpu}:
            first_ms = in_ms - in_ms % HOUR_MS
            if first_ms <= at_ms and (out_ms is None or at_ms + HOUR_MS <= out_ms):
                counts[at_ms, pool, model, "free"] += used[gpu, at_ms, True] >= 59 * 60_000
                counts[at_ms, pool, model, "taken"] += used[gpu, at_ms, False] > 60_000
    return +counts


def test_stored_hours_are_those_of_the_ledger(rich, dsn):
    """Hour by hour, as added up when they are read, and as counted from the rows."""
    added_up = read(dsn)
    assert roll_up_pool_hours(Database(dsn), NOW_MS) > len({hour.hour_ms for hour in added_up}) > 99
    assert roll_up_pool_hours(Database(dsn), NOW_MS) == 0
    with Database(dsn).connect() as connection:
        assert pool_hours.missing_hours(connection, ALL) == []
        query = demand._HELD.format(placements=demand._placements("pool"), **demand._use(HOUR_MS))
        asked = {"start_ms": ALL.start_ms, "end_ms": ALL.end_ms, "step_ms": HOUR_MS, "pool": None}
        before = demand._usage(connection, query, asked)
        used, _, _ = demand.evidence(connection, ALL.start_ms, ALL.end_ms, "pool")
    assert sorted(used, key=repr) == sorted(before, key=repr)
    assert read(dsn) == added_up
    counts = Counter()
    for hour in added_up:
        key = hour.hour_ms, hour.pool, hour.model
        counts.update({(*key, "free"): hour.free, (*key, "taken"): hour.taken})
    assert +counts == counted(rich)
    assert {kind for *_, kind in +counts} == {"free", "taken"}


@pytest.fixture
def stored(fleet, dsn):
    """Two GPUs and two days, the hours of which are stored; the second was seen an hour."""
    for number in (1, 2):
        fleet.capacity(number, 0)
    fleet.evidence(
        [Held(1, 4, at, at + HOUR) for at in range(0, DAY, HOUR)]
        + [Held(2, None, 0, HOUR, "unallocated")]
    )
    fold_usage(Database(dsn))
    assert roll_up_pool_hours(Database(dsn), OCTOBER + 2 * DAY + HOUR // 2) == 48
    return fleet


def missing(fleet):
    there = {at_ms for (at_ms,) in fleet.rows(STORED)}
    return [at for at in range(0, 2 * DAY, HOUR) if OCTOBER + at not in there]


def test_a_fold_deletes_the_hours_that_it_replaces(stored, dsn):
    """Late evidence is in the sums at once, and stored by the next run."""
    stored.evidence([Held(2, 4, 5 * HOUR, 5 * HOUR + HOUR // 2)])
    fold_usage(Database(dsn))
    assert missing(stored) == [5 * HOUR]
    with Database(dsn).connect() as connection:
        at_ms = OCTOBER + 5 * HOUR
        (late,) = pool_hours.read(connection, Period(at_ms, at_ms + HOUR_MS))
    assert (late.held_ns, late.free, late.taken) == (HOUR_MS * 1_500_000, 0, 2)
    assert roll_up_pool_hours(Database(dsn), OCTOBER + 2 * DAY) == 1


def test_another_model_deletes_them_all(stored, dsn):
    """Their sums are by model; a GPU that says what it said deletes none."""
    (uuid, model) = stored.rows("SELECT uuid, model FROM accelerator ORDER BY id")[0]
    for name, left in ((model, 48), ("NVIDIA H200", 0)):
        with Database(dsn).transaction() as connection:
            write_accelerators(connection, [WireAccelerator(uuid, uuid, 0, name)])
        assert len(stored.rows(STORED)) == left


def test_nothing_is_stored_beside_another_version(stored, dsn):
    """It folds without deleting them."""
    for revision in ("0038", "0039"):
        stored.connection.execute(
            "INSERT INTO replica (id, host, version, revision, started_at, seen_at, last_error)"
            " VALUES (gen_random_uuid(), 'other', '0', %s, now(), now(), '')",
            (revision,),
        )
    assert roll_up_pool_hours(Database(dsn), OCTOBER + 2 * DAY) == 0
    assert stored.rows(STORED) == []


def test_a_stop_leaves_the_rest_to_the_next_run(stored, dsn):
    """Asked before each day, the newest first."""
    stored.connection.execute("DELETE FROM pool_hour")
    asked = iter([False, True])
    assert roll_up_pool_hours(Database(dsn), OCTOBER + 2 * DAY, lambda: next(asked)) == 24
    assert missing(stored) == list(range(0, DAY, HOUR))

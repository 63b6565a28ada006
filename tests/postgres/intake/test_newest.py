"""What people look at first: kept while batches wait, written as if it had been written at once,
never in the way.
"""

import asyncio
import contextlib
import threading
import time

import msgspec
import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.batches import HEARTBEAT, NOON_MS, batch
from fakes.postgres import fresh_database
from fakes.profiles import examples
from gpuledger_collector.ingest.batches import commit, latest_values, validate
from gpuledger_collector.ingest.batches.commit import GroupCommit, Limits, WriteFailed
from gpuledger_collector.ingest.batches.decode import decode
from gpuledger_collector.ingest.batches.latest_values import (
    LatestValues,
    NodeHeartbeat,
    PendingUpdates,
    merge,
    write_updates,
)
from gpuledger_collector.ingest.batches.samples import HOT_KINDS
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import placements
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.wire import ABSENT_INT64, encode

NOW_MS = NOON_MS + 60_000
HOT = list(HOT_KINDS)
CARDS, NODES = range(900_001, 900_005), 3


@pytest.fixture(scope="module")
def connection(postgres):
    with fresh_database(postgres) as dsn, Database(dsn).connect() as opened:
        opened.execute(
            "INSERT INTO node (name, first_seen_at, last_seen_at)"
            " SELECT 'n' || i, '2026-01-01', '2026-01-01' FROM generate_series(1, %s) i",
            (NODES,),
        )
        opened.dsn = dsn
        yield opened


def piece(rows):
    """Rows by accelerator: instant, state (-1: not told), holder, and values of the first and the
    last hot metric.
    """
    order = sorted(rows)
    told = [rows[one] for one in order]
    hot = []
    for place, kind in enumerate(HOT_KINDS.values()):
        part = {0: 3, len(HOT_KINDS) - 1: 4}.get(place)
        absent = ABSENT_INT64 if kind == "i8" else np.nan
        values = [absent if part is None or row[part] is None else row[part] for row in told]
        hot.append(np.array(values, dtype={"f4": "<f4", "f8": "<f8", "i8": "<i8"}[kind]))
    holders = [row[2] if row[1] == 0 else ABSENT_INT64 for row in told]
    return LatestValues(
        np.array(order, dtype="<i8"),
        np.array([NOON_MS + row[0] for row in told], dtype="<i8"),
        np.array([row[1] for row in told], dtype="<i8"),
        np.array(holders, dtype="<i8"),
        tuple(hot),
    )


values = st.none() | st.integers(0, 3)
pieces = st.lists(
    st.dictionaries(
        st.sampled_from(CARDS),
        st.tuples(st.integers(0, 3), st.integers(-1, 2), st.integers(1, 3), values, values),
        min_size=1,
    ).map(piece),
    min_size=1,
    max_size=6,
)


def latest_rows(connection):
    columns = ", ".join(["accelerator_id", "at_ms", "state", "workload_id", HOT[0], HOT[-1]])
    return connection.execute(f"SELECT {columns} FROM gpu_latest ORDER BY 1").fetchall()


@examples(40)
@given(told=pieces)
def test_one_by_one_and_all_at_once_are_the_same(connection, told):
    """Whatever is told in whatever order, late and in parts: merged and written once, it is what
    they leave.
    """
    found = []
    for parts in (told, [merge(told)], [merge([merge(told[:3]), *told[3:]])]):
        connection.execute("DELETE FROM gpu_latest")
        for one in parts:
            write_updates(connection, PendingUpdates([one]))
        found.append(latest_rows(connection))
    assert found[0] == found[1] == found[2]


beats = st.lists(
    st.dictionaries(
        st.integers(1, NODES),
        st.tuples(st.integers(0, 4), st.sampled_from(["ok", "degraded"]), st.integers(0, 9)),
        min_size=1,
    ),
    min_size=1,
    max_size=6,
)


def encode_json(beat):
    return msgspec.json.encode(beat.content()).decode()


def beat_of(seq, status, second, epoch="0190a5c8-0000-7000-8000-000000000001"):
    heartbeat = validate.Heartbeat(agent_version="1", source="s", status=status)
    return NodeHeartbeat(epoch, seq, heartbeat, None, NOW_MS + second * 1000)


@examples(20)
@given(told=beats)
def test_beats_one_by_one_and_all_at_once_are_the_same(connection, told):
    """The newest of an epoch says how a node is, and the last that came when it was seen, however
    they are kept.
    """
    found = []
    for together in (False, True):
        connection.execute(
            "UPDATE node SET heartbeat = NULL, status = '', last_seen_at = '2026-01-01'"
        )
        kept = PendingUpdates()
        for one in told:
            part = PendingUpdates([], {node: beat_of(*said) for node, said in one.items()})
            if together:
                kept.add(part)
            else:
                write_updates(connection, part)
        if together:
            write_updates(connection, kept)
        found.append(
            connection.execute(
                "SELECT id, status, last_seen_at, heartbeat FROM node ORDER BY 1"
            ).fetchall()
        )
    assert found[0] == found[1]


def test_texts_without_end_are_not_kept():
    """A heartbeat is cut before it waits: what it may hold is no more than what is written of it."""
    long = validate.Heartbeat(
        agent_version="1", source="s", status="ok", detail="x" * 1_000_000 + "\0"
    )
    body = encode(batch(heartbeat=long))
    kept = validate.accept(decode(body, "application/msgpack", ""), NOON_MS)
    assert kept.heartbeat.detail == "x" * validate.MAX_TEXT
    assert validate.truncate_texts(HEARTBEAT) is HEARTBEAT


class Fake:
    """A store that answers with what it gets; `settling` is called when something left for later is
    to be written.
    """

    def __init__(self, settling=lambda: None):
        self.settling, self.due, self.settled, self.forgotten = settling, False, 0, 0

    def flush(self, connection, batches, now, idle):
        if any(one.samples < 0 for one in batches):
            raise ValueError("poison")
        self.due = True
        return [one.key for one in batches]

    def is_flush_due(self, ending):
        return self.due

    def flush_deferred(self, connection):
        self.settled += 1
        self.settling()
        self.due = False

    def forget(self):
        self.forgotten += 1


class One:
    def __init__(self, key, samples=1):
        self.key, self.size, self.samples, self.is_heavy = key, 1, samples, False


class Connection:
    """What a store does not look at; how many are open is counted."""

    open = 0

    def __init__(self):
        type(self).open += 1
        self.closed = self.broken = False

    def close(self):
        if not self.closed:
            type(self).open -= 1
        self.closed = True


@contextlib.contextmanager
def writing(store, **limits):
    Connection.open = 0
    made = GroupCommit(store, Connection, lambda: NOW_MS, Limits(**limits))
    made.start()
    try:
        yield made
    finally:
        made.close(5)


async def answers(made, ones):
    return await asyncio.wait_for(
        asyncio.gather(*(made.submit(one) for one in ones), return_exceptions=True), 5
    )


def wait_for(condition, seconds=5):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


@pytest.mark.parametrize(
    "error", [ValueError("a fault"), psycopg.OperationalError("away"), OverflowError()]
)
def test_settling_goes_on_after_any_fault(error, monkeypatch):
    """Whatever stops one settling, the next is made, no connection stays open behind, and batches
    are answered.
    """
    monkeypatch.setattr(commit, "BACK_OFF_SECONDS", 0.01)
    left = [error, error]

    def settling():
        if left:
            raise left.pop()

    store = Fake(settling)
    with writing(store) as made:
        assert asyncio.run(answers(made, [One(1)])) == [1]
        wait_for(lambda: store.settled >= 3 and not store.due)
        assert asyncio.run(answers(made, [One(2)])) == [2]
        wait_for(lambda: not store.due)
    assert Connection.open == 0


def test_what_is_left_is_written_at_the_end():
    """A collector that stops writes what was left for later, also after its connection was lost."""
    store = Fake()
    made = GroupCommit(store, Connection, lambda: NOW_MS, Limits())
    made.start()
    assert asyncio.run(answers(made, [One(1)])) == [1]
    made.close(5)
    assert store.settled >= 1
    assert not store.due


def test_a_fault_in_every_batch_is_a_fault_of_the_collector():
    """One poison batch, however often it comes, stops nothing; three different ones in a row say
    that none is taken.
    """
    store = Fake()
    with writing(store) as made:
        for _ in range(5):
            asyncio.run(answers(made, [One(1, -1)]))
        assert made.fault() is None
        asyncio.run(answers(made, [One(2, -1)]))
        assert made.fault() is None
        asyncio.run(answers(made, [One(3), One(4, -1), One(5, -1)]))
        assert made.fault() is None, "one was written in between"
        asyncio.run(answers(made, [One(6, -1)]))
        asyncio.run(answers(made, [One(7, -1)]))
        assert "internal error" in str(made.fault())
        asyncio.run(answers(made, [One(8)]))
        assert made.fault() is None


def test_poison_does_not_take_along_what_was_kept():
    """What was committed before a batch that cannot be written is settled before everything is
    forgotten.
    """
    seen = []
    store = Fake(lambda: seen.append(store.forgotten))
    store.is_flush_due = lambda ending: False
    with writing(store) as made:
        told = asyncio.run(answers(made, [One(1), One(2, -1), One(3)]))
    assert (told[0], type(told[1]), told[2]) == (1, WriteFailed, 3)
    assert seen[0] == 0
    assert store.forgotten >= 1


def test_what_no_index_can_hold_is_a_fault_of_the_batch():
    """Of it alone, though the driver has it among the errors of a database that is unavailable."""
    store = Fake()
    limit = psycopg.errors.ProgramLimitExceeded("index row size 4024 exceeds maximum 2704")
    flush = store.flush

    def refuse(connection, batches, now, idle):
        if any(one.samples < 0 for one in batches):
            raise limit
        return flush(connection, batches, now, idle)

    store.flush = refuse
    with writing(store) as made:
        assert asyncio.run(answers(made, [One(1), One(2, -1), One(3)])) == [1, limit, 3]
        assert made.fault() is None


def accepted(seq, node="node-1", start_ms=NOON_MS, **changes):
    made = batch(seq, node, start_ms=start_ms, **changes)
    return validate.accept(decode(encode(made), "application/msgpack", ""), NOON_MS + 3_600_000)


def newest_of(connection, node):
    return connection.execute(
        "SELECT max(at_ms), (SELECT heartbeat ->> 'seq' FROM node WHERE name = %s) FROM gpu_latest"
        " l JOIN accelerator a ON a.id = accelerator_id WHERE uuid LIKE %s",
        (node, f"GPU-{node}-%"),
    ).fetchone()


def test_what_waits_is_written_when_it_is_settled_and_only_then(connection):
    """While batches wait nothing newest is written; what is settled is the newest of all, and a
    replay changes it not.
    """
    store, node = Store(partitions.ensure, placements.settle), "kept"
    for seq in range(3):
        store.flush(
            connection, [accepted(seq, node, NOON_MS + seq * 60_000)], NOW_MS, lambda: False
        )
    assert newest_of(connection, node) == (None, None)
    assert store.is_flush_due(True)
    store.flush_deferred(connection)
    assert newest_of(connection, node) == (NOON_MS + 170_000, "2")
    store.flush(connection, [accepted(7, node, NOON_MS - 60_000)], NOW_MS, lambda: False)
    store.flush_deferred(connection)
    assert newest_of(connection, node) == (NOON_MS + 170_000, "7")
    assert not store.is_flush_due(True)


def test_a_database_that_dies_while_settling_takes_nothing(connection):
    """What could not be written is kept, under what was told since, and written by the next who
    comes.
    """
    store, node = Store(partitions.ensure, placements.settle), "dies"

    def settle_while_it_dies():
        with Database(connection.dsn).connect() as doomed:
            store.flush(doomed, [accepted(1, node)], NOW_MS, lambda: False)
            connection.execute("SELECT pg_terminate_backend(%s)", (doomed.info.backend_pid,))
            store.flush_deferred(doomed)

    # Around the connection: while the server is still closing it, it looks open, and could not be
    # committed.
    with pytest.raises(psycopg.OperationalError):
        settle_while_it_dies()
    store.flush(connection, [accepted(2, node, NOON_MS + 60_000)], NOW_MS, lambda: True)
    assert newest_of(connection, node)[1] is None
    store.flush_deferred(connection)
    assert newest_of(connection, node) == (NOON_MS + 110_000, "2")


def test_what_the_database_refuses_does_not_stay_in_the_way(connection):
    """What no row can hold is let go, and the next newest is written."""
    store, node = Store(partitions.ensure, placements.settle), "gone"
    store.deferred.add(PendingUpdates([], {1: beat_of(2**70, "ok", 0), 2: beat_of(2**70, "ok", 0)}))
    connection.execute(
        "UPDATE node SET heartbeat = %s::jsonb WHERE id = 1", (encode_json(beat_of(1, "ok", 0)),)
    )
    with pytest.raises(psycopg.DataError):
        store.flush_deferred(connection)
    store.flush(connection, [accepted(1, node)], NOW_MS)
    assert newest_of(connection, node) == (NOON_MS + 50_000, "1")


def test_writers_and_the_settler_at_once(connection):
    """Two writers, one settler, the same nodes: every batch counts once and the newest are those of
    the last.
    """
    store = Store(partitions.ensure, placements.settle)
    made = GroupCommit(
        store,
        lambda: psycopg.connect(connection.dsn, autocommit=True),
        lambda: NOW_MS,
        Limits(writers=2, flush_batches=3),
    )
    made.start()
    batches = [accepted(seq, f"both-{seq % 3}", NOON_MS + seq * 1000) for seq in range(120)]

    async def send():
        return await asyncio.gather(*(made.submit(one) for one in batches))

    try:
        told = asyncio.run(asyncio.wait_for(send(), 30))
    finally:
        made.close(10)
    assert {answer.status for answer in told} == {"committed"}
    assert not any(
        thread.name in ("writer-deferred", "writer-0", "writer-1")
        and thread in (*made._threads, made._deferred_writer)
        for thread in threading.enumerate()
    )
    assert connection.execute(
        "SELECT count(*) FROM ingest_batch JOIN node n ON n.id = node_id WHERE n.name LIKE 'both-%'"
    ).fetchone() == (120,)
    for node in range(3):
        assert newest_of(connection, f"both-{node}") == (
            NOON_MS + (117 + node) * 1000 + 50_000,
            str(117 + node),
        )


def test_what_is_kept_does_not_grow():
    """Pieces that nobody can write become one: the newest of a fleet, and no history of it."""
    kept = latest_values.DeferredUpdates()
    for number in range(200):
        kept.add(PendingUpdates([piece(dict.fromkeys((1, 2, 3), (number, 0, 1, number, None)))]))
    told = kept.take()
    assert len(told.values) <= latest_values.MAX_PARTS
    assert merge(told.values).at_ms.tolist() == [NOON_MS + 199] * 3

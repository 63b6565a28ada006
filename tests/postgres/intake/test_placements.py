"""What a store remembers of the inventory time line: never what is older than the database, and
never for ever.
"""

import threading

import msgspec
import psycopg
import pytest

from fakes.batches import NOON_MS, accelerator, batch, held, workload
from fakes.postgres import fresh_database
from gpuledger_collector.ingest.batches import validate
from gpuledger_collector.ingest.batches.decode import decode
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import placements
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.wire import Samples, encode

HOUR_MS = 3_600_000
NOW_MS = NOON_MS + 30 * HOUR_MS


@pytest.fixture
def database(postgres):
    with fresh_database(postgres) as dsn:
        yield dsn


@pytest.fixture
def connection(database):
    with Database(database).connect() as opened:
        yield opened


def seen(seq, node, at_ms, *uuids):
    """A batch in which a node sees accelerators held for an hour."""
    accelerators = [accelerator(0, uuid=uuid, device_uuid=uuid) for uuid in uuids or ("GPU-x",)]
    made = msgspec.structs.replace(
        batch(seq, node, 0, at_ms, samples=Samples()),
        accelerators=accelerators,
        workloads=[workload()],
        usage_intervals=[held(place, at_ms, at_ms + HOUR_MS) for place in range(len(accelerators))],
    )
    return validate.accept(decode(encode(made), "application/msgpack", ""), NOW_MS)


def nodes(connection):
    return connection.execute(
        "SELECT n.name FROM capacity c JOIN node n ON n.id = c.node_id ORDER BY c.in_ms"
    ).fetchall()


def test_a_row_that_was_settled_before_another_is_not_remembered_after_it(connection):
    """Two writers settle one board one after the other and remember in the other order: the later
    row stays.
    """
    store = Store(partitions.ensure, placements.settle)
    late = []
    for seq, node in ((1, "n1"), (1, "n2")):
        one = seen(seq, node, NOON_MS + (node == "n2") * 2 * HOUR_MS)
        numbered = store.ids.resolve(connection, [one], NOW_MS)
        store.ensure_days(connection, [one])
        with connection.transaction():
            after = []
            store._write(connection, numbered, NOW_MS, after)
        late.append(after)
    for after in reversed(late):
        for remember in after:
            remember()
    store.flush(
        connection, [seen(2, "n1", NOON_MS + HOUR_MS), seen(3, "n1", NOON_MS + 2 * HOUR_MS)], NOW_MS
    )
    assert nodes(connection) == [("n1",)]


def test_what_another_replica_changed_is_seen_within_a_day(connection):
    """A replica that remembers a board on a node looks again after a day, and settles what it
    passed over.
    """
    one, other = (Store(partitions.ensure, placements.settle) for _ in range(2))
    one.flush(connection, [seen(1, "n1", NOON_MS)], NOW_MS)
    other.flush(connection, [seen(1, "n2", NOON_MS + 2 * HOUR_MS)], NOW_MS)
    one.flush(connection, [seen(2, "n1", NOON_MS + 2 * HOUR_MS)], NOW_MS)
    later = NOW_MS + 24 * HOUR_MS
    one.flush(connection, [seen(3, "n1", NOON_MS + 20 * HOUR_MS)], later)
    assert nodes(connection) == [("n1",)]


def test_boards_are_locked_in_the_order_in_which_accelerators_are_written(database, connection):
    """Whoever waits for one board holds none whose name comes after it, whatever ids they have."""
    store = Store(partitions.ensure, placements.settle)
    store.flush(connection, [seen(1, "n1", NOON_MS, "GPU-b")], NOW_MS)
    store.flush(connection, [seen(2, "n1", NOON_MS, "GPU-a")], NOW_MS)
    lock = "SELECT FROM accelerator WHERE uuid = %s FOR NO KEY UPDATE NOWAIT"
    ids = [row[0] for row in connection.execute("SELECT id FROM accelerator ORDER BY id")]
    done = threading.Event()

    def settle():
        with psycopg.connect(database) as another:
            another.execute("SET application_name = 'settles'")
            another.commit()
            placements.settle(another, ids, NOON_MS)
        done.set()

    with psycopg.connect(database) as holder:
        holder.execute(lock, ("GPU-a",))
        thread = threading.Thread(target=settle)
        thread.start()
        waiting = (
            "SELECT FROM pg_stat_activity WHERE application_name = 'settles' AND wait_event_type ="
            " 'Lock'"
        )
        while not connection.execute(waiting).fetchall():
            assert not done.wait(0.02)
        try:
            holder.execute(lock, ("GPU-b",))
        except psycopg.errors.LockNotAvailable:
            pytest.fail("GPU-b is locked by one that waits for GPU-a")
        finally:
            holder.rollback()
            thread.join()

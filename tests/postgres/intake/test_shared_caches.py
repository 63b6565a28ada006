"""Batches of one node that reach several processes in any order leave what one process would have
written.
"""

import itertools

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.batches import NOON_MS, accelerator, batch, held, samples, workload
from fakes.postgres import fresh_database
from fakes.profiles import examples
from gpuledger_collector.ingest.batches import validate
from gpuledger_collector.ingest.batches.decode import decode
from gpuledger_collector.ingest.batches.store import RENEW_SHARED_AFTER_MS, Store
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import placements
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.wire import encode

MINUTE_MS = 60_000
NOW_MS = NOON_MS + 7_200_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def connection(postgres):
    with fresh_database(postgres) as dsn, Database(dsn).connect() as opened:
        yield opened


def new_store():
    return Store(partitions.ensure, placements.settle, is_shared=True)


def report(seq, node, xid, health="ok"):
    """A minute of a node with one slow reading."""
    start_ms = NOON_MS + seq * MINUTE_MS
    made = batch(
        seq,
        node,
        accelerators=1,
        start_ms=start_ms,
        workloads=[workload()],
        usage_intervals=[held(0, start_ms, start_ms + MINUTE_MS)],
        samples=samples(1, [start_ms], gpu_last_xid=[xid]),
    )
    made = msgspec.structs.replace(made, accelerators=[accelerator(0, node, health=health)])
    return validate.accept(decode(encode(made), "application/msgpack", ""), NOW_MS)


def slow_readings(connection, node):
    return connection.execute(
        "SELECT s.at_ms, s.value FROM gpu_state s JOIN accelerator a ON a.id = s.accelerator_id"
        " WHERE a.uuid = %s ORDER BY s.at_ms",
        (f"GPU-{node}-0",),
    ).fetchall()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.0, 31.0, 79.0])), min_size=1, max_size=12
    )
)
@example([(0, 0.0), (1, 79.0), (0, 0.0)])
@examples(10)
def test_slow_metrics_change_where_they_changed(connection, reports):
    """A value that returns to what this process saw last, after another process saw a different
    one, is a change.
    """
    number = next(_numbers)
    spread, alone = f"spread-{number}", f"alone-{number}"
    stores, one = [new_store() for _ in range(3)], Store(partitions.ensure, placements.settle)
    for seq, (process, xid) in enumerate(reports, 1):
        stores[process].flush(connection, [report(seq, spread, xid)], NOW_MS)
        one.flush(connection, [report(seq, alone, xid)], NOW_MS)
    assert slow_readings(connection, spread) == slow_readings(connection, alone) != []


def test_what_pages_show_of_an_accelerator_is_right_again_within_minutes(connection):
    """Health that comes back to what this process wrote last is written again once its cache is
    renewed.
    """
    first, second, node = new_store(), new_store(), "healed"
    first.flush(connection, [report(1, node, 0.0)], NOW_MS)
    second.flush(connection, [report(2, node, 0.0, "degraded")], NOW_MS)
    first.flush(connection, [report(3, node, 0.0)], NOW_MS + RENEW_SHARED_AFTER_MS)
    health = "SELECT health FROM accelerator WHERE uuid = %s"
    assert connection.execute(health, (f"GPU-{node}-0",)).fetchone() == ("ok",)

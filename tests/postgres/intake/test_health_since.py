"""Since when a GPU has the health that its reports say: since the first of them that said so."""

import itertools

import msgspec
import pytest

from fakes.batches import NOON_MS, accelerator, batch, free
from fakes.postgres import fresh_database
from gpuledger_collector.ingest.batches import validate
from gpuledger_collector.ingest.batches.decode import decode
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import placements
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.wire import encode

MINUTE_MS = 60_000
NOW_MS = NOON_MS + 40_000_000
_seqs = itertools.count(1)


@pytest.fixture(scope="module")
def connection(postgres):
    with fresh_database(postgres) as dsn, Database(dsn).connect() as opened:
        yield opened


@pytest.mark.parametrize("forgets", [False, True])
def test_it_is_the_end_of_the_first_report_that_says_so(connection, forgets):
    """A report that says the same again, with another cause, or from a collector that has just been
    started leaves it; a change of health sets it.
    """
    store = Store(partitions.ensure, placements.settle)
    node = f"since-{forgets}"
    reports = (
        ("ok", "", 0),
        ("ok", "", 0),
        ("degraded", "a row remap waits for a reset", 2),
        ("degraded", "a row remap waits for a reset", 2),
        ("degraded", "uncorrected ECC errors since the driver was loaded", 2),
        ("failed", "Xid 79", 5),
        ("ok", "", 6),
    )
    for minute, (health, cause, since) in enumerate(reports):
        start_ms = NOON_MS + minute * MINUTE_MS
        card = accelerator(0, node, health=health, health_cause=cause)
        told = msgspec.structs.replace(
            batch(accelerators=0, seq=next(_seqs), node=node),
            accelerators=[card],
            usage_intervals=[free(0, start_ms, start_ms + MINUTE_MS)],
        )
        accepted = validate.accept(decode(encode(told), "application/msgpack", ""), NOW_MS)
        if forgets:
            store.forget()
        assert [answer.status for answer in store.flush(connection, [accepted], NOW_MS)] == [
            "committed"
        ]
        stored = connection.execute(
            "SELECT health, health_since_ms FROM accelerator WHERE uuid = %s", (card.uuid,)
        ).fetchone()
        assert stored == (health, NOON_MS + (since + 1) * MINUTE_MS)


def test_of_an_older_ledger_it_is_not_known(connection):
    """The health that was stored before anybody asked since when."""
    connection.execute(
        "INSERT INTO accelerator (uuid, device_uuid, health) VALUES ('GPU-old', 'GPU-old', 'failed')"
    )
    store = Store(partitions.ensure, placements.settle)
    card = msgspec.structs.replace(accelerator(0, "old"), uuid="GPU-old", health="failed")
    for minute, health in enumerate(("failed", "ok")):
        told = msgspec.structs.replace(
            batch(accelerators=0, seq=next(_seqs), node="old"),
            accelerators=[msgspec.structs.replace(card, health=health)],
            usage_intervals=[
                free(0, NOON_MS + minute * MINUTE_MS, NOON_MS + (minute + 1) * MINUTE_MS)
            ],
        )
        accepted = validate.accept(decode(encode(told), "application/msgpack", ""), NOW_MS)
        store.flush(connection, [accepted], NOW_MS)
        ((since_ms,),) = connection.execute(
            "SELECT health_since_ms FROM accelerator WHERE uuid = 'GPU-old'"
        ).fetchall()
        assert since_ms == (None if health == "failed" else NOON_MS + 2 * MINUTE_MS)

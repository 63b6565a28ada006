"""/readyz and doctor: a full disk, writers that fail, partitions without end are told before
somebody asks why.
"""

import datetime as dt
import shutil
from collections import namedtuple

import psycopg
import pytest

from fakes.batches import NOON_MS, batch
from fakes.collector import running
from gpuledger_collector import readiness, wiring
from gpuledger_collector.cli import doctor
from gpuledger_collector.ingest.batches import commit
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.health import read_health
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.instants import to_datetime

Usage = namedtuple("Usage", "total used free")
NOW = int(dt.datetime.now(dt.UTC).timestamp()) * 1000


@pytest.fixture
def collector(dsn):
    with running(dsn) as started:
        yield started


def ready(collector):
    status, _, answer = collector.request("GET", "/readyz")
    return status, answer.get("reason") or answer.get("note")


def test_a_collector_with_a_full_disk_is_not_ready(collector, tmp_path, monkeypatch):
    """503 with the reason while less is free than the setting asks for, and ready again when there
    is room.
    """
    collector.parts.readiness.folder = tmp_path / "not" / "made" / "yet"
    assert ready(collector) == (200, None)
    with monkeypatch.context() as full:
        full.setattr(readiness.shutil, "disk_usage", lambda _: Usage(2**40, 2**40, 0))
        assert ready(collector) == (
            503,
            "0 MiB are free on the disk of the database, 256 MiB are needed",
        )
    assert ready(collector) == (200, None)
    collector.parts.readiness.min_free_bytes = shutil.disk_usage(tmp_path).free * 2
    assert ready(collector)[0] == 503


def test_the_embedded_database_is_watched_and_one_by_dsn_by_its_writers(database, tmp_path):
    """The folder of the embedded database is looked at; where another machine's disk is cannot be
    known.
    """
    settings = wiring.Settings(data_dir=tmp_path)
    assert wiring.collector(settings, database).readiness.folder is None
    assert wiring.collector(settings, Database(database.dsn, object())).readiness.folder == tmp_path


def test_writers_that_fail_are_told_until_they_are_tried_again(collector, monkeypatch):
    """A database that takes reads and no writes is not ready; it is after a while, or when a batch
    was written.
    """
    store = collector.parts.commit._store
    true, clock = type(store).flush, [NOW]
    collector.parts.commit._clock = lambda: clock[0]

    def full(*_):
        raise psycopg.errors.DiskFull(
            "could not extend file: No space left on device\nHINT: Check free disk space."
        )

    monkeypatch.setattr(type(store), "flush", full)
    assert collector.send(batch(1))[0] == 503
    status, reason = ready(collector)
    assert status == 503
    assert "could not extend file: No space left on device" in reason
    assert "HINT" not in reason
    assert collector.parts.last_error()[1] == "could not extend file: No space left on device"
    clock[0] += commit.FAULT_SECONDS * 1000
    assert ready(collector) == (200, None)
    assert collector.send(batch(1))[0] == 503
    monkeypatch.setattr(type(store), "flush", true)
    assert collector.send(batch(1))[0] == 200
    assert ready(collector) == (200, None)
    assert collector.parts.last_error() is not None


def test_a_deadlock_is_no_fault(collector, monkeypatch):
    """What passes by itself, and is sent again, sends no requests elsewhere."""

    def deadlock(*_):
        raise psycopg.errors.DeadlockDetected("deadlock detected")

    monkeypatch.setattr(type(collector.parts.commit._store), "flush", deadlock)
    assert collector.send(batch(1))[0] == 503
    assert ready(collector) == (200, None)


def test_a_writer_that_is_stuck_or_has_ended_is_told(collector, monkeypatch):
    """Nothing comes of waiting for either."""
    collector.parts.commit._begun["writer-0"] = -1e9
    assert "a group of batches has been written for" in ready(collector)[1]
    collector.parts.commit._begun.clear()
    monkeypatch.setattr(collector.parts.commit._threads[0], "is_alive", lambda: False)
    assert ready(collector) == (503, "writer-0 has ended")


def test_a_heartbeat_that_cannot_be_written_is_told(collector):
    """The database answers reads and takes no writes."""
    presence = wiring.presence(Database(collector.dsn), collector.parts.last_error)
    collector.parts.readiness.heartbeat = lambda: presence.error
    presence.beat()
    assert ready(collector) == (200, None)
    with psycopg.connect(collector.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE replica RENAME TO moved")
        presence.beat()
        assert ready(collector) == (
            503,
            'the database takes no writes: relation "replica" does not exist',
        )
        connection.execute("ALTER TABLE moved RENAME TO replica")
    presence.beat()
    assert ready(collector) == (200, None)


def test_too_many_partitions_are_noted_and_stop_nothing(collector, monkeypatch):
    """A collector that is sent no batches for them would help nobody."""
    with Database(collector.dsn).transaction() as connection:
        day = NOON_MS - NOON_MS % partitions.DAY_MS
        partitions.ensure(connection, "usage_interval", [day, day + partitions.DAY_MS])
    collector.parts.readiness.most_partitions = 1
    status, note = ready(collector)
    assert (status, note) == (
        200,
        "2 partitions of evidence, over 1 plans get slow: see gpuledger doctor",
    )


def test_doctor_tells_partitions_and_what_writers_could_not_write(database, monkeypatch):
    """Both are bad findings with a cure; a failure of long ago, or of a collector that has gone, is
    none.
    """
    failed_ms = NOW

    def findings():
        with database.transaction() as connection:
            return {
                one.topic: one
                for one in doctor.writing(read_health(connection, NOW, NOW - 86_400_000, 600_000))
            }

    assert {topic: one.verdict for topic, one in findings().items()} == {"partitions": "ok"}
    presence = wiring.presence(database, lambda: (failed_ms, "out of shared memory"))
    presence.beat()
    monkeypatch.setattr(doctor, "MAX_PARTITIONS", -1)
    found = findings()
    assert {topic: one.verdict for topic, one in found.items()} == {
        "writer": "bad",
        "partitions": "bad",
    }
    assert (
        f"{to_datetime(failed_ms):%Y-%m-%d %H:%M:%S}Z: out of shared memory"
        in found["writer"].sentence
    )
    assert "merge_partitions" in found["partitions"].remedy
    failed_ms -= 2 * 86_400_000
    presence.beat()
    assert "writer" not in findings()

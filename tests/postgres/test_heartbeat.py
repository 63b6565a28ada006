"""The heartbeat of a collector: what /readyz says of a database that takes writes again."""

from contextlib import closing

import psycopg

from fakes.replicas import until
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate, replicas


def test_a_heartbeat_that_failed_is_tried_again_before_the_next_one(dsn, monkeypatch):
    """So /readyz says ready soon after the database takes writes, and not a heartbeat later."""
    monkeypatch.setattr(replicas, "BEAT_SECONDS", 3600.0)
    monkeypatch.setattr(replicas, "RETRY_SECONDS", 0.05)
    presence = replicas.Presence(Database(dsn), migrate.head())
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        connection.execute("ALTER TABLE replica RENAME TO away")
        presence.start()
        assert "replica" in presence.error
        connection.execute("ALTER TABLE away RENAME TO replica")
        until(lambda: not presence.error)
        presence.stop()
        assert connection.execute("SELECT count(*) FROM replica").fetchone() == (0,)

"""Transactions of a command follow each other on one connection, each as if it had its own."""

import contextlib

import psycopg
import pytest
from typer.testing import CliRunner

from gpuledger_collector.cli import build
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock

SESSION = (
    "SELECT pg_backend_pid(), current_setting('transaction_isolation'),"
    " current_setting('transaction_read_only')"
)


def session(database, *locks, **options):
    with database.transaction(*locks, **options) as connection:
        return connection.execute(SESSION).fetchone()


def test_transactions_share_a_connection_and_nothing_else(dsn):
    """Neither a snapshot nor being read-only outlasts a transaction."""
    with Database(dsn).sharing_connection() as database:
        first = session(database, read_only=True)
        assert first[1:] == ("repeatable read", "on")
        assert session(database) == (first[0], "read committed", "off")
        assert session(database, Lock.LEDGER) == (first[0], "repeatable read", "off")
    with Database(dsn).transaction() as connection:
        alive = connection.execute(
            "SELECT FROM pg_stat_activity WHERE pid = %s", (first[0],)
        ).fetchall()
    assert alive == []


def test_transactions_at_once_have_a_connection_each(dsn):
    """A transaction inside of another sees nothing of it, and both connections serve later ones."""
    with Database(dsn).sharing_connection() as database:
        with database.transaction() as outer:
            pid = outer.execute(SESSION).fetchone()[0]
            other = session(database)[0]
            assert other != pid
        assert session(database)[0] in {pid, other}


def test_a_failed_transaction_leaves_its_connection_to_nobody(dsn):
    """The next transaction begins on a new one; of another reader it is never that of the owner."""
    with Database(dsn).sharing_connection() as database:
        pid = session(database)[0]
        with pytest.raises(psycopg.errors.DivisionByZero), database.transaction() as connection:
            connection.execute("SELECT 1 / 0")
        later = session(database)[0]
        assert later != pid
        assert session(database.as_viewer({"team": "vision"}))[0] != later


@pytest.mark.parametrize("fails", [False, True])
def test_a_lock_is_free_when_its_block_has_ended(dsn, monkeypatch, fails):
    """Also where the server has not noticed the end of the session yet."""
    database, sessions = Database(dsn), []

    def connect(self):
        sessions.append(psycopg.connect(dsn, autocommit=True))
        return sessions[-1]

    monkeypatch.setattr(Database, "connect", connect)
    monkeypatch.setattr(psycopg.Connection, "close", lambda self: None)
    with contextlib.suppress(ZeroDivisionError), database.try_hold(Lock.PACKING) as holder:
        assert holder is sessions[0]
        with database.try_hold(Lock.PACKING) as other:
            assert other is None
        if fails:
            raise ZeroDivisionError
    with database.try_hold(Lock.PACKING) as holder:
        assert holder is not None
    monkeypatch.undo()
    for session in sessions:
        session.close()


def test_a_command_has_one_connection(dsn, monkeypatch):
    """Whether the schema is the latest, and what the command reads, are asked on the same one."""
    opened, connect = [], psycopg.connect
    monkeypatch.setattr(
        psycopg, "connect", lambda *given, **more: opened.append(1) or connect(*given, **more)
    )
    result = CliRunner().invoke(build(), ["prices", "list", "--dsn", dsn])
    assert result.exit_code == 0, result.output
    assert len(opened) == 1

"""Locks of the product: one empty table each, locked in a mode that a role which may only read cannot hold.

Keys of advisory locks can be taken by every role of the database and are shown to all of them in pg_locks, and on a
server of others nobody but its administrator can forbid that. SHARE UPDATE EXCLUSIVE on a table needs the right to
change the table, excludes itself, and conflicts with no lock that a reader can hold: not with the ROW EXCLUSIVE that
PREPARE takes without any right. Asking for a stronger lock (CREATE RULE waits for one before it looks at rights) only
delays others; `reader_watch` ends such sessions.

LOCK TABLE takes no snapshot, so that a REPEATABLE READ transaction that begins with it sees what the holder before it
has committed. It assigns no transaction id either: a lock that is held for days holds up no vacuum.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]


@enum.unique
class Lock(enum.StrEnum):
    """Tables that are locked, and hold nothing."""

    MIGRATIONS = "lock_migrations"
    PARTITIONS = "lock_partitions"
    JOBS = "lock_jobs"
    LEDGER = "lock_ledger"
    IMPORTS = "lock_imports"
    PRICES = "lock_prices"
    FINDINGS = "lock_findings"
    SCRAPES = "lock_scrapes"
    AUDIT = "lock_audit"
    RECOMMENDATIONS = "lock_recommendations"
    OUTBOX = "lock_outbox"
    OUTBOX_PLAN = "lock_outbox_plan"
    NOTIFICATIONS = "lock_notifications"
    ACTIONS = "lock_actions"
    SCALING = "lock_scaling"
    ROW_LEVEL_SECURITY = "lock_row_level_security"
    SERIES = "lock_series"
    PACKING = "lock_packing"
    BUDGETS = "lock_budgets"


ABOUT = "Held by the session that does this alone; has no rows."
"""What the database says of each of them."""


def statement(lock: Lock) -> str:
    """The SQL that takes a lock until the transaction ends."""
    return f"LOCK TABLE {lock.value} IN SHARE UPDATE EXCLUSIVE MODE"


def take(connection: Connection, *locks: Lock) -> None:
    """Wait for locks, one after the other, and hold them until the caller's transaction ends."""
    for lock in locks:
        connection.execute(statement(lock))


@contextmanager
def snapshot(connection: Connection, *locks: Lock) -> Iterator[None]:
    """A REPEATABLE READ transaction whose snapshot is taken once it holds the locks; `connection` is in autocommit."""
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with connection.transaction():
        take(connection, *locks)
        yield


def seize(connection: Connection, lock: Lock) -> bool:
    """Hold a lock for as long as the session lasts, beyond any commit of others; False when somebody else holds it.

    `connection` is in autocommit and serves for nothing else: it stays in a transaction that reads and writes nothing.
    """
    connection.execute("SET idle_in_transaction_session_timeout = 0")
    connection.execute("BEGIN")
    try:
        connection.execute(f"{statement(lock)} NOWAIT")
    except psycopg.errors.LockNotAvailable:
        connection.execute("ROLLBACK")
        return False
    return True


@contextmanager
def held(connect: Callable[[], Connection], lock: Lock) -> Iterator[Connection]:
    """Hold a lock on a session of its own, which is given, while the block runs; waits for it."""
    with closing(connect()) as connection:
        connection.autocommit = True
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.execute("BEGIN")
        take(connection, lock)
        yield connection


@contextmanager
def tried(connect: Callable[[], Connection], lock: Lock) -> Iterator[Connection | None]:
    """As `held`, without waiting: the session that holds the lock, None when somebody else holds it."""
    with closing(connect()) as connection:
        connection.autocommit = True
        yield connection if seize(connection, lock) else None

"""Locks of the product: an empty table each, locked in a mode that a read-only role cannot hold.

Any role of the database can take an advisory lock and see its key in pg_locks, and only the
administrator of the server could forbid that. SHARE UPDATE EXCLUSIVE on a table requires the right
to change the table, excludes itself, and conflicts with no lock that a reader can hold, not even
with the ROW EXCLUSIVE that PREPARE takes without any right. Requesting a stronger lock (CREATE RULE
waits for one before it checks rights) only delays others; `reader_watch` ends such sessions.

The ledger's lock has parts, tables that inherit from it: LOCK TABLE of the ledger's takes all of
them, and a day is rated or folded under one alone. So days are rated at the same time, each in one
process, and nobody who takes the ledger's lock meets a day that is half rated.

LOCK TABLE takes no snapshot, so a REPEATABLE READ transaction that begins with it sees what the
previous holder committed. It assigns no transaction id either: a lock that is held for days delays
no vacuum.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS

Connection = psycopg.Connection[tuple[Any, ...]]


@enum.unique
class Lock(enum.StrEnum):
    """Tables that are locked and have no rows."""

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
    TOKENS = "lock_tokens"
    STATES = "lock_states"


ABOUT = "Held by the session that does this alone; has no rows."
"""What the database says of each of them."""


LEDGER_PARTS = tuple(f"{Lock.LEDGER}_{number:02}" for number in range(32))
"""The parts of the ledger's lock: more than a month has days, so that no two of its days have one
in common.
"""
LONGEST_IDLENESS = "1h"
"""How long a session may hold the lock of a day for another one: the day of a large fleet takes
minutes to rate.
"""


def of_day(day_ms: int) -> str:
    """The part of the ledger's lock under which the day that begins at an instant is rated.

    A transaction takes one part at most: with two, and with the ledger's, it could wait for one
    that waits for it.
    """
    return LEDGER_PARTS[day_ms // DAY_MS % len(LEDGER_PARTS)]


def statement(lock: str) -> str:
    """The SQL that takes a lock until the end of the transaction."""
    return f"LOCK TABLE {lock} IN SHARE UPDATE EXCLUSIVE MODE"


def take(connection: Connection, *locks: str) -> None:
    """Wait for locks in this order and hold them until the end of the caller's transaction."""
    for lock in locks:
        connection.execute(statement(lock))


def share(connection: Connection, lock: Lock) -> None:
    """Wait for whoever has taken a lock, and keep others from taking it until the end of the caller's
    transaction; those who share it do not wait for one another.

    Who takes the same lock later in its transaction may deadlock with another who shares it.
    """
    connection.execute(f"LOCK TABLE {lock} IN SHARE MODE")


def try_take(connection: Connection, lock: Lock) -> bool:
    """Take a lock until the end of the caller's transaction without waiting; return False when
    another holds it.
    """
    try:
        # In a savepoint of its own: a failed lock must not end the transaction.
        with connection.transaction():
            connection.execute(f"{statement(lock)} NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def outlast_idleness(connection: Connection) -> None:
    """Let the caller's transaction hold its locks while another session works under them.

    Not for ever: a process that was suspended loses them.
    """
    connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_IDLENESS}'")


@contextmanager
def snapshot(connection: Connection, *locks: str) -> Iterator[None]:
    """Begin a REPEATABLE READ transaction, whose snapshot follows the locks; `connection` is in
    autocommit.
    """
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with connection.transaction():
        take(connection, *locks)
        yield


def seize(connection: Connection, lock: Lock) -> bool:
    """Hold a lock for as long as the session lasts; return False when another session holds it.

    `connection` is in autocommit and used for nothing else: it stays in a transaction without reads
    and writes.
    """
    connection.execute("SET idle_in_transaction_session_timeout = 0")
    connection.execute("BEGIN")
    try:
        connection.execute(f"{statement(lock)} NOWAIT")
    except psycopg.errors.LockNotAvailable:
        connection.execute("ROLLBACK")
        return False
    return True

"""The watch over sessions of readers: it ends those that go beyond their limits.

A role can lift every limit that Postgres sets for it (statement_timeout, read-only), and without
any right to a table it can still delay all others: CREATE RULE waits for an exclusive lock before
it looks at rights, and whoever comes after it waits too. So a session of the collector looks every
second. It ends what runs or stays in a transaction for too long, what holds an advisory lock, what
one of ours has waited for, and every session of a role that may no longer log in.

The look itself reads no table and no catalog, so that no lock on those can stop it. Who may end a
session: a member of its role, which `db grant-reader` makes of the owner, or of pg_signal_backend.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select

LOOK_SECONDS = 1.0
ROLES_SECONDS = 15.0
"""How long the list of watched roles is cached."""
TRANSACTION_SECONDS = 45
"""Longest statement and transaction; a reader's own statement_timeout is shorter."""
IDLE_SECONDS = 900
WAIT_SECONDS = 1
"""How long a session of the product waits for a reader before that is ended."""
# A generic plan is made once, so that no later look plans, which would read catalogs.
_SESSION = "-c statement_timeout=10000 -c lock_timeout=2000 -c plan_cache_mode=force_generic_plan"
_ROLES = """
SELECT r.oid::int8, r.rolname AS name, d.oid::int8 AS database, r.rolcanlogin AS can_log_in
FROM database_reader g JOIN pg_roles r ON r.rolname = g.role
JOIN pg_database d ON d.datname = current_database()
WHERE NOT r.rolsuper AND NOT pg_has_role(r.oid, current_user, 'USAGE')
"""
# Only set-returning functions (pg_stat_get_activity, pg_lock_status): the views over them read
# catalogs, which a reader may have locked. `awaited` are sessions that block one of ours for longer
# than `wait`; `judged` names the first reason.
_BEYOND = """
WITH reader AS MATERIALIZED (
    SELECT pid, usesysid, state, xact_start, query_start, state_change FROM pg_stat_get_activity(NULL)
    WHERE usesysid = ANY (%(roles)s::oid[]) AND datid = %(database)s::oid
), held AS MATERIALIZED (
    SELECT pid, locktype, granted, waitstart FROM pg_lock_status() WHERE EXISTS (SELECT FROM reader)
), awaited AS MATERIALIZED (
    SELECT unnest(pg_blocking_pids(pid)) AS pid FROM held WHERE NOT granted
    AND waitstart < clock_timestamp() - make_interval(secs => %(wait)s) AND pid NOT IN (SELECT pid FROM reader)
), judged AS (
    SELECT pid, usesysid, CASE
        WHEN usesysid = ANY (%(closed)s::oid[]) THEN 'its role may no longer log in'
        WHEN pid IN (SELECT pid FROM awaited) THEN 'others waited for it'
        WHEN pid IN (SELECT pid FROM held WHERE locktype = 'advisory') THEN 'it took an advisory lock'
        WHEN clock_timestamp() - xact_start > make_interval(secs => %(transaction)s)
            THEN 'its transaction lasted too long'
        WHEN state = 'active' AND clock_timestamp() - query_start > make_interval(secs => %(transaction)s)
            THEN 'its statement ran too long'
        WHEN clock_timestamp() - state_change > make_interval(secs => %(idle)s) AND state = 'idle'
            THEN 'it was idle for too long'
    END AS why FROM reader
)
SELECT pid, usesysid::int8, why FROM judged WHERE why IS NOT NULL
"""

log = logging.getLogger(__name__)


class ReaderWatch:
    """Checks readers' sessions in a thread, by a limit for transactions and one for idle time, in
    seconds.
    """

    def __init__(
        self,
        database: Database,
        transaction_s: float = TRANSACTION_SECONDS,
        idle_s: float = IDLE_SECONDS,
    ) -> None:
        self._database = database.as_application("gpuledger-watch", _SESSION)
        self._limits = {"transaction": transaction_s, "idle": idle_s, "wait": WAIT_SECONDS}
        self._connection: Connection | None = None
        self._roles: Sequence[Any] = ()
        self._asked = 0.0
        self._unable: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader-watch", daemon=True)

    def start(self) -> None:
        """Check every second from now on; an unavailable database is tried again at the next check."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_SECONDS * 10)
        self._drop()

    def __enter__(self) -> ReaderWatch:
        """Check until the block ends."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop checking."""
        self.stop()

    def look(self) -> int:
        """End the sessions that exceed limits now; return how many.

        Raises psycopg.Error or StorageError.
        """
        if self._connection is None or self._connection.closed:
            self._connection = self._database.connect()
            self._asked = 0.0
        self._remember_roles(self._connection)
        if not self._roles:
            return 0
        names = {role.oid: role.name for role in self._roles}
        asked = {
            "roles": list(names),
            "closed": [role.oid for role in self._roles if not role.can_log_in],
            "database": self._roles[0].database,
            **self._limits,
        }
        rows = self._connection.execute(_BEYOND, asked, prepare=True).fetchall()
        return sum(self._end(self._connection, pid, names[role], why) for pid, role, why in rows)

    def _remember_roles(self, connection: Connection) -> None:
        """Read again which roles are readers; while their table is locked the previous ones are
        watched.
        """
        if self._asked and time.monotonic() - self._asked < ROLES_SECONDS:
            return
        try:
            roles = select(connection, _ROLES)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            log.warning("the roles of readers could not be read: their table is locked")
            return
        self._roles, self._asked = roles, time.monotonic()

    def _end(self, connection: Connection, pid: int, role: str, why: str) -> bool:
        try:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,), prepare=True)
        except psycopg.errors.InsufficientPrivilege:
            if role not in self._unable:
                log.warning(
                    "sessions of %s cannot be ended by this user: run gpuledger db grant-reader"
                    " again",
                    role,
                )
            self._unable.add(role)
            return False
        log.warning("ended session %d of the reader %s: %s", pid, role, why)
        return True

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
            except (psycopg.Error, StorageError) as error:
                log.info("readers are not watched now: %s", str(error).partition("\n")[0])
                self._drop()
            self._ended.wait(LOOK_SECONDS)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

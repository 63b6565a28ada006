"""The database: one DSN, one kind of connection (psycopg), one helper for transactions.

SQLAlchemy and Alembic know the schema and its migrations only
(docs/decisions/0021-one-database.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from gpuledger_collector.storage import locks, row_level_security
from gpuledger_collector.storage.cancellation import note_session
from gpuledger_collector.storage.errors import EnvironmentLacks, ServerUnavailable, StorageError
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_value

Result = TypeVar("Result")
RETRIES = 3
SUPPORTED = range(15, 19)
"""Major versions of Postgres that are tested."""
SESSION = (
    "-c timezone=UTC -c statement_timeout=600000 -c idle_in_transaction_session_timeout=600000"
    " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    " -c plan_cache_mode=force_custom_plan -c citus.multi_shard_modify_mode=sequential -c jit=off"
)
"""Options of every session.

With these keepalives the server notices within 25 s that a client's machine is gone and releases
its locks (the leadership among them). A generic plan would lock every partition before it knows
which ones it needs, so prepared statements are planned anew for their values. Citus refuses to
write a reference table (a node's heartbeat) in a transaction that wrote a distributed one over
several connections to a worker, so it opens one; without Citus that setting means nothing.
Compiling the proof of a month takes seconds (its text is long, its rows are few), as the default of
a server of one's own would.
"""
POOLED = (
    "a connection pooler stands before the database and does not pass on the options of a session,"
    " which locks, row-level security and durable commits rely on: give the address of the server"
    " itself"
)
_APPLICATION_NAME = re.compile(r"[^!-~]|[\\]")
"""What the name of a session cannot contain in options; Postgres also replaces what is not ASCII.
"""
_NAMED = "-c application_name="
SORT_MEMORY = "64MB"
"""Memory for sorts and hashes of reads: a month of a large team is aggregated without temporary
files.
"""


class Server(Protocol):
    """A server of our own that runs a database."""

    @property
    def dsn(self) -> str:
        """Where it listens now."""

    def kept_running(self) -> AbstractContextManager[None]:
        """Start it again whenever it ends while the block runs."""


@dataclass(frozen=True)
class Database:
    """A Postgres database.

    `server` is the embedded server that runs it, None for a database given by DSN.
    """

    given_dsn: str
    server: Server | None = None
    application: str = "gpuledger"
    options: str = ""
    """Further options of every session (`-c name=value`)."""
    standby: bool = False
    """A read replica: bringing usage, charges and findings up to date is left to the primary."""
    viewer: Mapping[str, str] | None = None
    """Owner (level -> value) to whose rows every session is restricted; None: all rows."""
    idle: list[Connection] | None = field(default=None, compare=False, repr=False)
    """Connections that transactions leave open for the next one; None: each opens its own."""

    @property
    def dsn(self) -> str:
        """The DSN now: an embedded server may listen on another port after a restart."""
        return self.given_dsn if self.server is None else self.server.dsn

    def as_application(self, application: str, options: str = "") -> Database:
        """The same database for sessions of another name, with further options."""
        return replace(self, application=application, options=options, idle=None)

    def as_viewer(self, owner: Mapping[str, str] | None) -> Database:
        """The same database, restricted by row-level security to the rows of an owner and below;
        None: all rows.
        """
        return replace(self, viewer=owner, idle=None)

    @contextmanager
    def sharing_connection(self) -> Iterator[Database]:
        """The same database, whose transactions follow each other on one connection while the block
        runs.

        A connection costs more than most queries. Transactions at once have one each. Within a
        block that shares already, it is that block's.
        """
        if self.idle is not None:
            yield self
            return
        idle: list[Connection] = []
        try:
            yield replace(self, idle=idle)
        finally:
            for connection in idle:
                connection.close()

    def connect(self) -> Connection:
        """Open a connection in autocommit mode; `with` closes it.

        Raises ServerUnavailable, EnvironmentLacks.
        """
        keywords = parameters(self.dsn, self.application)
        keywords["options"] = f"{keywords['options']} {self.options}".strip()
        try:
            connection = psycopg.connect(**keywords, autocommit=True)
            try:
                require_usable(connection, keywords["options"])
            except EnvironmentLacks:
                connection.close()
                raise
            if self.viewer is not None:
                # At the beginning of the session, so that no statement of it can run without the
                # restriction.
                row_level_security.become_viewer(connection, self.viewer)
            note_session(connection)
            return connection
        except psycopg.OperationalError as error:
            raise unreachable(error) from error

    @contextmanager
    def transaction(
        self,
        *needed_locks: str,
        read_only: bool = False,
        dry_run: bool = False,
        one_snapshot: bool | None = None,
    ) -> Iterator[Connection]:
        """Run one transaction on a connection of its own: commit at the end, roll back when the
        block raises.

        With locks, and when `read_only`, all statements see one snapshot (REPEATABLE READ), taken
        once the locks are held; otherwise each statement sees what was committed before it.
        `one_snapshot` says which, if given. `dry_run` always rolls back. A read replica has no
        locks: what the primary has committed by then is one snapshot there. Raises
        ServerUnavailable.
        """
        if one_snapshot is None:
            one_snapshot = bool(needed_locks) or read_only
        with self._session() as connection:
            # The snapshot is taken by the first statement after the locks (LOCK TABLE takes none),
            # so it includes whatever the previous holder has committed.
            level = (
                psycopg.IsolationLevel.REPEATABLE_READ
                if one_snapshot
                else psycopg.IsolationLevel.READ_COMMITTED
            )
            connection.isolation_level = level
            connection.read_only = read_only or None  # None leaves the server's own default
            with connection.transaction(force_rollback=dry_run):
                locks.take(connection, *(() if is_standby(connection) else needed_locks))
                if read_only:
                    give_sort_memory(connection)
                yield connection

    @contextmanager
    def beside(self, connection: Connection) -> Iterator[Connection]:
        """A second transaction, which reads what a transaction with one snapshot reads, but nothing
        that it has written; for two reads at once.
        """
        name = select_value(connection, "SELECT pg_export_snapshot()")
        with self.transaction(read_only=True) as reader:
            reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
            yield reader

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """A connection for one transaction, left open for the next one where connections are
        shared.
        """
        connection = self.idle.pop() if self.idle else self.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self.idle is None:
            connection.close()
        else:
            self.idle.append(connection)

    @contextmanager
    def hold(self, lock: Lock) -> Iterator[Connection]:
        """Wait for a lock and hold it on a session of its own while the block runs, whatever others
        commit.

        The session that is given stays in a transaction that the end of the block rolls back.
        """
        with closing(self.connect()) as connection:
            # The session holds the lock without running statements, for as long as the block takes.
            connection.execute("SET idle_in_transaction_session_timeout = 0")
            connection.execute("BEGIN")
            locks.take(connection, lock)
            yield connection

    @contextmanager
    def try_hold(self, lock: Lock) -> Iterator[Connection | None]:
        """As `hold`, without waiting: None when another session holds the lock."""
        with closing(self.connect()) as connection:
            if not locks.seize(connection, lock):
                yield None
                return
            try:
                yield connection
            finally:
                # Given back first: a busy server notices the end of a session later.
                with suppress(psycopg.OperationalError):
                    connection.execute("ROLLBACK")


def retry_conflicts(work: Callable[[], Result]) -> Result:
    """Run a transaction, again where another one wrote the same row meanwhile; what it fails with
    at last is raised.
    """
    for _ in range(RETRIES):
        try:
            return work()
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            continue
    return work()


def parameters(dsn: str, application: str = "gpuledger") -> dict[str, Any]:
    """The DSN (URI or key=value, also SQLAlchemy's postgresql+psycopg://) as psycopg keywords.

    Raises ServerUnavailable when it cannot be read, with a sentence that does not show the
    password.
    """
    try:
        given = conninfo_to_dict(libpq(dsn))
    except psycopg.ProgrammingError as error:
        raise ServerUnavailable(
            f"the DSN cannot be read ({str(error).strip()}): postgresql://user@host/name"
        ) from error
    name = _APPLICATION_NAME.sub("_", str(given.pop("application_name", None) or application))[:63]
    options = " ".join(
        filter(None, [SESSION, str(given.pop("options", "") or ""), f"{_NAMED}{name}"])
    )
    # Empty, so that libpq sends no name beside the options: `require_usable` sees by it whether
    # they arrived.
    return {"connect_timeout": 10, **given, "application_name": "", "options": options}


def require_usable(connection: Connection, options: str) -> None:
    """Refuse a pooler and an encoding that cannot hold every name, by what the server reports when
    a session begins.

    Raises EnvironmentLacks.
    """
    name = options.rpartition(_NAMED)[2].partition(" ")[0]
    if connection.info.parameter_status("application_name") != name:
        raise EnvironmentLacks(POOLED)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise EnvironmentLacks(
            f"the database has the encoding {encoding}, which cannot hold every name: create it"
            " with ENCODING 'UTF8' TEMPLATE template0"
        )


def give_sort_memory(connection: Connection) -> None:
    """Give sorts and hashes of the caller's transaction more memory than a session has."""
    connection.execute(f"SET LOCAL work_mem = '{SORT_MEMORY}'")


def is_standby(connection: Connection) -> bool:
    """Whether the server is a read replica, as it reports with the session."""
    return connection.info.parameter_status("in_hot_standby") == "on"


def unreachable(error: Exception) -> StorageError:
    """What to raise for a connection that failed."""
    if "unsupported startup parameter" in str(error):
        return EnvironmentLacks(POOLED)
    return ServerUnavailable(f"the database cannot be reached: {reason(error)}")


def libpq(dsn: str) -> str:
    """The DSN as libpq reads it: SQLAlchemy's name of the driver is removed."""
    return dsn.replace("postgresql+psycopg://", "postgresql://", 1)


def reason(error: Exception) -> str:
    """The first line of the driver's message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

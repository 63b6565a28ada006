"""Migrations: the revision of the database, the one of this installation, and the way from one to
the other.

A migration has one of two phases. `pre` only adds: collectors of the previous version continue.
`post` removes what they use: it runs once none of them is alive
(docs/decisions/0015-rolling-upgrades.md). The database stores the phase of each in
`applied_migration`, for collectors that do not know the migration itself.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.database import SUPPORTED, Database
from gpuledger_collector.storage.errors import EnvironmentLacks, SchemaBehind, TablesLocked
from gpuledger_collector.storage.locks import ABOUT, Lock
from gpuledger_collector.storage.rows import select_value
from gpuledger_collector.storage.server import replicas, schema_rights, schema_version

LOCK_TRIES = 60
LOCK_PAUSE_SECONDS = 2.0
"""Pause between attempts of a migration that did not get its locks: those queued behind it go
first.
"""
_PARTITION = re.compile(r"_(p\d{6}(\d\d)?|merging)$")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """A migration: its number, a line about it, its phase."""

    revision: str
    says: str
    phase: str

    def __str__(self) -> str:
        return f"{self.revision} {self.says}"


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Revision of the database (None: empty), the latest one of this installation, and the steps
    between them.
    """

    current: str | None
    head: str
    pending: tuple[Step, ...]
    server_version: int
    """As Postgres numbers versions: 180004 is 18.4."""
    ahead: tuple[str, ...] = ()
    """Revisions of the database that this installation does not know, each of phase `pre`."""

    @property
    def server_major(self) -> int:
        """The major version of the server."""
        return self.server_version // 10_000

    @property
    def server_text(self) -> str:
        """The version as people write it: 18.4."""
        return f"{self.server_major}.{self.server_version % 10_000}"

    @property
    def is_supported(self) -> bool:
        """Whether this server's major version is tested."""
        return self.server_major in SUPPORTED

    @property
    def serves(self) -> bool:
        """Whether this version can read and write the database as it is: only `post` migrations may
        be pending.
        """
        return self.current is not None and all(step.phase == "post" for step in self.pending)


@dataclass(frozen=True, slots=True)
class Upgraded:
    """Result of an upgrade."""

    head: str
    done: tuple[Step, ...]
    left: tuple[Step, ...]
    """From the first `post` migration on that was not asked for, or that `older` stand against."""
    older: tuple[str, ...]
    """Collectors that are alive and would not survive it, as `version on host`."""


def own_objects(_entry: Any, name: str | None, kind: str, _reflected: bool, _compared: Any) -> bool:
    """Whether an object belongs to the declared schema: all except partitions of days and months."""
    return not (kind == "table" and name is not None and _PARTITION.search(name))


def configuration() -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(schema_version.scripts()).replace("%", "%%"))
    return config


def status(dsn: str) -> SchemaStatus:
    """Compare the database with this installation.

    Raises ServerUnavailable, SchemaBehind for an unknown revision.
    """
    known = steps()
    head = next(reversed(known), "")
    with connected(dsn) as connection:
        if connection.scalar(sa.text("SELECT to_regclass('stretch') IS NOT NULL")):
            raise SchemaBehind(
                "this ledger was written before the first release and cannot be upgraded: keep its"
                " exports, and start with an empty database"
            )
        current = MigrationContext.configure(connection).get_current_revision()
        version = int(connection.scalar(sa.text("SHOW server_version_num")) or 0)
        if current is not None and current not in known:
            return SchemaStatus(current, head, (), version, _ahead(connection, current, head))
    revisions = list(known)
    begin = 0 if current is None else revisions.index(current) + 1
    return SchemaStatus(current, head, tuple(known[name] for name in revisions[begin:]), version)


def steps() -> dict[str, Step]:
    """Every migration of this installation by its number, oldest first."""
    scripts_known = list(ScriptDirectory.from_config(configuration()).walk_revisions())
    return {
        script.revision: Step(script.revision, script.doc, getattr(script.module, "phase", "pre"))
        for script in reversed(scripts_known)
    }


def head() -> str:
    """The latest migration of this installation."""
    return next(reversed(steps()), "")


def _ahead(connection: sa.Connection, current: str, head: str) -> tuple[str, ...]:
    """List the unknown revisions between `head` and the database's.

    Raises SchemaBehind unless each is `pre`.
    """
    table = connection.scalar(sa.text("SELECT to_regclass('applied_migration')"))
    rows = (
        connection.execute(sa.text("SELECT revision, follows, phase FROM applied_migration"))
        if table
        else ()
    )
    recorded = {revision: (follows, phase) for revision, follows, phase in rows}
    unknown: list[str] = []
    at = current
    # Walk back from the database's revision to ours; `at in unknown` guards against a cycle in the
    # records.
    while at != head:
        follows, phase = recorded.get(at, ("", ""))
        if phase != "pre" or at in unknown:
            raise SchemaBehind(
                f"the database is at revision {current!r}, which this version of gpuledger does not"
                " know: it was migrated by a newer one; install that one here too"
            )
        unknown.append(at)
        at = follows
    return tuple(reversed(unknown))


def upgrade(dsn: str, *, post: bool = True) -> Upgraded:
    """Bring the database to the latest revision.

    It stops before a `post` migration when `post` is False, unless the database is new, and while
    an older collector is alive. Row-level security is enabled afterwards, and partitions are
    allowed to every session, where this user may. Raises StorageError.
    """
    before = status(dsn)
    if not before.is_supported:
        raise EnvironmentLacks(
            f"the server is PostgreSQL {before.server_major}; gpuledger works with {SUPPORTED[0]}"
            f" to {SUPPORTED[-1]}"
        )
    if before.ahead:
        return Upgraded(before.head, (), (), ())
    try:
        return _run(dsn, before, post=post)
    finally:
        with _database(dsn).connect() as connection:
            row_level_security.enable(connection, LOCK_TRIES, LOCK_PAUSE_SECONDS)
            schema_rights.grant_to_self(connection)


def _run(dsn: str, before: SchemaStatus, *, post: bool) -> Upgraded:
    done: list[Step] = []
    for place, step in enumerate(before.pending):
        older: tuple[str, ...] = ()
        if step.phase == "post" and before.current is not None:
            older = _older(dsn, step.revision)
            if older or not post:
                return Upgraded(before.head, tuple(done), before.pending[place:], older)
        done.append(step)
        # Steps are collected and migrated together up to the next `post` one, before which living
        # collectors are counted.
        following = before.pending[place + 1 : place + 2]
        if not following or following[0].phase == "post" or step.phase == "post":
            _migrate(dsn, step.revision)
    return Upgraded(before.head, tuple(done), (), ())


def _older(dsn: str, revision: str) -> tuple[str, ...]:
    """List collectors that are alive and do not know this revision."""
    known = list(steps())
    with _database(dsn).connect() as connection:
        return tuple(replicas.list_alive(connection, known[: known.index(revision)]))


def _migrate(dsn: str, revision: str) -> None:
    """Migrate up to this revision, each step in a transaction of its own, retrying while tables are
    locked.
    """
    # A migration waits only briefly for each lock: whoever queues behind a waiting ALTER TABLE
    # waits as well.
    for tried in range(1, LOCK_TRIES + 1):
        config = configuration()
        with _alone(dsn), connected(dsn) as connection:
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, revision)
                return
            except (DBAPIError, psycopg.errors.LockNotAvailable) as error:
                # SQLAlchemy wraps the driver's error; anything but a lock that was not available is
                # final.
                if not isinstance(getattr(error, "orig", error), psycopg.errors.LockNotAvailable):
                    raise
        log.info("a table is locked by others; try %d of %d", tried, LOCK_TRIES)
        time.sleep(LOCK_PAUSE_SECONDS)
    raise TablesLocked(
        f"a table that the migration to {revision} changes was locked by others at each of"
        f" {LOCK_TRIES} tries: end the long transaction that pg_stat_activity shows, and run it"
        " again; what was migrated before stays"
    )


def _database(dsn: str) -> Database:
    return Database(dsn, application="gpuledger-migrate")


def _alone(dsn: str) -> AbstractContextManager[object]:
    """Wait until nobody else migrates.

    The lock's table is created here: the first migration already needs the lock.
    """

    database = _database(dsn)
    # Of two that make it at the same time, one is told that the other has made it.
    with (
        database.connect() as connection,
        suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable),
    ):
        if select_value(connection, "SELECT to_regclass(%s)", (Lock.MIGRATIONS,)) is None:
            connection.execute(
                f"CREATE TABLE {Lock.MIGRATIONS} (); COMMENT ON TABLE {Lock.MIGRATIONS} IS"
                f" '{ABOUT}'"
            )
    return database.hold(Lock.MIGRATIONS)


def require_current(dsn: str) -> None:
    """Raise SchemaBehind unless this version can read and write the database: at most `pre`
    migrations ahead of it, and none but `post` ones behind.
    """
    schema = status(dsn)
    if not schema.serves:
        raise SchemaBehind(
            f"the database lacks {len(schema.pending)} migration(s): run `gpuledger db upgrade`"
        )


class connected:  # noqa: N801 - used as a function in a with statement
    """A short-lived SQLAlchemy connection over one of ours, with the same checks."""

    def __init__(self, dsn: str) -> None:
        def create() -> psycopg.Connection[tuple[Any, ...]]:
            connection = _database(dsn).connect()
            connection.autocommit = False  # as SQLAlchemy expects it
            return connection

        self._engine = sa.create_engine(
            "postgresql+psycopg://", creator=create, poolclass=sa.NullPool
        )

    def __enter__(self) -> sa.Connection:
        """Open it. Raises ServerUnavailable, EnvironmentLacks."""
        self._connection = self._engine.connect()
        return self._connection

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._connection.close()
        self._engine.dispose()

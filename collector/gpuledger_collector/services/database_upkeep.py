"""What an administrator does to the database: migrate, back up, restore, distribute, list its
partitions, and let dashboards read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger_collector.services.close import verify
from gpuledger_collector.storage import distribution
from gpuledger_collector.storage.access import readers
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.database import SUPPORTED, Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.server import backup, base_backup, migrate
from gpuledger_collector.storage.server.backup import NotABackup, NotEmpty
from gpuledger_collector.storage.server.base_backup import Member, NotContinued
from gpuledger_collector.storage.server.embedded import EmbeddedServer, InUse
from gpuledger_collector.storage.server.migrate import SchemaStatus, Upgraded
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_collector.storage.telemetry.partitions import Partition

__all__ = [
    "SUPPORTED",
    "InUse",
    "Member",
    "NotABackup",
    "NotContinued",
    "NotEmbedded",
    "NotEmpty",
    "Partition",
    "Restored",
    "RevokedReader",
    "SchemaStatus",
    "back_up",
    "back_up_changes",
    "distribute_tables",
    "finish_restore",
    "grant_reader",
    "list_partitions",
    "restore",
    "restore_folder",
    "revoke_reader",
    "schema_status",
    "statements_to_distribute",
    "statements_to_grant",
    "statements_to_revoke",
    "upgrade_schema",
]


def schema_status(database: Database) -> SchemaStatus:
    """Which versions server and schema have, and the migrations that are pending."""
    return migrate.status(database.dsn)


def upgrade_schema(database: Database, *, post: bool) -> Upgraded:
    """Migrate the schema; `post`: also remove what only older collectors use."""
    return migrate.upgrade(database.dsn, post=post)


def list_partitions(database: Database) -> list[Partition]:
    """The partitions of the big tables, days and months, with their sizes."""
    with database.transaction() as connection:
        return partitions.listing(connection, sized=True)


def statements_to_distribute(database: Database, shards: int) -> list[str]:
    """The statements that would spread samples and usage over the workers of a Citus cluster."""
    with database.connect() as connection:
        return distribution.plan(connection, shards)


def distribute_tables(database: Database, shards: int) -> list[str]:
    """Spread samples and usage over the workers of a Citus cluster; return the statements."""
    with database.connect() as connection:
        return distribution.distribute(connection, shards)


def back_up(database: Database, file: Path) -> int:
    """Write everything that the ledger holds to a file; return its size in bytes."""
    return backup.backup(database.dsn, file)


class NotEmbedded(StorageError):
    """The database is one given by DSN, whose base backups are its administrator's."""


def back_up_changes(database: Database, folder: Path, now_ms: int) -> Member:
    """Write what changed since the last backup in a folder, everything at the first.

    Raises NotEmbedded, NotContinued.
    """
    if not isinstance(database.server, EmbeddedServer):
        raise NotEmbedded(
            "--incremental is for the embedded database: your own Postgres has `pg_basebackup"
            " --incremental` (17 or newer) and archived WAL"
        )
    return base_backup.back_up(database.server, folder, now_ms)


def restore_folder(server: EmbeddedServer | None, folder: Path, until: str | None) -> str:
    """Restore what `back_up_changes` wrote as the database of a data folder; return the name of the
    member. `finish_restore` does the rest, once the server runs.

    Raises NotEmbedded, NotABackup, NotEmpty, InUse.
    """
    if server is None:
        raise NotEmbedded(
            f"{folder} restores into a data folder (GPULEDGER_DATA_DIR) only: into a database of"
            " your own restore a file of `gpuledger db backup`"
        )
    return base_backup.restore(server, folder, until)


@dataclass(frozen=True, slots=True)
class Restored:
    """The migrations that a restored backup needed, and the closed months whose seal is broken."""

    migrated: Sequence[migrate.Step]
    broken_seals: Sequence[str]


def restore(database: Database, file: Path) -> Restored:
    """Restore a backup into an empty database, migrate its schema, and check every seal.

    Raises NotABackup, NotEmpty.
    """
    backup.restore(database.dsn, file)
    return finish_restore(database)


def finish_restore(database: Database) -> Restored:
    """Migrate the schema of a database that was restored, and check every seal."""
    migrated = migrate.upgrade(database.dsn).done
    with database.transaction(Lock.LEDGER) as connection:
        closed = periods.list_closed(connection)
        broken = [period.name for period in closed if not verify(connection, period).holds]
    return Restored(migrated, broken)


def statements_to_grant(
    database: Database, role: str, password: str | None, owner: Mapping[str, str] | None
) -> list[str]:
    """The statements that would let a role read; a password is not shown."""
    with database.transaction() as connection:
        return readers.script(connection, role, password, owner)


def grant_reader(
    database: Database, role: str, password: str | None, owner: Mapping[str, str] | None
) -> list[str]:
    """Let a role read rollups and ledgers, or one owner's part; return the statements that are left
    to an administrator.
    """
    with database.transaction() as connection:
        return readers.grant(connection, role, password, owner)


def statements_to_revoke(database: Database, role: str) -> list[str]:
    """The statements that would take a role's rights away."""
    with database.transaction() as connection:
        return [
            step.statement.as_string(connection) for step in readers.revocation(connection, role)
        ]


@dataclass(frozen=True, slots=True)
class RevokedReader:
    """How many sessions of the role were ended, and the statements left to an administrator."""

    ended: int
    left: Sequence[str]


def revoke_reader(database: Database, role: str, now_ms: int) -> RevokedReader:
    """Take a role's rights and its login away, and end its sessions."""
    with database.transaction() as connection:
        left = readers.revoke(connection, role, now_ms)
    # After the commit: no session that began before keeps reading, and none begins.
    with database.transaction() as connection:
        ended, unable = readers.end_sessions(connection, role)
    return RevokedReader(ended, [*left, *filter(None, [unable])])

"""The schema's version: what the database has, what this installation brings, and the way from one to the other.

A migration is of one of two phases. `pre` only adds: collectors of the version before go on beside it. `post` takes
away what they use: it runs once none of them is alive (docs/decisions/0015-old-and-new-together.md). The database
keeps the phase of each in `schema_step`, for collectors that do not know the migration itself.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from gpuledger_collector.storage import engine, viewer_wall
from gpuledger_collector.storage.errors import EnvironmentLacks, SchemaBehind, ServerUnavailable

_PARTITION = re.compile(r"_p\d{8}$")


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Revision of the database (None: empty), the newest one of this installation, and what lies between them."""

    current: str | None
    head: str
    pending: tuple[str, ...]
    server_version: int
    """As Postgres numbers it: 180004 is 18.4."""

    @property
    def server_major(self) -> int:
        """The major version of the server."""
        return self.server_version // 10_000

    @property
    def supported(self) -> bool:
        """Whether this server's major version is one that we test."""
        return self.server_major in engine.SUPPORTED

    @property
    def up_to_date(self) -> bool:
        """Whether nothing is left to migrate."""
        return self.current == self.head


def own_objects(_entry: Any, name: str | None, kind: str, _reflected: bool, _compared: Any) -> bool:
    """Which objects of a database belong to the declared schema: all but the partitions of a day."""
    return not (kind == "table" and name is not None and _PARTITION.search(name))


def scripts() -> Path:
    """The folder of the migrations: inside an installed package, or in the repository beside it."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_migrations", package.parents[1] / "alembic"):
        if (folder / "env.py").exists():
            return folder
    raise EnvironmentLacks("this installation holds no migrations: install gpuledger again")


def configuration() -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    return config


def status(dsn: str) -> SchemaStatus:
    """What the database has and lacks. Raises ServerUnavailable, or SchemaBehind for a revision unknown here."""
    directory = ScriptDirectory.from_config(configuration())
    head = directory.get_current_head() or ""
    with connected(dsn) as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        version = int(connection.scalar(sa.text("SHOW server_version_num")) or 0)
    known = {script.revision: f"{script.revision} {script.doc}" for script in directory.walk_revisions()}
    if current is not None and current not in known:
        raise SchemaBehind(
            f"the database is at revision {current!r}, which this version of gpuledger does not know: "
            "it was migrated by a newer one; install that one here too"
        )
    pending = [known[script.revision] for script in directory.iterate_revisions(head, current or "base")]
    return SchemaStatus(current, head, tuple(reversed(pending)), version)


def upgrade(dsn: str) -> SchemaStatus:
    """Bring the database to the newest revision; what was pending before is in the answer's `pending`.

    The wall before viewers is raised after it, where this user may.
    """
    before = status(dsn)
    if not before.supported:
        raise EnvironmentLacks(
            f"the server is PostgreSQL {before.server_major}; gpuledger works with {engine.SUPPORTED[0]} to "
            f"{engine.SUPPORTED[-1]}"
        )
    if not before.up_to_date:
        config = configuration()
        with connected(dsn) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    with engine.open_connection(dsn, application="gpuledger-migrate") as opened:
        viewer_wall.lift(opened)
    return before


def require_current(dsn: str) -> None:
    """Raise SchemaBehind unless the database is at this installation's revision."""
    found = status(dsn)
    if not found.up_to_date:
        raise SchemaBehind(f"the database lacks {len(found.pending)} migration(s): run `gpuledger db upgrade`")


class connected:  # noqa: N801 - used as a function in a with statement
    """A SQLAlchemy connection of one short life; what the driver says becomes one sentence."""

    def __init__(self, dsn: str) -> None:
        self._engine = sa.create_engine(
            "postgresql+psycopg://", connect_args=engine.parameters(dsn, "gpuledger-migrate"), poolclass=sa.NullPool
        )

    def __enter__(self) -> sa.Connection:
        """Open it. Raises ServerUnavailable."""
        try:
            self._connection = self._engine.connect()
        except DBAPIError as error:
            raise ServerUnavailable(f"the database cannot be reached: {engine.reason(error.orig or error)}") from error
        return self._connection

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._connection.close()
        self._engine.dispose()

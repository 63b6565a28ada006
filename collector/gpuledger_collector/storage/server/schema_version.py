"""Whether a database has the latest revision of this installation, as every command and readiness
probe asks.

One row and the names of the migrations' files answer it. storage.server.migrate is imported only
when the answer is no, because importing Alembic and SQLAlchemy takes longer than most commands.
"""

from __future__ import annotations

from pathlib import Path

from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import EnvironmentLacks
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_value, select_values


def scripts() -> Path:
    """The folder of the migrations: in an installed package, or in the repository."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_migrations", package.parents[1] / "alembic"):
        if (folder / "env.py").exists():
            return folder
    raise EnvironmentLacks("this installation holds no migrations: install gpuledger again")


def newest() -> str:
    """The latest migration of this installation, by the names of the files, which begin with four
    digits.
    """
    return max(
        (file.name[:4] for file in (scripts() / "versions").glob("[0-9][0-9][0-9][0-9]_*.py")),
        default="",
    )


def is_newest(dsn: str, *, secured: bool = False) -> bool:
    """Whether a database has exactly the latest revision; `secured`: and row-level security of this
    version.

    Raises ServerUnavailable.
    """
    with Database(dsn, application="gpuledger-migrate").connect() as connection:
        return has_newest(connection) and (not secured or row_level_security.is_enabled(connection))


def has_newest(connection: Connection) -> bool:
    """Whether the database has exactly the latest revision; an empty one has none."""
    if select_value(connection, "SELECT to_regclass('alembic_version')") is None:
        return False
    return select_values(connection, "SELECT version_num FROM alembic_version") == [newest()]

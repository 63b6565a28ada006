"""Whether a database has the newest revision of this installation: what every command and every readiness probe asks.

The answer is almost always yes, and then one row and the names of the files say so. Only where it is no does somebody
need storage.migrate, which knows the way: importing Alembic and SQLAlchemy takes longer than most commands work.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

from gpuledger_collector.storage import database as engine
from gpuledger_collector.storage.access import row_level_security as row_level_security
from gpuledger_collector.storage.errors import EnvironmentLacks


def scripts() -> Path:
    """The folder of the migrations: inside an installed package, or in the repository beside it."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_migrations", package.parents[1] / "alembic"):
        if (folder / "env.py").exists():
            return folder
    raise EnvironmentLacks("this installation holds no migrations: install gpuledger again")


def newest() -> str:
    """The newest migration of this installation: their files begin with their numbers, which have four digits."""
    return max((file.name[:4] for file in (scripts() / "versions").glob("[0-9][0-9][0-9][0-9]_*.py")), default="")


def is_newest(dsn: str, *, walled: bool = False) -> bool:
    """Whether a database has exactly the newest revision; `walled`: and this version's wall before viewers stands.

    Raises ServerUnavailable.
    """
    with engine.open_connection(dsn, application="gpuledger-migrate") as connection:
        try:
            found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        except psycopg.errors.UndefinedTable:
            return False
        return found == [(newest(),)] and (not walled or row_level_security.stands(connection))

"""Where the parts meet: settings become a database, ports get their adapters, jobs their clock.

Below this module nothing reads the clock, the environment or a global.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpuledger_collector.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from gpuledger_collector.storage.embedded import EmbeddedServer


@dataclass
class Database:
    """A database that is up and migrated. `server` is the embedded one, None for a database given by DSN."""

    dsn: str
    server: EmbeddedServer | None = None

    @cached_property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, made when first asked for."""
        from gpuledger_collector.storage import engine

        return engine.connect(self.dsn)

    def close(self) -> None:
        """Close the engine's connections, if there is one."""
        made = self.__dict__.pop("engine", None)
        if made is not None:
            made.dispose()


@contextlib.contextmanager
def database(settings: Settings, *, migrated: bool = True) -> Iterator[Database]:
    """The database of these settings: the one by DSN, else the embedded one, started if need be and stopped after.

    The embedded one is migrated; of an outside one it is only required that someone did. `migrated=False` leaves
    the schema alone. Raises StorageError with a sentence for people.
    """
    given = settings.database_dsn()
    if given is not None:
        opened = Database(given)
        if migrated:
            from gpuledger_collector.storage import migrate

            migrate.require_current(given)
        try:
            yield opened
        finally:
            opened.close()
        return
    from gpuledger_collector.storage.embedded import EmbeddedServer

    server = EmbeddedServer(settings.data_dir, settings.embedded_user or None)
    opened = Database(server.acquire(), server)
    try:
        if migrated:
            from gpuledger_collector.storage import migrate

            migrate.upgrade(opened.dsn)
        yield opened
    finally:
        opened.close()
        server.release()

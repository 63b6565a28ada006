"""Heartbeats: which collectors are alive, and which of them a migration would break.

A heartbeat is a row, not a lock or a name in pg_stat_activity, so that it survives a restart of the
database and a connection pooler. Instants are the database's, so that clocks of replicas need not
agree.
"""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Collection
from typing import Any

import psycopg

from gpuledger_collector import __version__
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.rows import select_value
from gpuledger_common.instants import to_datetime

BEAT_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""After a heartbeat that failed: /readyz says 503 until the next one is written."""
ALIVE_SECONDS = 60
"""How long after its last heartbeat a collector counts as alive."""

log = logging.getLogger(__name__)


class Presence:
    """The heartbeat of this process. `revision` is the newest migration that it knows.

    `last_error` returns when and why batches could last not be written.
    """

    def __init__(
        self,
        database: Database,
        revision: str,
        last_error: Callable[[], tuple[int, str] | None] = lambda: None,
    ) -> None:
        self.id = uuid.uuid4()
        self.error = ""
        """Why the last heartbeat could not be written; empty when it was."""
        self._last_error = last_error
        self._database = database
        self._revision = revision
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start beating; an unavailable database is tried again at the next beat."""
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        """Record that this process is alive, and delete rows that were silent for a day."""
        failed_ms, reason = self._last_error() or (None, "")
        failed_at = None if failed_ms is None else to_datetime(failed_ms)
        # Each replica removes the rows of dead ones, so none has to be elected for it.
        self._execute(
            "WITH silent AS (DELETE FROM replica WHERE seen_at < now() - interval '1 day') INSERT"
            " INTO replica (id, host, version, revision, started_at, seen_at, last_error,"
            " last_error_at) VALUES (%s, %s, %s, %s, now(), now(), %s, %s) ON CONFLICT (id) DO"
            " UPDATE SET seen_at = now(), last_error = excluded.last_error, last_error_at ="
            " excluded.last_error_at",
            (self.id, socket.gethostname(), __version__, self._revision, reason, failed_at),
        )

    def stop(self) -> None:
        """Stop beating and delete the row of this process."""
        self._ended.set()
        self._thread.join(BEAT_SECONDS)
        self._execute("DELETE FROM replica WHERE id = %s", (self.id,))

    def _run(self) -> None:
        while not self._ended.wait(RETRY_SECONDS if self.error else BEAT_SECONDS):
            self.beat()

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            with self._database.connect() as connection:
                connection.execute(statement, values)
            self.error = ""
        except (psycopg.Error, StorageError) as error:
            self.error = str(error).partition("\n")[0]
            log.info("no heartbeat now: %s", str(error).partition("\n")[0])


def list_alive(connection: psycopg.Connection[Any], revisions: Collection[str]) -> list[str]:
    """List live collectors that know no later migration than one of these, as `version on host`."""
    if select_value(connection, "SELECT to_regclass('replica')") is None:
        return []
    rows = connection.execute(
        "SELECT version, host FROM replica WHERE revision = ANY(%s) AND seen_at > now() -"
        " make_interval(secs => %s) ORDER BY host, version",
        (list(revisions), ALIVE_SECONDS),
    )
    return [f"{version} on {host}" for version, host in rows]


def has_mixed_versions(connection: psycopg.Connection[Any]) -> bool:
    """Whether live collectors know different migrations: an upgrade from one to the next goes on."""
    return bool(
        select_value(
            connection,
            "SELECT count(DISTINCT revision) > 1 FROM replica WHERE seen_at > now() -"
            " make_interval(secs => %s)",
            (ALIVE_SECONDS,),
        )
    )

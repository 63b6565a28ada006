"""The database sessions of one question, so that what it runs can be cancelled from another thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import psycopg

from gpuledger_collector.storage.errors import QuestionAbandoned
from gpuledger_collector.storage.locks import Connection

CANCEL_SECONDS = 5.0
"""How long the server may take to accept a cancellation."""


class Sessions:
    """The sessions that one question has opened. Its thread adds them, another one cancels."""

    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._is_abandoned = False
        self._lock = threading.Lock()

    def add(self, connection: Connection) -> None:
        """Add a session. Raises QuestionAbandoned when nobody waits for its answer any more."""
        with self._lock:
            self._connections = [known for known in self._connections if not known.closed]
            self._connections.append(connection)
            is_abandoned = self._is_abandoned
        if is_abandoned:
            raise QuestionAbandoned

    def cancel(self) -> None:
        """Cancel what runs now, and refuse new sessions. What begins in between needs another call."""
        with self._lock:
            self._is_abandoned = True
            connections = [connection for connection in self._connections if not connection.closed]
        for connection in connections:
            with contextlib.suppress(psycopg.Error):  # it has ended meanwhile
                connection.cancel_safe(timeout=CANCEL_SECONDS)


_current: ContextVar[Sessions | None] = ContextVar("sessions", default=None)


@contextlib.contextmanager
def collected_in(sessions: Sessions) -> Iterator[None]:
    """Collect the sessions that are opened while the block runs, also by tasks and threads that it starts."""
    token = _current.set(sessions)
    try:
        yield
    finally:
        _current.reset(token)


def note_session(connection: Connection) -> None:
    """Add a new session to those of the current question, if any. Raises QuestionAbandoned, and closes it."""
    if (sessions := _current.get()) is None:
        return
    try:
        sessions.add(connection)
    except QuestionAbandoned:
        connection.close()
        raise

"""What one question holds: its database sessions, so that they can be cancelled, and lines of the
ledger in memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import psycopg

from gpuledger_collector.storage.errors import QuestionAbandoned, TooManyLines
from gpuledger_collector.storage.locks import Connection

CANCEL_SECONDS = 5.0
"""How long the server may take to accept a cancellation."""
LARGE_LINES = 20_000
"""Lines of the ledger from which on an answer is large: one at a time is in memory."""
MOST_LINES_IN_MEMORY = 250_000
"""A month of 2,000 GPUs by workload has 170,000; a line takes about 1 KB."""
LOOK_SECONDS = 0.1
"""How soon a question that waits for its turn notices that nobody waits for it."""


class Sessions:
    """The sessions that one question has opened. Its thread adds them, another one cancels.

    `large` is held by the question of this process whose answer is large.
    """

    def __init__(self, large: threading.Lock | None = None) -> None:
        self._large = large or threading.Lock()
        self._is_large = False
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

    def admit_lines(self, count: int) -> None:
        """Wait until this question may hold so many lines.

        Raises TooManyLines, QuestionAbandoned.
        """
        if count > MOST_LINES_IN_MEMORY:
            raise TooManyLines(MOST_LINES_IN_MEMORY)
        if count <= LARGE_LINES or self._is_large:
            return
        while not self._large.acquire(timeout=LOOK_SECONDS):
            if self._is_abandoned:
                raise QuestionAbandoned
        self._is_large = True

    def release_lines(self) -> None:
        """Let another large answer begin; call it once, when the question has ended."""
        if self._is_large:
            self._large.release()

    def cancel(self) -> None:
        """Cancel what runs now, and refuse new sessions.

        What begins in between needs another call.
        """
        with self._lock:
            self._is_abandoned = True
            connections = [connection for connection in self._connections if not connection.closed]
        for connection in connections:
            with contextlib.suppress(psycopg.Error):  # it has ended meanwhile
                connection.cancel_safe(timeout=CANCEL_SECONDS)


_current: ContextVar[Sessions | None] = ContextVar("sessions", default=None)


@contextlib.contextmanager
def collected_in(sessions: Sessions) -> Iterator[None]:
    """Collect the sessions that are opened while the block runs, also by tasks and threads that it
    starts.
    """
    token = _current.set(sessions)
    try:
        yield
    finally:
        _current.reset(token)


def line_limit() -> str:
    """The LIMIT of a statement that reads lines of the ledger; empty outside of a question."""
    return "" if _current.get() is None else f" LIMIT {MOST_LINES_IN_MEMORY + 1}"


def admit_lines(count: int) -> None:
    """Wait until the current question, if any, may hold so many lines.

    Raises TooManyLines, QuestionAbandoned.
    """
    if (sessions := _current.get()) is not None:
        sessions.admit_lines(count)


def note_session(connection: Connection) -> None:
    """Add a new session to those of the current question, if any.

    Raises QuestionAbandoned, and closes it.
    """
    if (sessions := _current.get()) is None:
        return
    try:
        sessions.add(connection)
    except QuestionAbandoned:
        connection.close()
        raise

"""Tokens of agents and readers: listed, created, rotated and revoked, and read by the collector
that admits by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import psycopg

from gpuledger_collector.accounting.tokens import ListedToken, Token
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.access.reader_watch import ReaderWatch
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection

Answer = TypeVar("Answer")
LOCK_SECONDS = 300
"""How long a change of a token waits for others: closing a month writes the audit log for a while.
"""


def list_tokens(database: Database, now_ms: int) -> list[ListedToken]:
    """Every token that was ever created, in that order."""
    with database.transaction() as connection:
        return [ListedToken(token, token.live(now_ms)) for token in tokens.list_all(connection)]


def create_token(database: Database, draft: Token, *, dry_run: bool = False) -> tuple[Token, str]:
    """Store a new token; return it and its secret, of which only the hash is kept.

    Raises TokenRefused.
    """
    with _changing(database, dry_run) as connection:
        return tokens.create(connection, draft)


def revoke_tokens(
    database: Database, which: str, now_ms: int, *, dry_run: bool = False
) -> list[Token]:
    """Revoke the valid tokens of a name, or the one of a number. Raises TokenRefused."""
    with _changing(database, dry_run) as connection:
        return tokens.revoke(connection, which, now_ms)


def rotate_token(
    database: Database, which: str, now_ms: int, old_until_ms: int, *, dry_run: bool = False
) -> tuple[Token, str]:
    """Create a successor of a token, which itself stays valid until `old_until_ms`.

    Raises TokenRefused.
    """
    with _changing(database, dry_run) as connection:
        return tokens.rotate(connection, which, now_ms, old_until_ms)


@contextlib.contextmanager
def _changing(database: Database, dry_run: bool) -> Iterator[Connection]:
    """A transaction that no reader of the database delays: meanwhile the sessions that it waits for
    are ended.

    Raises StorageError when something else delays it for too long.
    """
    try:
        with database.transaction(dry_run=dry_run) as connection, ReaderWatch(database):
            # Readers are ended meanwhile, so that only a writer can make this wait.
            connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            yield connection
    except psycopg.errors.LockNotAvailable as error:
        raise StorageError(
            f"nothing was changed: for {LOCK_SECONDS} s another session held the tokens or the"
            " audit log; end what pg_blocking_pids shows, and try again"
        ) from error


@dataclass(slots=True)
class TokenStore:
    """Tokens as the collector reads them, over one connection that is reopened when it is lost.

    Not thread-safe.
    """

    database: Database
    _connection: Connection | None = field(default=None, init=False)

    def version(self) -> object:
        """The latest row of the audit log: every change of a token adds one."""
        return self._ask(tokens.log_head)

    def tokens(self) -> list[Token]:
        """Read all tokens."""
        return self._ask(tokens.list_all)

    def note(self, used: Mapping[int, int]) -> None:
        """Store when tokens were last used; a read replica cannot."""
        if not self.database.standby:
            self._ask(lambda connection: tokens.mark_used(connection, used))

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer:
        if self._connection is not None:
            try:
                return question(self._connection)
            except psycopg.Error:
                # Once more on a new connection: the old one may have been cut by a restart of the
                # database.
                self._connection.close()
                self._connection = None
        self._connection = self.database.connect()
        return question(self._connection)

"""The tokens that open the collector: those of the database, and those of files.

A request costs one hash and one look into a dictionary. Once a second at most one request asks the database whether
the audit log grew, for every change of a token writes a row there, and only then the tokens are read again: a
revocation is in force on every replica within `FRESH_SECONDS`, plus the time of one query. While the database is away
for longer, nobody is let in: a token may have been revoked meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

from gpuledger_collector.api.auth.principal import ANYBODY, Denied, Principal
from gpuledger_collector.api.auth.proxy import Proxy
from gpuledger_collector.storage.access.tokens import Token, hash_of

FRESH_SECONDS = 1.0
NEW_SECONDS = 0.1
"""How long a token that is not known, for it may be new, is refused without a look at the database."""
RETRY_SECONDS = 1.0
"""How long after a failure the database is not asked again."""
NOTE_SECONDS = 60.0
READERS = ("viewer", "finance", "admin")


class KeysAway(Exception):
    """Whether a token is valid cannot be said now; the message says why. Come back later."""


class TokenBook(Protocol):
    """Where tokens are kept."""

    def version(self) -> object:
        """Something that changes with every change of a token."""

    def tokens(self) -> Iterable[Token]:
        """All tokens, the dead ones too."""

    def note(self, used: Mapping[int, int]) -> None:
        """Tokens (id -> unix ms) were used."""


@dataclass(frozen=True, slots=True)
class Files:
    """Tokens of files, by hash: shared ones of agents, and of readers (None: readers need one, and there is none)."""

    agents: frozenset[str] = frozenset()
    readers: frozenset[str] | None = frozenset()

    @classmethod
    def of(cls, agents: Iterable[str], readers: Iterable[str] | None) -> Files:
        """From the secrets themselves."""
        return cls(
            frozenset(map(hash_of, agents)), None if readers is None else frozenset(hash_of(one) for one in readers)
        )


@dataclass(slots=True)
class Keys:
    """Decides who a request is. `asked_for`: tokens are asked for although none was made yet."""

    book: TokenBook
    now_ms: Callable[[], int]
    files: Files = field(default_factory=Files)
    asked_for: bool = False
    proxy: Proxy | None = None
    steady: Callable[[], float] = time.monotonic
    _tokens: Mapping[str, Token] = field(default_factory=dict, init=False)
    _made: frozenset[str] = field(default=frozenset(), init=False)
    """Roles for which a token was ever made: from then on tokens are asked for, also when all are revoked."""
    _version: object = field(default=None, init=False)
    _looked: float | None = field(default=None, init=False)
    _failed: tuple[float, str] | None = field(default=None, init=False)
    _noted: float = field(default=0.0, init=False)
    _used: dict[int, int] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _look: asyncio.Future[None] | None = field(default=None, init=False)
    """The look at the database that is under way."""

    def is_fresh(self, header: str) -> bool:
        """Whether what is known of the database is young enough to judge this header."""
        enough = FRESH_SECONDS if not header or _hashed(header) in self._tokens else NEW_SECONDS
        return self._looked is not None and self.steady() - self._looked < enough

    def refresh(self, header: str = "") -> None:
        """Look whether tokens changed, unless somebody did just now. Blocks. Raises KeysAway."""
        if self.is_fresh(header):
            return
        with self._lock:
            if self.is_fresh(header):
                return
            if self._failed is not None and self.steady() - self._failed[0] < RETRY_SECONDS:
                raise KeysAway(self._failed[1])
            begun = self.steady()
            try:
                version = self.book.version()
                if self._looked is None or version != self._version:
                    self._read()
                    self._version = version
                self._note()
            except Exception as error:
                self._failed = (self.steady(), f"the database that knows the tokens is away: {_first_line(error)}")
                raise KeysAway(self._failed[1]) from error
            self._looked, self._failed = begun, None

    async def refreshed(self, header: str) -> None:
        """`refresh` on a thread, and on one alone: whoever comes meanwhile waits for what it finds.

        What was looked up since the caller came is young enough, however long the look took.
        """
        came = self.steady()
        while not self.is_fresh(header) and (self._looked is None or self._looked < came):
            if self._look is None or self._look.done():
                self._look = asyncio.ensure_future(asyncio.to_thread(self.refresh, header))
            await asyncio.shield(self._look)

    def _read(self) -> None:
        found = list(self.book.tokens())
        self._tokens = {token.hash: token for token in found}
        self._made = frozenset(token.role for token in found)

    def _note(self) -> None:
        if not self._used or self.steady() - self._noted < NOTE_SECONDS:
            return
        used, self._used = self._used, {}
        self.book.note(used)
        self._noted = self.steady()

    def agent(self, header: str) -> Principal:
        """Who reports, by the Authorization header; call `refresh` before. Raises Denied."""
        if not (self.asked_for or self.files.agents or "agent" in self._made):
            return ANYBODY
        offered = _hashed(header)
        if offered in self.files.agents:
            return Principal("agent", "agent_token_file")
        who = self._principal(offered)
        if who is None:
            raise Denied(401, "the request carries no valid bearer token")
        if who.role != "agent":
            raise Denied(403, f"the token of {who.name} is for reading: reporting needs an agent's")
        return who

    def person(self, request: Request, header: str | None = None) -> Principal:
        """Who reads: by the Authorization header, else by what a trusted proxy says. Blocks. Raises Denied, KeysAway.

        `header` stands for the Authorization header where a page takes its token another way.
        """
        offered = request.headers.get("authorization", "") if header is None else header
        self.refresh(offered)
        identity = None if self.proxy is None or offered else self.proxy.identity(request)
        return self.reader(offered) if identity is None else self.named(identity)

    def named(self, identity: str) -> Principal:
        """The reader whose live token bears this name; call `refresh` before. Raises Denied when there is none."""
        now_ms = self.now_ms()
        for token in self._tokens.values():
            if token.name == identity and token.role in READERS and token.live(now_ms):
                return self._known(token, now_ms)
        raise Denied(403, "the proxy vouches for a name that no live reader's token has: ask an admin for one")

    def reader(self, header: str) -> Principal:
        """Who reads, by the Authorization header; call `refresh` before. Raises Denied."""
        known = any(role in self._made for role in READERS)
        if self.files.readers == frozenset() and not (self.asked_for or known):
            return ANYBODY
        if self.files.readers is None and not known:
            raise Denied(
                403,
                "reading beyond loopback needs a reader's token (gpuledger token create --role viewer), "
                "or reader_token_file in the collector's settings",
            )
        offered = _hashed(header)
        if self.files.readers and offered in self.files.readers:
            return Principal("finance", "reader_token_file")
        who = self._principal(offered)
        if who is None:
            raise Denied(401, "a reader's token is needed")
        if who.role == "agent":
            raise Denied(403, f"the token of {who.name} is an agent's: it may report and not read")
        return who

    def _principal(self, offered: str | None) -> Principal | None:
        token = None if offered is None else self._tokens.get(offered)
        now_ms = self.now_ms()
        if token is None or not token.live(now_ms):
            return None
        return self._known(token, now_ms)

    def _known(self, token: Token, now_ms: int) -> Principal:
        self._used[token.id] = now_ms
        role: Any = token.role
        return Principal(role, token.name, token.node, token.owner)


def _hashed(header: str) -> str | None:
    """The hash of the secret in a header. Looking up hashes leaks no timing that helps to guess a secret."""
    scheme, _, secret = header.partition(" ")
    secret = secret.strip()
    return hash_of(secret) if scheme.lower() == "bearer" and secret else None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

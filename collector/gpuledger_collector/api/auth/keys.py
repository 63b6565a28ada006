"""The tokens that open the collector: those of the database, and those of files.

A request costs one hash and one dictionary lookup. At most once a second one request asks the
database whether the audit log grew, because every change of a token writes a row there; only then
the tokens are read again. So a revocation is in force on every replica within `FRESH_SECONDS` plus
the time of one query. While the database is unavailable for longer, every request is refused: a
token may have been revoked meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from gpuledger_collector.accounting.tokens import Token, hash_of
from gpuledger_collector.api.auth.principal import ANYBODY, Denied, Principal
from gpuledger_collector.api.auth.proxy import Proxy
from gpuledger_collector.services.tokens import TokenStore

FRESH_SECONDS = 1.0
NEW_SECONDS = 0.1
"""How long an unknown token is refused without asking the database; it may have been created just
now.
"""
RETRY_SECONDS = 1.0
"""Back-off after a failed query."""
NOTE_SECONDS = 60.0
BASIC = "Basic "
READERS = ("viewer", "finance", "admin")


class KeysUnavailable(Exception):
    """Whether a token is valid cannot be determined now; the message says why. Retry later."""


@dataclass(frozen=True, slots=True)
class FileTokens:
    """Hashes of the tokens in files: shared ones of agents, and of readers (None: readers need one;
    there is none).
    """

    agents: frozenset[str] = frozenset()
    readers: frozenset[str] | None = frozenset()

    @classmethod
    def from_secrets(cls, agents: Iterable[str], readers: Iterable[str] | None) -> FileTokens:
        """Hash the secrets."""
        return cls(
            frozenset(map(hash_of, agents)),
            None if readers is None else frozenset(map(hash_of, readers)),
        )


@dataclass(slots=True)
class Keys:
    """Authenticates requests.

    `required`: a token is needed even before the first one was created.
    """

    book: TokenStore
    now_ms: Callable[[], int]
    files: FileTokens = field(default_factory=FileTokens)
    required: bool = False
    proxy: Proxy | None = None
    steady: Callable[[], float] = time.monotonic
    _tokens: Mapping[str, Token] = field(default_factory=dict, init=False)
    _roles: frozenset[str] = field(default=frozenset(), init=False)
    """Roles for which a token was ever created: from then on tokens are required, even when all are
    revoked.
    """
    _version: object = field(default=None, init=False)
    _checked_at: float | None = field(default=None, init=False)
    _failure: tuple[float, str] | None = field(default=None, init=False)
    _noted_at: float = field(default=0.0, init=False)
    _used: dict[int, int] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _refreshing: asyncio.Future[None] | None = field(default=None, init=False)

    def is_fresh(self, header: str) -> bool:
        """Whether the cached tokens are recent enough to judge this header."""
        max_age_s = FRESH_SECONDS if not header or _hash(header) in self._tokens else NEW_SECONDS
        return self._checked_at is not None and self.steady() - self._checked_at < max_age_s

    def refresh(self, header: str = "") -> None:
        """Read changed tokens, unless they are fresh. Blocks. Raises KeysUnavailable."""
        if self.is_fresh(header):
            return
        with self._lock:
            if self.is_fresh(header):
                return
            # While the database is away, requests are refused at once instead of queuing for a
            # timeout each.
            if self._failure is not None and self.steady() - self._failure[0] < RETRY_SECONDS:
                raise KeysUnavailable(self._failure[1])
            began = self.steady()
            try:
                # Asked before the tokens are read: a change in between makes the next check read
                # them again.
                version = self.book.version()
                if self._checked_at is None or version != self._version:
                    self._read()
                    self._version = version
                self._note()
            except Exception as error:
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                self._failure = (
                    self.steady(),
                    f"the database with the tokens is unavailable: {reason}",
                )
                raise KeysUnavailable(self._failure[1]) from error
            # From when the query began, not ended: what was changed meanwhile may not be in its
            # answer.
            self._checked_at, self._failure = began, None

    async def refresh_once(self, header: str) -> None:
        """`refresh` on one thread for all requests that wait meanwhile.

        A refresh that began after the caller came is recent enough, however long it took.
        """
        came = self.steady()
        while not self.is_fresh(header) and (self._checked_at is None or self._checked_at < came):
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.ensure_future(asyncio.to_thread(self.refresh, header))
            # Shielded: a sender that disconnects must not cancel the refresh for which others wait.
            await asyncio.shield(self._refreshing)

    def _read(self) -> None:
        tokens = list(self.book.tokens())
        self._tokens = {token.hash: token for token in tokens}
        self._roles = frozenset(token.role for token in tokens)

    def _note(self) -> None:
        """Write when tokens were used, once a minute."""
        if not self._used or self.steady() - self._noted_at < NOTE_SECONDS:
            return
        # Swapped first: uses that are noted meanwhile go into the new dictionary.
        used, self._used = self._used, {}
        self.book.note(used)
        self._noted_at = self.steady()

    @property
    def lets_anybody_report(self) -> bool:
        """Whether agents need no token: on loopback, until the first token of an agent is created."""
        return not (self.required or self.files.agents or "agent" in self._roles)

    def agent(self, header: str) -> Principal:
        """The reporting principal of an Authorization header; call `refresh` before.

        Raises Denied.
        """
        # Until the first token exists a collector on loopback works without any; from then on none
        # is let in without one.
        if self.lets_anybody_report:
            return ANYBODY
        offered = _hash(header)
        if offered in self.files.agents:
            return Principal("agent", "agent_token_file")
        principal = self._principal(offered)
        if principal is None:
            raise Denied(401, "the request carries no valid bearer token")
        if principal.role != "agent":
            raise Denied(
                403, f"the token of {principal.name} is for reading: reporting needs an agent's"
            )
        return principal

    def person(self, request: Request, header: str | None = None) -> Principal:
        """The reading principal of a request, by the Authorization header, else by a trusted
        proxy's header.

        `header` replaces the Authorization header where a page gets its token another way. Blocks.
        Raises Denied, KeysUnavailable.
        """
        offered = request.headers.get("authorization", "") if header is None else header
        self.refresh(offered)
        return self.identify(request, offered)

    def identify(self, request: Request, offered: str) -> Principal:
        """The reading principal of a request with this header; call `refresh` before.

        Raises Denied.
        """
        identity = None if self.proxy is None or offered else self.proxy.identity(request)
        return self.reader(offered) if identity is None else self.reader_named(identity)

    def reader_named(self, identity: str) -> Principal:
        """The reader whose live token has this name; call `refresh` before. Raises Denied."""
        now_ms = self.now_ms()
        for token in self._tokens.values():
            if token.name == identity and token.role in READERS and token.live(now_ms):
                return self._as_principal(token, now_ms)
        raise Denied(
            403, "the proxy vouches for a name that no live reader token has: ask an admin for one"
        )

    def reader(self, header: str) -> Principal:
        """The reading principal of an Authorization header; call `refresh` before.

        Raises Denied.
        """
        has_readers = any(role in self._roles for role in READERS)
        if self.files.readers == frozenset() and not (self.required or has_readers):
            return ANYBODY
        if self.files.readers is None and not has_readers:
            raise Denied(
                403,
                "this collector listens for other machines, so its pages need a reader's token and"
                " there is none yet: make one where it runs (gpuledger token create --role"
                " finance), or set reader_token_file",
            )
        offered = _hash(header)
        if self.files.readers and offered in self.files.readers:
            return Principal("finance", "reader_token_file", is_shared=True)
        principal = self._principal(offered)
        if principal is None:
            raise Denied(401, "a reader's token is needed")
        if principal.role == "agent":
            raise Denied(
                403, f"the token of {principal.name} is an agent's: it may report and not read"
            )
        return principal

    def _principal(self, offered: str | None) -> Principal | None:
        token = None if offered is None else self._tokens.get(offered)
        now_ms = self.now_ms()
        return (
            None if token is None or not token.live(now_ms) else self._as_principal(token, now_ms)
        )

    def _as_principal(self, token: Token, now_ms: int) -> Principal:
        self._used[token.id] = now_ms
        role: Any = token.role
        return Principal(role, token.name, token.node, token.owner)


def bearer_header(header: str) -> str:
    """The header as a bearer's: the password of HTTP Basic, which browsers ask for, is the token."""
    if not header.startswith(BASIC):
        return header
    try:
        plain = base64.b64decode(header.removeprefix(BASIC), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    # Any user name: browsers always ask for one.
    return f"Bearer {plain.partition(':')[2]}"


def _hash(header: str) -> str | None:
    """The hash of a bearer's secret.

    Looking up hashes leaks no timing that helps to guess a secret.
    """
    scheme, _, secret = header.partition(" ")
    secret = secret.strip()
    return hash_of(secret) if scheme.lower() == "bearer" and secret else None

"""Tokens: who may report and who may read, and until when."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


class TokenRefused(ValueError):
    """A token cannot be created or found; the message says why."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret.

    `id` 0: not stored yet. Instants are unix milliseconds, None: not yet.
    """

    id: int
    name: str
    role: str
    node: str | None
    owner: Mapping[str, str] | None
    hash: str
    made_ms: int
    expires_ms: int | None = None
    last_used_ms: int | None = None
    revoked_ms: int | None = None

    def live(self, at_ms: int) -> bool:
        """Whether it is valid at this instant."""
        return self.revoked_ms is None and (self.expires_ms is None or at_ms < self.expires_ms)

    def facts(self) -> dict[str, object]:
        """What the audit log records of it: everything except secret, hash and last use."""
        kept = ("id", "name", "role", "node", "owner", "made_ms", "expires_ms", "revoked_ms")
        return {name: getattr(self, name) for name in kept}


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token, and whether it is valid now."""

    token: Token
    is_live: bool

    @property
    def state(self) -> str:
        """Live, revoked or expired."""
        if self.is_live:
            return "live"
        return "expired" if self.token.revoked_ms is None else "revoked"


def hash_of(secret: str) -> str:
    """The SHA-256 of a secret, hexadecimal. Its 256 random bits need no slow hash and no salt."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()

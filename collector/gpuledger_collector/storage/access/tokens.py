"""Tokens in Postgres: only the hash of a secret is stored, rows are revoked, never deleted, and
changes are audited.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuledger_collector.accounting.tokens import Token, TokenRefused, hash_of
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import columns_of, select_as, select_value

PREFIX = "gpl_"
"""Prefix of secrets, so that scanners for leaked secrets recognize them."""
SECRET_BYTES = 32
LIVE_AT_ONCE = 2
"""Most valid tokens of one name: the one in use and its successor."""
_COLUMNS = columns_of(Token)


def new_secret() -> str:
    """A secret of 256 random bits behind the prefix."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def list_all(connection: Connection) -> list[Token]:
    """Read all tokens, invalid ones too, in the order of their creation."""
    return select_as(connection, Token, f"SELECT {_COLUMNS} FROM token ORDER BY id")


def create(connection: Connection, wanted: Token) -> tuple[Token, str]:
    """Store a new token like `wanted`; return it and its secret, which is shown only now.

    Raises TokenRefused when two of its name are valid, or when its name belongs to a token of
    another kind.
    """
    # Every change of a token is audited, so this lock also serializes the checks below with other
    # changes of tokens.
    locks.take(connection, Lock.AUDIT)
    same = [
        token
        for token in list_all(connection)
        if token.name == wanted.name and token.live(wanted.made_ms)
    ]
    if any(
        (token.role, token.node, token.owner) != (wanted.role, wanted.node, wanted.owner)
        for token in same
    ):
        raise TokenRefused(
            f"{wanted.name} is the name of a live token of another kind: choose another name"
        )
    if len(same) >= LIVE_AT_ONCE:
        raise TokenRefused(
            f"{LIVE_AT_ONCE} tokens of {wanted.name} live already: revoke one of them first"
        )
    secret = new_secret()
    token_id = select_value(
        connection,
        "INSERT INTO token (name, role, node, owner, hash, made_ms, expires_ms) VALUES (%s, %s, %s,"
        " %s::jsonb, %s, %s, %s) RETURNING id",
        (
            wanted.name,
            wanted.role,
            wanted.node,
            None if wanted.owner is None else json.dumps(dict(wanted.owner)),
            hash_of(secret),
            wanted.made_ms,
            wanted.expires_ms,
        ),
    )
    token = replace(wanted, id=token_id, hash=hash_of(secret))
    audit.record(
        connection, [audit.Change("token", token.name, None, token.facts())], wanted.made_ms
    )
    return token, secret


def revoke(connection: Connection, which: str, at_ms: int) -> list[Token]:
    """Revoke the valid tokens of a name, or the one of an id; return them.

    Raises TokenRefused when there is none.
    """
    live = _require_live(connection, which, at_ms)
    connection.execute(
        "UPDATE token SET revoked_ms = %s WHERE id = ANY(%s)", (at_ms, [token.id for token in live])
    )
    return _record_changes(
        connection, live, [replace(token, revoked_ms=at_ms) for token in live], at_ms
    )


def rotate(connection: Connection, which: str, at_ms: int, old_until_ms: int) -> tuple[Token, str]:
    """Create a successor of a valid token, which itself stays valid until `old_until_ms`.

    Raises TokenRefused when there is none, or when its rotation is not finished.
    """
    live = _require_live(connection, which, at_ms)
    if len(live) > 1:
        raise TokenRefused(f"{which} is being rotated already: revoke token {live[0].id} first")
    (old,) = live
    successor, secret = create(
        connection, replace(old, id=0, made_ms=at_ms, last_used_ms=None, expires_ms=None)
    )
    until = old_until_ms if old.expires_ms is None else min(old.expires_ms, old_until_ms)
    connection.execute("UPDATE token SET expires_ms = %s WHERE id = %s", (until, old.id))
    _record_changes(connection, [old], [replace(old, expires_ms=until)], at_ms)
    return successor, secret


def _require_live(connection: Connection, which: str, at_ms: int) -> list[Token]:
    locks.take(connection, Lock.AUDIT)
    live = [token for token in list_all(connection) if token.live(at_ms)]
    # Names first: a token may be called like the number of another one.
    matching = [token for token in live if token.name == which] or [
        token for token in live if str(token.id) == which
    ]
    if not matching:
        raise TokenRefused(
            f"no live token has the name or number {which}: gpuledger token list shows them"
        )
    return matching


def _record_changes(
    connection: Connection, old: Sequence[Token], new: Sequence[Token], at_ms: int
) -> list[Token]:
    pairs = zip(old, new, strict=True)
    audit.record(
        connection,
        [
            audit.Change("token", before.name, before.facts(), after.facts())
            for before, after in pairs
        ],
        at_ms,
    )
    return list(new)


def log_head(connection: Connection) -> object:
    """The latest row of the audit log: every change of a token adds one."""
    return connection.execute(
        "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1"
    ).fetchone()


def mark_used(connection: Connection, used: Mapping[int, int]) -> None:
    """Store when tokens (id -> unix ms) were last used."""
    connection.execute(
        "UPDATE token SET last_used_ms = greatest(last_used_ms, u.at_ms) "
        "FROM unnest(%s::bigint[], %s::bigint[]) AS u (id, at_ms) WHERE token.id = u.id",
        (list(used), list(used.values())),
    )

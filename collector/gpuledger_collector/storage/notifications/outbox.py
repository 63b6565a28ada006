"""The outbox in Postgres: messages put in with the change they tell of, and claimed by one sender at a time.

A message is first planned by the rules of its recipient (accounting.delivery), in one transaction that one replica
has at a time: it is to be sent by itself, or held for a digest. A digest is a message made in the transaction that
marks what it tells of as joined to it.

A claim is the lock of all sending, held by a session of the sender, so it ends with the sender, however that ends;
before every step of the message that session is asked whether it lives. A sender that lost its claim can therefore take
no further step, and the next one finds the message exactly as far as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.notifications import notification_rules as notification_rules
from gpuledger_collector.storage.notifications.delivery_rules import (
    DIGEST,
    Digest,
    Plan,
    Rules,
    Told,
    WriteDigest,
    plan,
    rules_of,
)
from gpuledger_collector.storage.notifications.messages import Content, Message

Connection = psycopg.Connection[tuple[Any, ...]]
KEEP_MS = 400 * 86_400_000
_COLUMNS = "key, kind, recipient, subject, text, html, attachments, made_ms, not_before_ms, thread, urgent, link"
OnStep = Callable[[str], None]


def put(connection: Connection, message: Message) -> bool:
    """Add a message inside the caller's transaction; False, and nothing done, when that recipient has that key."""
    content = message.content
    row = connection.execute(
        f"INSERT INTO outbox ({_COLUMNS}, state) VALUES "
        "(%s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, %s, 'waiting') "
        "ON CONFLICT (key, recipient) DO NOTHING RETURNING 1",
        (
            message.key,
            message.kind,
            message.recipient,
            content.subject,
            content.text,
            content.html,
            json.dumps(dict(content.attachments)),
            message.made_ms,
            message.not_before_ms,
            message.thread,
            message.urgent,
            content.link,
        ),
    ).fetchone()
    return row is not None


@dataclass(frozen=True)
class Box:
    """The outbox as its senders use it. `connect` opens an autocommit connection, two for each claim."""

    connect: Callable[[], Connection]

    def arrange(self, now_ms: int, write: WriteDigest, on_step: OnStep = lambda _: None) -> int:
        """Plan what is new, and make the digests that are due; how many digests were made."""
        with self.connect() as connection, connection.transaction():
            made = _arrange(connection, now_ms, write, on_step)
        on_step("arranged")
        return made

    def due(self, now_ms: int, limit: int, channels: Sequence[str]) -> list[int]:
        """Ids of planned messages of these channels whose time has come, oldest first."""
        with self.connect() as connection:
            return [row[0] for row in _due(connection, now_ms, limit, channels)]

    @contextmanager
    def claim(self, message_id: int, now_ms: int) -> Iterator[RowClaim | None]:
        """The message, ours alone inside the block; None when it is done. Waits for whoever sends another one."""
        with locks.held(self.connect, Lock.OUTBOX) as holder, self.connect() as connection:
            yield self._claimed(connection, holder, message_id, now_ms)

    def _claimed(self, connection: Connection, holder: Connection, message_id: int, now_ms: int) -> RowClaim | None:
        row = connection.execute(
            f"SELECT {_COLUMNS}, attempts, state FROM outbox WHERE id = %s AND not_before_ms <= %s "
            "AND state IN ('waiting', 'handing_over')",
            (message_id, now_ms),
        ).fetchone()
        if row is None:
            return None
        return RowClaim(connection, holder, message_id, _message(row), row[-2], row[-1] != "waiting")


def rehearse(
    connection: Connection, now_ms: int, write: WriteDigest, channels: Sequence[str], limit: int = 1000
) -> list[tuple[str, str]]:
    """Recipient and subject of what a round would send now, digests too; the caller's transaction is to be undone."""
    _arrange(connection, now_ms, write, lambda _: None)
    return [(row[1], row[2]) for row in _due(connection, now_ms, limit, channels)]


def _arrange(connection: Connection, now_ms: int, write: WriteDigest, on_step: OnStep) -> int:
    locks.take(connection, Lock.OUTBOX_PLAN)
    rules = notification_rules.recipients(connection)
    _plan(connection, rules, now_ms)
    on_step("planned")
    return _digests(connection, rules, now_ms, write, on_step)


def _due(connection: Connection, now_ms: int, limit: int, channels: Sequence[str]) -> list[tuple[Any, ...]]:
    """Id, recipient and subject of planned messages of these channels whose time has come, oldest first."""
    return connection.execute(
        "SELECT id, recipient, subject FROM outbox WHERE state IN ('waiting', 'handing_over') AND not_before_ms <= %s "
        "AND (planned_ms IS NOT NULL OR state = 'handing_over') "
        "AND CASE WHEN recipient ~ '^(slack|webhook):' THEN split_part(recipient, ':', 1) ELSE 'mail' END "
        "= ANY(%s) ORDER BY not_before_ms, id LIMIT %s",
        (now_ms, list(channels), limit),
    ).fetchall()


def _message(row: Sequence[Any]) -> Message:
    key, kind, recipient, subject, text, html, attachments, made_ms, not_before_ms, thread, urgent, link = row[:12]
    content = Content(subject, text, html, attachments, link)
    return Message(key, kind, recipient, content, made_ms, not_before_ms, thread, urgent)


def _plan(connection: Connection, rules: Mapping[str, Rules], now_ms: int) -> None:
    """Plans what nobody has looked at yet, urgent ones first; what waits for another attempt keeps to quiet hours."""
    rows = connection.execute(
        "SELECT id, kind, recipient, urgent, greatest(not_before_ms, %s), planned_ms IS NULL FROM outbox "
        "WHERE state = 'waiting' AND (planned_ms IS NULL OR not_before_ms <= %s) ORDER BY urgent DESC, made_ms, id",
        (now_ms, now_ms),
    ).fetchall()
    for number, kind, recipient, urgent, at_ms, new in rows:
        asked = rules_of(recipient, rules)
        if not new:
            # Its place in the day was found before: only the hour counts now.
            later = plan(asked, DIGEST, at_ms, urgent=urgent or kind in asked.pass_kinds, planned=lambda _: 0)
            if later.at_ms > at_ms:
                connection.execute("UPDATE outbox SET not_before_ms = %s WHERE id = %s", (later.at_ms, number))
            continue
        found = plan(asked, kind, at_ms, urgent=urgent, planned=_planned(connection, recipient))
        _keep_plan(connection, number, found)


def _keep_plan(connection: Connection, number: int, found: Plan) -> None:
    if found.joins:
        connection.execute(
            "UPDATE outbox SET state = 'held', planned_ms = %s, digest_ms = %s WHERE id = %s",
            (found.at_ms, found.at_ms, number),
        )
    else:
        connection.execute(
            "UPDATE outbox SET planned_ms = %s, not_before_ms = greatest(not_before_ms, %s) WHERE id = %s",
            (found.at_ms, found.at_ms, number),
        )


def _planned(connection: Connection, recipient: str) -> Callable[[Period], int]:
    def counted(day: Period) -> int:
        row = connection.execute(
            "SELECT count(*) FROM outbox WHERE recipient = %s AND planned_ms >= %s AND planned_ms < %s "
            "AND state NOT IN ('held', 'joined') AND kind <> %s",
            (recipient, day.start_ms, day.end_ms, DIGEST),
        ).fetchone()
        return 0 if row is None else int(row[0])

    return counted


def _digests(
    connection: Connection, rules: Mapping[str, Rules], now_ms: int, write: WriteDigest, on_step: OnStep
) -> int:
    """One digest a recipient of whatever of its messages is held and due."""
    due = connection.execute(
        "SELECT recipient, max(digest_ms) FROM outbox WHERE state = 'held' AND digest_ms <= %s GROUP BY 1 ORDER BY 1",
        (now_ms,),
    ).fetchall()
    for recipient, due_ms in due:
        rows = connection.execute(
            "SELECT id, kind, made_ms, subject, text, link FROM outbox WHERE recipient = %s AND state = 'held' "
            "AND digest_ms <= %s ORDER BY made_ms, id",
            (recipient, now_ms),
        ).fetchall()
        told = tuple(Told(*row[1:]) for row in rows)
        content = write(Digest(recipient, due_ms, rules_of(recipient, rules).zone, told))
        # The first message of a digest names it: no other digest can tell of it.
        key = f"{DIGEST}/{rows[0][0]}"
        put(connection, Message(key, DIGEST, recipient, content, now_ms, now_ms, DIGEST))
        on_step("digest_put")
        connection.execute(
            "UPDATE outbox SET state = 'joined', digest_id = (SELECT id FROM outbox WHERE key = %s AND recipient = %s) "
            "WHERE id = ANY(%s)",
            (key, recipient, [row[0] for row in rows]),
        )
        on_step("joined")
    if due:
        _plan(connection, rules, now_ms)
    return len(due)


@dataclass(frozen=True)
class RowClaim:
    """accounting.messages.Claim: `holder` is the session that holds the lock of all sending."""

    connection: Connection
    holder: Connection
    id: int
    message: Message
    attempts: int
    in_doubt: bool

    def hand_over(self) -> None:
        """The next step completes it. Raises psycopg.Error when the session, and so the claim, is gone."""
        self.connection.execute("SET synchronous_commit = on")
        self._set("state = 'handing_over', attempts = attempts + 1")

    def sent(self, at_ms: int) -> None:
        """It was taken."""
        self._set("state = 'sent', sent_ms = %s, error = ''", at_ms)

    def again(self, not_before_ms: int, error: str) -> None:
        """It was not taken: later again."""
        attempts = self.attempts + 1
        self._set("state = 'waiting', attempts = %s, not_before_ms = %s, error = %s", attempts, not_before_ms, error)

    def unconfirmed(self, error: str) -> None:
        """Nobody will know."""
        self._set("state = 'unconfirmed', error = %s", error)

    def dead(self, error: str) -> None:
        """It is given up."""
        self._set("state = 'dead', attempts = %s, error = %s", self.attempts + 1, error)

    def _set(self, change: str, *values: object) -> None:
        cleaned = [value.replace("\0", "")[:500] if isinstance(value, str) else value for value in values]
        self.holder.execute("SELECT")
        self.connection.execute(f"UPDATE outbox SET {change} WHERE id = %s", (*cleaned, self.id))


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a message is, as people ask for it."""

    kind: str
    recipient: str
    subject: str
    state: str
    attempts: int
    made_ms: int
    not_before_ms: int
    sent_ms: int | None
    error: str


def listing(connection: Connection, states: Sequence[str] | None = None, limit: int = 1000) -> list[Standing]:
    """Messages of these states (all when None), newest first."""
    rows = connection.execute(
        "SELECT kind, recipient, subject, state, attempts, made_ms, not_before_ms, sent_ms, error FROM outbox "
        "WHERE %s::text[] IS NULL OR state = ANY(%s) ORDER BY made_ms DESC, id DESC LIMIT %s",
        (states, states, limit),
    )
    return [Standing(*row) for row in rows]


def forget_old(connection: Connection, now_ms: int) -> int:
    """Remove messages that were done more than 400 days ago; how many."""
    return connection.execute(
        "DELETE FROM outbox WHERE state NOT IN ('waiting', 'handing_over', 'held') AND made_ms < %s",
        (now_ms - KEEP_MS,),
    ).rowcount

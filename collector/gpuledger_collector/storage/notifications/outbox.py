"""The outbox: messages stored with the change they report, and claimed by one sender at a time.

A message is first planned by the rules of its recipient (delivery_rules), in a transaction that one
replica has at a time: it is sent alone or held for a digest. A digest is a message stored in the
transaction that marks its entries as joined to it.

A claim is the lock of all sending, held by a session of the sender, so it ends with the sender
however that ends. That session is checked before every step: a sender that lost its claim cannot
take another step, and the next one finds the message in the state it had.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.notifications.delivery_rules import (
    DIGEST,
    DeliveryRules,
    Digest,
    DigestEntry,
    WriteDigest,
    plan,
    rules_of,
)
from gpuledger_collector.insight.notifications.listed import OutboxEntry
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.notifications import notification_rules
from gpuledger_collector.storage.rows import (
    columns_of,
    select,
    select_as,
    select_number,
    select_row,
    to_object,
)

KEEP_MS = 400 * 86_400_000
_OF_CONTENT = [field.name for field in fields(Content)]
_OF_MESSAGE = [field.name for field in fields(Message) if field.name != "content"]
_COLUMNS = ", ".join((*_OF_MESSAGE, *_OF_CONTENT))
OnStep = Callable[[str], None]


def insert(connection: Connection, message: Message) -> bool:
    """Store a message in the caller's transaction; False when the recipient has one with that key
    already.
    """
    content = message.content
    cells = {
        **{name: getattr(message, name) for name in _OF_MESSAGE},
        **{name: getattr(content, name) for name in _OF_CONTENT},
        "attachments": json.dumps(dict(content.attachments)),
        "state": "waiting",
    }
    return bool(
        connection.execute(
            f"INSERT INTO outbox ({', '.join(cells)}) VALUES ({', '.join(['%s'] * len(cells))}) ON"
            " CONFLICT (key, recipient) DO NOTHING",
            list(cells.values()),
        ).rowcount
    )


@dataclass(frozen=True)
class Outbox:
    """The outbox as senders use it."""

    database: Database

    def arrange(self, now_ms: int, write: WriteDigest, on_step: OnStep = lambda _: None) -> int:
        """Plan new messages and write the digests that are due; return how many digests."""
        with self.database.transaction() as connection:
            count = _arrange(connection, now_ms, write, on_step)
        on_step("arranged")
        return count

    def due(self, now_ms: int, limit: int, channels: Sequence[str]) -> list[int]:
        """Ids of planned messages of these channels whose time has come, oldest first."""
        with self.database.connect() as connection:
            return [row.id for row in _due(connection, now_ms, limit, channels)]

    @contextmanager
    def claim(self, message_id: int, now_ms: int) -> Iterator[Claim | None]:
        """Claim a message while the block runs; None when it is done or not due yet.

        Holds the lock of all sending, so it waits for other senders. The claim is `in_doubt` where
        an earlier sender had begun to hand the message over.
        """
        # The lock is held by a session of its own and the row is read on another: work commits
        # while the claim lasts.
        with self.database.hold(Lock.OUTBOX) as holder, self.database.connect() as connection:
            row = select_row(
                connection,
                f"SELECT {_COLUMNS}, attempts, state FROM outbox WHERE id = %s AND not_before_ms <="
                " %s AND state IN ('waiting', 'handing_over')",
                (message_id, now_ms),
            )
            if row is None:
                yield None
            else:
                in_doubt = row.state != "waiting"
                yield Claim(connection, holder, message_id, _message(row), row.attempts, in_doubt)


def rehearse(
    connection: Connection,
    now_ms: int,
    write: WriteDigest,
    channels: Sequence[str],
    limit: int = 1000,
) -> list[tuple[str, str]]:
    """Recipient and subject of what would be sent now, digests too; the caller rolls the
    transaction back.
    """
    _arrange(connection, now_ms, write, lambda _: None)
    return [(row.recipient, row.subject) for row in _due(connection, now_ms, limit, channels)]


def _arrange(connection: Connection, now_ms: int, write: WriteDigest, on_step: OnStep) -> int:
    locks.take(connection, Lock.OUTBOX_PLAN)
    rules = notification_rules.recipients(connection)
    _plan(connection, rules, now_ms)
    on_step("planned")
    return _digests(connection, rules, now_ms, write, on_step)


def _due(connection: Connection, now_ms: int, limit: int, channels: Sequence[str]) -> list[Any]:
    """Id, recipient and subject of planned messages of these channels whose time has come, oldest
    first.
    """
    return select(
        connection,
        "SELECT id, recipient, subject FROM outbox WHERE state IN ('waiting', 'handing_over') AND"
        " not_before_ms <= %s AND (planned_ms IS NOT NULL OR state = 'handing_over') AND CASE WHEN"
        " recipient ~ '^(slack|teams|webhook):' THEN split_part(recipient, ':', 1) ELSE 'mail' END"
        " = ANY(%s) ORDER BY not_before_ms, id LIMIT %s",
        (now_ms, list(channels), limit),
    )


def _message(row: Any) -> Message:
    return to_object(Message, row, content=to_object(Content, row))


def _plan(connection: Connection, rules: Mapping[str, DeliveryRules], now_ms: int) -> None:
    """Plan new messages, urgent ones first; messages that wait for another attempt respect quiet
    hours.
    """
    rows = select(
        connection,
        "SELECT id, kind, recipient, urgent, greatest(not_before_ms, %s) AS at_ms, planned_ms IS"
        " NULL AS is_new FROM outbox WHERE state = 'waiting' AND (planned_ms IS NULL OR"
        " not_before_ms <= %s) ORDER BY"
        " urgent DESC, made_ms, id",
        (now_ms, now_ms),
    )
    for row in rows:
        own_rules = rules_of(row.recipient, rules)
        if not row.is_new:
            # It was counted against the daily limit when it was planned first: only quiet hours
            # matter now.
            urgent = row.urgent or row.kind in own_rules.pass_kinds
            later = plan(own_rules, DIGEST, row.at_ms, urgent=urgent, planned=lambda _: 0)
            if later.at_ms > row.at_ms:
                connection.execute(
                    "UPDATE outbox SET not_before_ms = %s WHERE id = %s", (later.at_ms, row.id)
                )
            continue
        planned = _planned_counter(connection, row.recipient)
        delivery = plan(own_rules, row.kind, row.at_ms, urgent=row.urgent, planned=planned)
        change = "not_before_ms = greatest(not_before_ms, %s)"
        if delivery.joins_digest:
            change = "state = 'held', digest_ms = %s"
        connection.execute(
            f"UPDATE outbox SET planned_ms = %s, {change} WHERE id = %s",
            (delivery.at_ms, delivery.at_ms, row.id),
        )


def _planned_counter(connection: Connection, recipient: str) -> Callable[[Period], int]:
    def count(day: Period) -> int:
        return (
            select_number(
                connection,
                "SELECT count(*) FROM outbox WHERE recipient = %s AND planned_ms >= %s AND"
                " planned_ms <"
                " %s AND state NOT IN ('held', 'joined') AND kind <> %s",
                (recipient, day.start_ms, day.end_ms, DIGEST),
            )
            or 0
        )

    return count


def _digests(
    connection: Connection,
    rules: Mapping[str, DeliveryRules],
    now_ms: int,
    write: WriteDigest,
    on_step: OnStep,
) -> int:
    """Write one digest for each recipient with held messages that are due."""
    due = connection.execute(
        "SELECT recipient, max(digest_ms) FROM outbox WHERE state = 'held' AND digest_ms <= %s"
        " GROUP BY 1 ORDER BY 1",
        (now_ms,),
    ).fetchall()
    for recipient, due_ms in due:
        rows = select(
            connection,
            f"SELECT id, {columns_of(DigestEntry)} FROM outbox WHERE recipient = %s"
            " AND state = 'held' AND digest_ms <= %s ORDER BY made_ms, id",
            (recipient, now_ms),
        )
        entries = tuple(to_object(DigestEntry, row) for row in rows)
        content = write(Digest(recipient, due_ms, rules_of(recipient, rules).zone, entries))
        # The first message names the digest: it can be in no other one.
        key = f"{DIGEST}/{rows[0].id}"
        insert(connection, Message(key, DIGEST, recipient, content, now_ms, now_ms, DIGEST))
        on_step("digest_put")
        connection.execute(
            "UPDATE outbox SET state = 'joined', digest_id = (SELECT id FROM outbox WHERE key = %s"
            " AND recipient = %s) WHERE id = ANY(%s)",
            (key, recipient, [row.id for row in rows]),
        )
        on_step("joined")
    if due:
        _plan(connection, rules, now_ms)
    return len(due)


@dataclass(frozen=True)
class Claim:
    """A message that no other sender can send meanwhile; `holder` is the session that holds the
    lock of all sending.
    """

    connection: Connection
    holder: Connection
    id: int
    message: Message
    attempts: int
    in_doubt: bool
    """Whether an earlier sender ended between handing the message over and hearing that it was
    accepted.
    """

    def hand_over(self) -> None:
        """Record, durably, that the next step completes the message.

        Raises psycopg.Error when the claim is lost.
        """
        self.connection.execute("SET synchronous_commit = on")
        self._set("state = 'handing_over', attempts = attempts + 1")

    def note_sent(self, at_ms: int) -> None:
        """Record that the other side accepted it."""
        self._set("state = 'sent', sent_ms = %s, error = ''", at_ms)

    def retry(self, not_before_ms: int, error: str) -> None:
        """Record that it was certainly not accepted and is to be sent again later."""
        attempts = self.attempts + 1
        self._set(
            "state = 'waiting', attempts = %s, not_before_ms = %s, error = %s",
            attempts,
            not_before_ms,
            error,
        )

    def note_unconfirmed(self, error: str) -> None:
        """Record that it was handed over, and that it is unknown whether it was accepted."""
        self._set("state = 'unconfirmed', error = %s", error)

    def dead_letter(self, error: str) -> None:
        """Give it up."""
        self._set("state = 'dead', attempts = %s, error = %s", self.attempts + 1, error)

    def _set(self, change: str, *values: object) -> None:
        cleaned = [
            value.replace("\0", "")[:500] if isinstance(value, str) else value for value in values
        ]
        self.holder.execute("SELECT")
        self.connection.execute(f"UPDATE outbox SET {change} WHERE id = %s", (*cleaned, self.id))


def list_messages(
    connection: Connection, states: Sequence[str] | None = None, limit: int = 1000
) -> list[OutboxEntry]:
    """Messages of these states (all when None), newest first."""
    return select_as(
        connection,
        OutboxEntry,
        "SELECT kind, recipient, subject, state, attempts, made_ms, not_before_ms, sent_ms,"
        " error FROM outbox WHERE %s::text[] IS NULL OR state = ANY(%s) ORDER BY made_ms"
        " DESC, id DESC LIMIT %s",
        (states, states, limit),
    )


def expire(connection: Connection, now_ms: int) -> int:
    """Delete finished messages made more than 400 days ago; return how many."""
    return connection.execute(
        "DELETE FROM outbox WHERE state NOT IN ('waiting', 'handing_over', 'held') AND made_ms"
        " < %s",
        (now_ms - KEEP_MS,),
    ).rowcount

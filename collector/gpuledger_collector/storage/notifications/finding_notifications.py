"""Letters and actions in Postgres (jobs.notify_findings, jobs.reclaim_idle): each episode is told in one
transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import commitments, prices
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.notifications import notification_rules as notification_rules
from gpuledger_collector.storage.notifications import outbox
from gpuledger_collector.storage.notifications.finding_rules import (
    ANOMALY,
    IDLE,
    Action,
    ActionRule,
    Card,
    Contact,
    Holding,
    Notification,
)
from gpuledger_collector.storage.notifications.messages import Message

Connection = psycopg.Connection[tuple[Any, ...]]
LATELY_MS = 2 * DAY_MS
"""What was seen of an anomaly longer ago than this is history."""
_LETTER = (
    "id",
    "key",
    "kind",
    "subject",
    "team",
    "recipients",
    "findings",
    "since_ms",
    "until_ms",
    "told_ms",
    "escalated_ms",
    "acked_ms",
    "acked_by",
    "ack_until_ms",
    "why",
    "closed_ms",
)
_ACTION = (
    "id",
    "key",
    "notification_id",
    "what",
    "target",
    "team",
    "state",
    "first_shown_ms",
    "last_shown_ms",
    "acted_ms",
    "done_ms",
    "detail",
)


@dataclass(frozen=True)
class NotificationStore:
    """Where letters are kept; `connect` opens an autocommit connection."""

    connect: Callable[[], Connection]

    @contextmanager
    def unit(self) -> Iterator[NotificationTransaction]:
        """A transaction, alone in writing letters; undone when the block raises."""
        with self.connect() as connection, connection.transaction():
            locks.take(connection, Lock.NOTIFICATIONS)
            yield NotificationTransaction(connection)

    @contextmanager
    def alone(self, action: Action) -> Iterator[bool]:
        """Whether nobody else does any action while the block runs; the lock ends with its session."""
        with locks.tried(self.connect, Lock.ACTIONS) as holder:
            # What another has ended meanwhile is not begun again: the state may be older than the lock.
            query = "SELECT state FROM reclaim_action WHERE id = %s"
            state = None if holder is None else holder.execute(query, (action.id,)).fetchone()
            yield state is not None and state[0] == action.state


@dataclass
class Rehearsal:
    """jobs.notify_findings.Letters whose letters are kept nowhere but in `put`; `connection` is an autocommit one."""

    connection: Connection
    put: list[Message] = field(default_factory=list)

    @contextmanager
    def unit(self) -> Iterator[RehearsedUnit]:
        """A transaction that is undone."""
        with self.connection.transaction(force_rollback=True):
            yield RehearsedUnit(self.connection, self.put)


@dataclass(frozen=True)
class NotificationTransaction:
    """What the writing of letters reads and writes, over one connection inside a transaction."""

    connection: Connection

    def contacts(self) -> Sequence[Contact]:
        """Who is written to."""
        return notification_rules.contacts(self.connection)

    def actions(self) -> Sequence[ActionRule]:
        """What teams opted in to."""
        return notification_rules.actions(self.connection)

    def prices(self) -> Sequence[Price]:
        """The price book in force."""
        return prices.current(self.connection)

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""
        return commitments.choices(self.connection)

    def holdings(self, at_ms: int) -> Sequence[Holding]:
        """Workloads with accelerators that are found idle now, the dearest day first."""
        return holdings(self.connection, at_ms)

    def anomalies(self, at_ms: int) -> Sequence[Finding]:
        """Spending that stands out and goes on."""
        found = findings.overlapping(self.connection, ANOMALY, at_ms - LATELY_MS, at_ms + 1)
        return [one for one in found if one.resolved_ms is None and one.until_ms >= at_ms - LATELY_MS]

    def idle_between(self, start_ms: int, end_ms: int) -> Sequence[Mapping[str, Any]]:
        """Idle findings of a period with names, and `gpu_micro` of the accelerator."""
        sizes: dict[int, int] = dict(self.connection.execute("SELECT id, gpu_micro FROM accelerator").fetchall())
        rows = findings.named(self.connection, IDLE, start_ms, end_ms)
        return [{**row, "gpu_micro": sizes.get(row["accelerator_id"], 0)} for row in rows]

    def notifications(self, kind: str, since_ms: int) -> Sequence[Notification]:
        """Letters of a kind that were told since, go on, or are meant so."""
        rows = self.connection.execute(
            f"SELECT {', '.join(_LETTER)} FROM notification WHERE kind = %s "
            "AND (told_ms >= %s OR closed_ms IS NULL OR ack_until_ms >= %s) ORDER BY id",
            (kind, since_ms, since_ms),
        )
        return [_notification(row) for row in rows]

    def add(self, notification: Notification) -> int | None:
        """A letter, with its number; None when its episode was told before."""
        row = self.connection.execute(
            "INSERT INTO notification (key, kind, subject, team, recipients, findings, since_ms, until_ms, told_ms) "
            "VALUES (%s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s) ON CONFLICT (key) DO NOTHING RETURNING id",
            (
                notification.key,
                notification.kind,
                notification.subject,
                notification.team,
                json.dumps(notification.recipients),
                json.dumps(notification.findings),
                notification.since_ms,
                notification.until_ms,
                notification.told_ms,
            ),
        ).fetchone()
        return None if row is None else int(row[0])

    def keep(self, notification: Notification) -> None:
        """A letter as it is now."""
        self.connection.execute(
            "UPDATE notification SET findings = %s::jsonb, until_ms = %s, escalated_ms = %s, closed_ms = %s WHERE "
            "id = %s",
            (
                json.dumps(notification.findings),
                notification.until_ms,
                notification.escalated_ms,
                notification.closed_ms,
                notification.id,
            ),
        )

    def put(self, message: Message) -> bool:
        """A message of this transaction."""
        return outbox.put(self.connection, message)

    def sent_ms(self, notification: Notification) -> int | None:
        """When one of those it was for had the letter, by itself or in a digest; None: nobody yet."""
        row = self.connection.execute(
            "SELECT min(coalesce(d.sent_ms, o.sent_ms)) FROM outbox o LEFT JOIN outbox d ON d.id = o.digest_id "
            "WHERE o.kind = %s AND o.key = ANY(%s) AND (o.state = 'sent' OR o.state = 'joined' AND d.state = 'sent')",
            (notification.kind, message_keys(self.connection, notification)),
        ).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def shown(self) -> Sequence[Action]:
        """Actions that were shown or begun and not ended."""
        rows = self.connection.execute(
            f"SELECT {', '.join(_ACTION)} FROM reclaim_action WHERE state IN ('shown', 'doing') "
            "ORDER BY first_shown_ms, id"
        )
        return [Action(*row) for row in rows]

    def show(
        self, key: str, notification: Notification, rule: ActionRule, target: Mapping[str, str], at_ms: int
    ) -> bool:
        """A dry run shows this; False when it was done before. What was spared begins anew."""
        row = self.connection.execute(
            "INSERT INTO reclaim_action AS a (key, notification_id, what, target, team, state, first_shown_ms, "
            "last_shown_ms) "
            "VALUES (%s, %s, %s, %s::jsonb, %s, 'shown', %s, %s) ON CONFLICT (key) DO UPDATE SET state = 'shown', "
            "last_shown_ms = excluded.last_shown_ms, detail = '', first_shown_ms = CASE WHEN a.state = 'spared' "
            "THEN excluded.first_shown_ms ELSE a.first_shown_ms END WHERE a.state IN ('shown', 'spared') RETURNING 1",
            (key, notification.id, rule.do, json.dumps(dict(target)), notification.team, at_ms, at_ms),
        ).fetchone()
        return row is not None

    def spare(self, action: Action, why: str) -> None:
        """It is not shown any more."""
        self.connection.execute(
            "UPDATE reclaim_action SET state = 'spared', detail = %s WHERE id = %s AND state = 'shown'",
            (why, action.id),
        )

    def begun_since(self, team: str, since_ms: int) -> int:
        """How many actions of a team were begun since."""
        row = self.connection.execute(
            "SELECT count(*) FROM reclaim_action WHERE team = %s AND acted_ms >= %s", (team, since_ms)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def begin(self, action: Action, at_ms: int, who: str) -> bool:
        """It is done from now on; False when another does it. It is in the audit log before it is done."""
        row = self.connection.execute(
            "UPDATE reclaim_action SET state = 'doing', acted_ms = %s WHERE id = %s AND state = 'shown' RETURNING 1",
            (at_ms, action.id),
        ).fetchone()
        if row is not None:
            audit.record(self.connection, [_change(action, None, "doing")], at_ms, who)
        return row is not None

    def end(self, action: Action, state: str, detail: str, at_ms: int, who: str) -> bool:
        """What came of it: done, or failed; False when that is known already."""
        row = self.connection.execute(
            "UPDATE reclaim_action SET state = %s, done_ms = %s, detail = %s WHERE id = %s "
            "AND state = 'doing' RETURNING 1",
            (state, at_ms, detail[:500], action.id),
        ).fetchone()
        if row is not None:
            audit.record(self.connection, [_change(action, "doing", state, detail[:500])], at_ms, who)
        return row is not None


@dataclass(frozen=True)
class RehearsedUnit(NotificationTransaction):
    """The same, which remembers the messages."""

    messages: list[Message]

    def put(self, message: Message) -> bool:
        """A message that nobody gets."""
        new = super().put(message)
        if new:
            self.messages.append(message)
        return new


def _change(action: Action, before: str | None, after: str, detail: str = "") -> audit.Change:
    def said(state: str) -> dict[str, object]:
        return {
            "do": action.what,
            "target": dict(action.target),
            "notification": action.notification_id,
            "state": state,
        }

    old = None if before is None else said(before)
    return audit.Change("give_back", action.key, old, {**said(after), **({"detail": detail} if detail else {})})


def _notification(row: Sequence[Any]) -> Notification:
    facts = dict(zip(_LETTER, row, strict=True))
    return Notification(**{**facts, "recipients": tuple(facts["recipients"]), "findings": tuple(facts["findings"])})


def message_keys(connection: Connection, notification: Notification) -> list[str]:
    """Keys of the messages that told of a letter: those of the letters that went out with it, at its instant."""
    rows = connection.execute(
        "SELECT id FROM notification WHERE kind = %s AND told_ms = %s AND recipients = %s::jsonb",
        (notification.kind, notification.told_ms, json.dumps(notification.recipients)),
    )
    return [f"{notification.kind}/{number}" for (number,) in rows]


def holdings(connection: Connection, at_ms: int) -> list[Holding]:
    """Workloads with accelerators that are found idle now, the dearest day first, then by id."""
    facts = {row["key"]: row for row in findings.named(connection, IDLE, at_ms, at_ms + 1)}
    by_workload: dict[int, list[Card]] = {}
    for one in findings.overlapping(connection, IDLE, at_ms, at_ms + 1):
        if one.resolved_ms is None and one.workload_id is not None:
            row = facts.get(one.key, {})
            card = Card(one, row.get("model") or "", row.get("gpu_index"))
            by_workload.setdefault(one.workload_id, []).append(card)
    rows = connection.execute(
        "SELECT id, kind, external_id, coalesce(name, ''), coalesce(user_name, ''), tags FROM workload "
        "WHERE id = ANY(%s)",
        (list(by_workload),),
    )
    since = {number: min(card.finding.since_ms for card in cards) for number, cards in by_workload.items()}
    held = _held(connection, since, at_ms)
    made = [
        Holding(
            row[0],
            row[1],
            row[2],
            row[3],
            row[4],
            row[5],
            tuple(by_workload[row[0]]),
            max(held.get(row[0], 0), len(by_workload[row[0]])),
        )
        for row in rows
    ]
    return sorted(made, key=lambda one: (-max((day for _, _, day in one.money()), default=0), one.workload_id))


def _held(connection: Connection, since_ms: Mapping[int, int], at_ms: int) -> dict[int, int]:
    """How many accelerators each of these workloads holds, by the usage from three hours before it went idle.

    Those of a node that nobody sees now are among them: that they are idle, too, is not known.
    """
    from_ms = {number: min(since, at_ms) - 3 * HOUR_MS for number, since in since_ms.items()}
    rows = connection.execute(
        "SELECT u.workload_id, count(DISTINCT u.accelerator_id) FROM usage_hour u "
        "JOIN unnest(%s::bigint[], %s::bigint[]) AS idle (id, from_ms) ON u.workload_id = idle.id "
        "AND u.hour_ms >= idle.from_ms WHERE u.hour_ms >= %s AND u.hour_ms <= %s GROUP BY 1",
        (list(from_ms), list(from_ms.values()), min(from_ms.values(), default=at_ms), at_ms),
    )
    return {int(workload): int(count) for workload, count in rows}


def acknowledge(
    connection: Connection, notification_id: int, who: str, until_ms: int, why: str, at_ms: int
) -> Notification | None:
    """It is meant so until then, in the caller's transaction and in the audit log; None where there is no such one."""
    row = connection.execute(
        "UPDATE notification SET acked_ms = %s, acked_by = %s, ack_until_ms = %s, why = %s WHERE id = %s "
        f"RETURNING {', '.join(_LETTER)}",
        (at_ms, who, until_ms, why, notification_id),
    ).fetchone()
    if row is None:
        return None
    notification = _notification(row)
    change = audit.Change(
        "notification", notification.key, None, {"acknowledged_until_ms": until_ms, "why": why, "by": who}
    )
    audit.record(connection, [change], at_ms, who)
    return notification


def by_id(connection: Connection, notification_id: int) -> Notification | None:
    """A letter by its number."""
    row = connection.execute(
        f"SELECT {', '.join(_LETTER)} FROM notification WHERE id = %s", (notification_id,)
    ).fetchone()
    return None if row is None else _notification(row)


def subject_of(connection: Connection, notification: Notification) -> str:
    """What a letter is about, as people call it."""
    if notification.kind != IDLE:
        job = notification.matter.removeprefix(notification.subject).removeprefix(":")
        return f"spending of {f'{job} of ' if job else ''}{notification.subject.rpartition(':')[0]}"
    row = connection.execute(
        "SELECT coalesce(nullif(name, ''), external_id) FROM workload WHERE id::text = %s", (notification.subject,)
    ).fetchone()
    return notification.subject if row is None else str(row[0])


def newest(connection: Connection, most: int) -> list[Notification]:
    """The last letters, newest first."""
    rows = connection.execute(f"SELECT {', '.join(_LETTER)} FROM notification ORDER BY id DESC LIMIT %s", (most,))
    return [_notification(row) for row in rows]


def actions(connection: Connection, most: int) -> list[Action]:
    """The last actions, newest first."""
    rows = connection.execute(f"SELECT {', '.join(_ACTION)} FROM reclaim_action ORDER BY id DESC LIMIT %s", (most,))
    return [Action(*row) for row in rows]

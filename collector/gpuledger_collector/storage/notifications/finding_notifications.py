"""Notifications about findings, and the reclaiming of idle workloads, as rows.

Notifications are written under Lock.NOTIFICATIONS in a READ COMMITTED transaction, not in a
snapshot: people may acknowledge a notification meanwhile, and the audit log needs its newest row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.notifications.finding_rules import (
    ANOMALY,
    IDLE,
    AnomalyAcknowledgment,
    AnomalyKind,
    Notification,
)
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction, ReclaimRule
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import (
    columns_of,
    select,
    select_as,
    select_number,
    select_row,
    select_value,
    select_values,
    to_object,
)

RECENT_MS = 2 * DAY_MS
"""Anomalies last seen longer ago than this are history."""
_COLUMNS = columns_of(Notification)
_ACTION_COLUMNS = columns_of(ReclaimAction)


@contextmanager
def writing(database: Database, *, dry_run: bool = False) -> Iterator[Connection]:
    """A transaction that is alone in writing notifications and reclaim actions; `dry_run` rolls it
    back.
    """
    with database.transaction(dry_run=dry_run) as connection:
        locks.take(connection, Lock.NOTIFICATIONS)
        yield connection


def ongoing_anomalies(connection: Connection, at_ms: int) -> list[Finding]:
    """Anomalies of spending that are ongoing."""
    anomalies = findings.overlapping(connection, ANOMALY, at_ms - RECENT_MS, at_ms + 1)
    return [
        finding
        for finding in anomalies
        if finding.resolved_ms is None and finding.until_ms >= at_ms - RECENT_MS
    ]


def recent(connection: Connection, kind: str, since_ms: int) -> list[Notification]:
    """Notifications of a kind that were sent since, are ongoing, or are acknowledged."""
    return [
        _notification(row)
        for row in select(
            connection,
            f"SELECT {_COLUMNS} FROM notification WHERE kind = %s "
            "AND (notified_ms >= %s OR closed_ms IS NULL OR ack_until_ms >= %s) ORDER BY id",
            (kind, since_ms, since_ms),
        )
    ]


def anomaly_acknowledgments(connection: Connection) -> list[AnomalyAcknowledgment]:
    """What people have said of kinds of unusual spending, the latest last; once for each
    notification.
    """
    return [
        AnomalyAcknowledgment(
            AnomalyKind(row.subject, row.currency or "", row.cause or "", row.workload or ""),
            row.acked_ms,
            row.ack_until_ms,
        )
        for row in select(
            connection,
            "SELECT DISTINCT ON (n.acked_ms, n.id) n.acked_ms, n.ack_until_ms, f.subject,"
            " f.currency, f.evidence->>'cause' AS cause, f.evidence->'workloads'->>0 AS workload"
            " FROM notification n JOIN finding f ON f.kind = n.kind AND n.findings ? f.key"
            " WHERE n.kind = %s AND n.acked_ms IS NOT NULL AND n.ack_until_ms IS NOT NULL"
            " ORDER BY n.acked_ms, n.id, f.since_ms DESC",
            (ANOMALY,),
        )
    ]


def by_id(connection: Connection, notification_id: int) -> Notification | None:
    """A notification by its id."""
    row = select_row(
        connection, f"SELECT {_COLUMNS} FROM notification WHERE id = %s", (notification_id,)
    )
    return None if row is None else _notification(row)


def newest(connection: Connection, limit: int) -> list[Notification]:
    """The last notifications, newest first."""
    return [
        _notification(row)
        for row in select(
            connection, f"SELECT {_COLUMNS} FROM notification ORDER BY id DESC LIMIT %s", (limit,)
        )
    ]


def _notification(row: Any) -> Notification:
    lists = {"recipients": tuple(row.recipients), "findings": tuple(row.findings)}
    return to_object(Notification, row, **lists)


def insert(connection: Connection, notification: Notification) -> int | None:
    """Insert a notification and return its id; None when there is one for its episode already."""
    return select_number(
        connection,
        "INSERT INTO notification (key, kind, subject, team, recipients, findings, since_ms,"
        " until_ms, notified_ms) VALUES (%s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s) ON"
        " CONFLICT (key) DO NOTHING RETURNING id",
        (
            notification.key,
            notification.kind,
            notification.subject,
            notification.team,
            json.dumps(notification.recipients),
            json.dumps(notification.findings),
            notification.since_ms,
            notification.until_ms,
            notification.notified_ms,
        ),
    )


def update(connection: Connection, notification: Notification) -> None:
    """Store the findings, end, escalation and closing of a notification."""
    connection.execute(
        "UPDATE notification SET findings = %s::jsonb, until_ms = %s, escalated_ms = %s, closed_ms"
        " = %s WHERE id = %s",
        (
            json.dumps(notification.findings),
            notification.until_ms,
            notification.escalated_ms,
            notification.closed_ms,
            notification.id,
        ),
    )


def acknowledge(
    connection: Connection, notification_id: int, who: str, until_ms: int, why: str, at_ms: int
) -> Notification | None:
    """Acknowledge a notification until an instant, with an entry in the audit log; None when it
    does not exist.
    """
    row = select_row(
        connection,
        "UPDATE notification SET acked_ms = %s, acked_by = %s, ack_until_ms = %s, why = %s WHERE"
        f" id = %s RETURNING {_COLUMNS}",
        (at_ms, who, until_ms, why, notification_id),
    )
    if row is None:
        return None
    notification = _notification(row)
    after = {"acknowledged_until_ms": until_ms, "why": why, "by": who}
    audit.record(
        connection, [audit.Change("notification", notification.key, None, after)], at_ms, who
    )
    return notification


def sent_ms(connection: Connection, notification: Notification) -> int | None:
    """When the first recipient's server accepted the mail, alone or in a digest; None: not yet."""
    return select_number(
        connection,
        "SELECT min(coalesce(d.sent_ms, o.sent_ms)) FROM outbox o LEFT JOIN outbox d ON d.id ="
        " o.digest_id WHERE o.kind = %s AND o.key = ANY(%s) AND (o.state = 'sent' OR o.state ="
        " 'joined' AND d.state = 'sent')",
        (notification.kind, _message_keys(connection, notification)),
    )


def _message_keys(connection: Connection, notification: Notification) -> list[str]:
    """Keys of the mail it was in: one mail has the notifications of one instant, and the first of
    them names it.
    """
    ids = select_values(
        connection,
        "SELECT id FROM notification WHERE kind = %s AND notified_ms = %s AND recipients ="
        " %s::jsonb",
        (notification.kind, notification.notified_ms, json.dumps(notification.recipients)),
    )
    return [f"{notification.kind}/{notification_id}" for notification_id in ids]


def subject_of(connection: Connection, notification: Notification) -> str:
    """What a notification is about, as people call it."""
    if notification.kind != IDLE:
        job = notification.deduplication_key.removeprefix(notification.subject).removeprefix(":")
        return f"spending of {f'{job} of ' if job else ''}{notification.subject.rpartition(':')[0]}"
    name = select_value(
        connection,
        "SELECT coalesce(nullif(name, ''), external_id) FROM workload WHERE id::text = %s",
        (notification.subject,),
    )
    return notification.subject if name is None else str(name)


@contextmanager
def reclaiming(database: Database, action: ReclaimAction) -> Iterator[bool]:
    """Whether this action is ours while the block runs: no other process reclaims, and its state is
    unchanged.

    The lock ends with its session, so also with this process.
    """
    with database.try_hold(Lock.ACTIONS) as holder:
        # The action was read before the lock was taken: another process may have finished it
        # meanwhile.
        query = "SELECT state FROM reclaim_action WHERE id = %s"
        yield holder is not None and select_value(holder, query, (action.id,)) == action.state


def actions(connection: Connection, limit: int) -> list[ReclaimAction]:
    """The last actions, newest first."""
    return select_as(
        connection,
        ReclaimAction,
        f"SELECT {_ACTION_COLUMNS} FROM reclaim_action ORDER BY id DESC LIMIT %s",
        (limit,),
    )


def open_actions(connection: Connection) -> list[ReclaimAction]:
    """Actions that are shown by a dry run, or begun and not ended."""
    return select_as(
        connection,
        ReclaimAction,
        f"SELECT {_ACTION_COLUMNS} FROM reclaim_action WHERE state IN ('shown', 'doing')"
        " ORDER BY first_shown_ms, id",
    )


def show(
    connection: Connection,
    key: str,
    notification: Notification,
    rule: ReclaimRule,
    target: Mapping[str, str],
    at_ms: int,
) -> bool:
    """Record that a dry run shows this action; False when it was done before.

    A spared one starts again.
    """
    return (
        connection.execute(
            "INSERT INTO reclaim_action AS a (key, notification_id, what, target, team, state,"
            " first_shown_ms, last_shown_ms) VALUES (%s, %s, %s, %s::jsonb, %s, 'shown', %s, %s) ON"
            " CONFLICT (key) DO UPDATE SET state = 'shown', last_shown_ms = excluded.last_shown_ms,"
            " detail = '', first_shown_ms = CASE WHEN a.state = 'spared' THEN"
            " excluded.first_shown_ms"
            " ELSE a.first_shown_ms END WHERE a.state IN ('shown', 'spared') RETURNING 1",
            (
                key,
                notification.id,
                rule.do,
                json.dumps(dict(target)),
                notification.team,
                at_ms,
                at_ms,
            ),
        ).fetchone()
        is not None
    )


def spare(connection: Connection, action: ReclaimAction, why: str) -> None:
    """Record that a shown action is spared."""
    connection.execute(
        "UPDATE reclaim_action SET state = 'spared', detail = %s WHERE id = %s AND state = 'shown'",
        (why, action.id),
    )


def count_begun(connection: Connection, team: str, since_ms: int) -> int:
    """How many actions of a team were begun since an instant."""
    return (
        select_number(
            connection,
            "SELECT count(*) FROM reclaim_action WHERE team = %s AND acted_ms >= %s",
            (team, since_ms),
        )
        or 0
    )


def begin(connection: Connection, action: ReclaimAction, at_ms: int, who: str) -> bool:
    """Record, in the audit log too, that an action is about to be done; False when another process
    does it.
    """
    row = connection.execute(
        "UPDATE reclaim_action SET state = 'doing', acted_ms = %s WHERE id = %s AND state = 'shown'"
        " RETURNING 1",
        (at_ms, action.id),
    ).fetchone()
    if row is not None:
        change = audit.Change("give_back", action.key, None, _audit_facts(action, "doing"))
        audit.record(connection, [change], at_ms, who)
    return row is not None


def end(
    connection: Connection, action: ReclaimAction, state: str, detail: str, at_ms: int, who: str
) -> bool:
    """Record the outcome of an action, done or failed; False when it is recorded already."""
    row = connection.execute(
        "UPDATE reclaim_action SET state = %s, done_ms = %s, detail = %s WHERE id = %s AND state ="
        " 'doing' RETURNING 1",
        (state, at_ms, detail[:500], action.id),
    ).fetchone()
    if row is not None:
        after = _audit_facts(action, state) | ({"detail": detail[:500]} if detail else {})
        change = audit.Change("give_back", action.key, _audit_facts(action, "doing"), after)
        audit.record(connection, [change], at_ms, who)
    return row is not None


def _audit_facts(action: ReclaimAction, state: str) -> dict[str, object]:
    return {
        "do": action.what,
        "target": dict(action.target),
        "notification": action.notification_id,
        "state": state,
    }

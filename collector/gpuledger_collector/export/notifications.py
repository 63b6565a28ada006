"""Lists of notifications, of messages in the outbox, and of the reclaiming of idle GPUs."""

from __future__ import annotations

from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.notifications.listed import (
    ListedNotification,
    OutboxEntry,
    ReclaimCandidate,
)
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction

NOTIFICATIONS = Report[ListedNotification](
    "notifications",
    (
        Column("id", lambda item: item.notification.id, Kind.NUMBER),
        Column("notified_at", lambda item: item.notification.notified_ms, Kind.INSTANT),
        Column("kind", lambda item: item.notification.kind),
        Column("standing", lambda item: item.standing),
        Column("team", lambda item: item.notification.team),
        Column("subject", lambda item: item.subject),
        Column("recipients", lambda item: ", ".join(item.notification.recipients)),
    ),
)
OUTBOX = Report[OutboxEntry](
    "outbox",
    (
        Column("made_at", lambda item: item.made_ms, Kind.INSTANT),
        Column("kind", lambda item: item.kind, in_table=False),
        Column("state", lambda item: item.state),
        Column("recipient", lambda item: item.recipient),
        Column("subject", lambda item: item.subject),
        Column("attempts", lambda item: item.attempts, Kind.COUNT, in_table=False),
        Column("not_before", lambda item: item.not_before_ms, Kind.INSTANT, in_table=False),
        Column("sent_at", lambda item: item.sent_ms, Kind.INSTANT, is_optional=True),
        Column("error", lambda item: item.error, is_optional=True),
    ),
)
ACTIONS = Report[ReclaimAction](
    "actions",
    (
        Column(
            "at",
            lambda item: item.done_ms or item.acted_ms or item.last_shown_ms,
            Kind.INSTANT,
        ),
        Column("state", lambda item: item.state),
        Column("what", lambda item: item.what),
        Column("team", lambda item: item.team),
        Column("workload", lambda item: item.target.get("workload")),
        Column("detail", lambda item: item.detail, is_optional=True),
    ),
)
CANDIDATES = Report[ReclaimCandidate](
    "candidates",
    (
        Column("verdict", lambda item: "spared" if item.spared else "shown"),
        Column("what", lambda item: item.rule.do),
        Column("team", lambda item: item.workload.team),
        Column("workload", lambda item: item.workload.external_id),
        Column("label", lambda item: item.workload.label),
        Column("since", lambda item: item.shown_ms, Kind.INSTANT),
        Column("due", lambda item: item.due_ms, Kind.INSTANT),
        Column("why", lambda item: item.spared),
    ),
)

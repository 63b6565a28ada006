"""Notifications, messages and actions as lists of them show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger_collector.accounting.period import HOUR_MS, format_date
from gpuledger_collector.insight.notifications.finding_rules import IdleWorkload, Notification
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimRule


@dataclass(frozen=True, slots=True)
class ListedNotification:
    """A notification, what it is about, and the instant at which its standing is asked."""

    notification: Notification
    subject: str
    at_ms: int

    @property
    def standing(self) -> str:
        """What became of it by then."""
        notification = self.notification
        if notification.ack_until_ms is not None and notification.is_acknowledged(self.at_ms):
            return f"acknowledged to {format_date(notification.ack_until_ms)}"
        if notification.closed_ms is not None:
            return "ended"
        return "escalated" if notification.escalated_ms is not None else "ongoing"


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A message and its state, as people see it."""

    kind: str
    recipient: str
    subject: str
    state: str
    attempts: int
    made_ms: int
    not_before_ms: int
    sent_ms: int | None
    error: str


@dataclass(frozen=True, slots=True)
class ReclaimCandidate:
    """A workload that a rule reaches, and why it is spared ('': it is shown)."""

    rule: ReclaimRule
    workload: IdleWorkload
    notification: Notification | None
    spared: str
    key: str = ""
    target: Mapping[str, str] = field(default_factory=dict)
    shown_ms: int | None = None
    """Since when a dry run shows it; None: it is spared, or nobody asked."""

    @property
    def due_ms(self) -> int | None:
        """When it may be reclaimed."""
        if self.shown_ms is None:
            return None
        return self.shown_ms + self.rule.dry_run_hours * HOUR_MS

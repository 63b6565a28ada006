"""What people say that they know of: alerts of budgets and notifications of findings, acknowledged by
a command or by the link of a mail.

A link works once: it is used and its matter acknowledged in one transaction, and of two clicks at
once one is told that it was used.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger_collector.insight.notifications.finding_rules import Notification
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import budgets
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications import finding_notifications, links

BY_MAIL = "by the link of a mail"
BY_NOTIFICATION = "by the link of its notification"
MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class LinkedBudget:
    """The budget of a link: its name, None where it is in force no more; and when the link was
    used.
    """

    name: str | None
    used_ms: int | None


@dataclass(frozen=True, slots=True)
class LinkedNotification:
    """The notification of a link, what it is about, and when the link was used."""

    notification: Notification
    subject: str
    used_ms: int | None


def acknowledge_budget(
    database: Database, name: str, who: str, at_ms: int, *, dry_run: bool = False
) -> int:
    """Acknowledge the firing alerts of a budget; return how many.

    Raises ValueError with a sentence where no such budget is in force.
    """
    with database.transaction(dry_run=dry_run) as connection:
        names = [budget.name for budget in budgets.current(connection)]
        if name not in names:
            raise ValueError(
                f"{name!r} is not a budget in force; there are {', '.join(names) or 'none'}"
            )
        return budgets.acknowledge(connection, name, who, at_ms)


def acknowledge_notification(
    database: Database, number: int, until_ms: int, why: str, at_ms: int, *, dry_run: bool = False
) -> bool:
    """Acknowledge a notification under the name of whoever runs this; False: there is none."""
    with database.transaction(dry_run=dry_run) as connection:
        acknowledged = finding_notifications.acknowledge(
            connection, number, audit.person(), until_ms, why[:MAX_REASON], at_ms
        )
    return acknowledged is not None


def read_budget_link(database: Database, budget: int, mac: str) -> LinkedBudget:
    """What the link of a budget's mail is about; the caller has checked its `mac`."""
    with database.transaction() as connection:
        return LinkedBudget(budgets.name_of(connection, budget), links.used_ms(connection, mac))


def use_budget_link(
    database: Database, mac: str, name: str, period_ms: int, at_ms: int
) -> int | None:
    """Acknowledge the firing alerts of a budget's period; return how many, None: the link was
    used.
    """
    with database.transaction() as connection:
        if not links.use(connection, mac, at_ms):
            return None
        return budgets.acknowledge(connection, name, BY_MAIL, at_ms, period_ms)


def read_notification_link(database: Database, number: int, mac: str) -> LinkedNotification | None:
    """What the link of a finding's notification is about; None: it no longer exists."""
    with database.transaction() as connection:
        notification = finding_notifications.by_id(connection, number)
        if notification is None:
            return None
        subject = finding_notifications.subject_of(connection, notification)
        return LinkedNotification(notification, subject, links.used_ms(connection, mac))


def use_notification_link(
    database: Database, mac: str, number: int, until_ms: int, at_ms: int
) -> bool:
    """Acknowledge a notification until an instant; False: the link was used."""
    with database.transaction() as connection:
        if not links.use(connection, mac, at_ms):
            return False
        finding_notifications.acknowledge(connection, number, BY_NOTIFICATION, until_ms, "", at_ms)
        return True

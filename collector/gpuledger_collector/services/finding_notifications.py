"""Notify people of findings: owners of idle GPUs, their leads when nobody responds, teams with
anomalous spending.

Leads also get a summary of each week. A notification and its messages are written in one
transaction, alone in writing notifications: a run that stops anywhere, and two at once, notify of
each episode once. The state of an episode comes from its findings; notifications never change
findings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.findings import WORKLOADS, Finding
from gpuledger_collector.insight.notifications.finding_rules import (
    ANOMALY,
    COLLECTED,
    IDLE,
    AnomalyNotice,
    Contact,
    IdleNotice,
    IdleWorkload,
    Notification,
    Section,
    SpendingWeek,
    WeeklySummary,
    anomaly_subject,
    find_same_episode,
    is_intended,
    must_escalate,
    notifiable_accelerators,
    recipients_of,
    team_contact,
)
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.services.small_anomalies import anomaly_floors, list_due_collections
from gpuledger_collector.services.weekly_summaries import list_due_summaries
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings.idle_workloads import idle_workloads
from gpuledger_collector.storage.ledger import workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.notifications import (
    finding_notifications,
    notification_rules,
    outbox,
)
from gpuledger_common.plurals import plural

HISTORY_MS = 90 * DAY_MS
"""Notifications that ended longer ago than this are not read."""
MAX_AGE_MS = 2 * DAY_MS
"""A notified anomaly that is not ongoing is closed once it is older than this."""
MAX_FIRST_AGE_MS = 14 * DAY_MS
"""An anomaly that was opened longer ago than this is not worth a first notification; a small one was
told in the mail of a week by then.
"""
SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class MailWriters:
    """Functions that write the mails of each kind."""

    idle: Callable[[IdleNotice], Content]
    anomaly: Callable[[AnomalyNotice], Content]
    summary: Callable[[WeeklySummary], Content]
    spending_week: Callable[[SpendingWeek], Content]


@dataclass
class NotificationReport:
    """What a run did; `unreachable` counts workloads without an owner's address and without team
    recipients.
    """

    idle: int = 0
    escalated: int = 0
    closed: int = 0
    anomalies: int = 0
    collected: int = 0
    summaries: int = 0
    unreachable: int = 0
    messages: list[Message] = field(default_factory=list)

    def __str__(self) -> str:
        """One line for the record of job runs."""
        return (
            f"{plural(self.idle, 'idle episode')} notified, {self.escalated} escalated,"
            f" {self.closed} ended, {plural(self.anomalies, 'spending episode')} notified,"
            f" {self.collected} in a mail of the week, {self.summaries} weekly summaries,"
            f" {self.unreachable} without an address"
        )


def notify_findings(
    database: Database, at_ms: int, writers: MailWriters, *, dry_run: bool = False
) -> NotificationReport:
    """Write the notifications due at an instant; a dry run writes nothing and reports the messages."""
    with finding_notifications.writing(database, dry_run=dry_run) as connection:
        contacts = notification_rules.contacts(connection)
        run = _Run(connection, contacts, at_ms, writers)
        if contacts:
            run.notify_idle()
            run.notify_anomalies()
            run.send_spending_weeks()
            run.send_summaries()
        return run.report


class _Run:
    """One run of the job, inside its transaction."""

    def __init__(
        self, connection: Connection, contacts: Sequence[Contact], at_ms: int, writers: MailWriters
    ) -> None:
        self._connection, self._contacts = connection, contacts
        self._at_ms, self._writers = at_ms, writers
        self.report = NotificationReport()
        self._floors = cache(partial(anomaly_floors, connection, at_ms))

    def notify_idle(self) -> None:
        """Notify owners of new episodes, and leads of those to which nobody responded."""
        workloads = {
            str(workload.workload_id): workload
            for workload in idle_workloads(self._connection, self._at_ms)
        }
        past = [
            self._update_notification(notification, workloads.get(notification.subject))
            for notification in finding_notifications.recent(
                self._connection, IDLE, self._at_ms - HISTORY_MS
            )
        ]
        ongoing = {
            notification.subject: notification
            for notification in past
            if notification.closed_ms is None
        }
        # Acknowledged means: no further mail about this workload until the acknowledgment expires.
        muted = {
            notification.subject
            for notification in past
            if notification.is_acknowledged(self._at_ms)
        }
        new: dict[tuple[str, ...], list[IdleWorkload]] = {}
        unanswered: dict[tuple[str, ...], list[tuple[Notification, IdleWorkload]]] = {}
        for subject, workload in workloads.items():
            contact = team_contact(self._contacts, workload.team)
            _, accelerators = notifiable_accelerators(workload, contact, self._at_ms)
            if not accelerators or subject in muted:
                continue
            workload = replace(workload, accelerators=accelerators)
            if (notification := ongoing.get(subject)) is not None:
                if must_escalate(notification, contact, self._at_ms):
                    unanswered.setdefault(contact.leads, []).append((notification, workload))
            elif recipients := recipients_of(workload, self._contacts):
                new.setdefault(recipients, []).append(workload)
            else:
                self.report.unreachable += 1
        rounds = [notification.subject for notification in past]
        # One mail for all workloads of the same people. Sorted, so that a repeated run writes them
        # in the same order.
        for recipients, group in sorted(new.items(), key=lambda entry: entry[0]):
            self._notify_owner(recipients, group, rounds)
        for leads, waiting in sorted(unanswered.items(), key=lambda entry: entry[0]):
            self._escalate(leads, waiting)

    def _update_notification(
        self, notification: Notification, workload: IdleWorkload | None
    ) -> Notification:
        """Bring a notification up to date: its episode is ongoing, has ended, or its
        acknowledgement has expired.
        """
        ongoing = workload is not None and any(
            accelerator.finding.key in notification.findings
            for accelerator in workload.accelerators
        )
        if notification.closed_ms is not None and not (
            ongoing and notification.ack_until_ms is None
        ):
            return notification
        # An episode that had ended and continues after all is still the same one: its people know
        # of it.
        before, notification = notification, replace(notification, closed_ms=None)
        if workload is None or not ongoing:
            self.report.closed += 1
            notification = replace(notification, closed_ms=self._at_ms)
        elif notification.ack_until_ms is not None and self._at_ms >= notification.ack_until_ms:
            notification = replace(notification, closed_ms=notification.ack_until_ms)
        else:
            keys = [*notification.findings, *(each.finding.key for each in workload.accelerators)]
            until_ms = max(notification.until_ms, workload.until_ms)
            notification = replace(
                notification, findings=tuple(dict.fromkeys(keys)), until_ms=until_ms
            )
        if notification != before:
            finding_notifications.update(self._connection, notification)
        return notification

    def _notify_owner(
        self, recipients: tuple[str, ...], workloads: Sequence[IdleWorkload], rounds: Sequence[str]
    ) -> None:
        sections = []
        for workload in workloads:
            subject = str(workload.workload_id)
            # The count makes the key new when an acknowledgement has expired and the same episode
            # is notified again.
            notification_id = self._add(
                key=f"{IDLE}:{subject}:{workload.since_ms}:{rounds.count(subject)}",
                kind=IDLE,
                subject=subject,
                team=workload.team,
                recipients=recipients,
                findings=tuple(accelerator.finding.key for accelerator in workload.accelerators),
                since_ms=workload.since_ms,
                until_ms=workload.until_ms,
            )
            if notification_id is not None:
                sections.append(Section(notification_id, workload))
        if not sections:
            return
        self.report.idle += len(sections)
        contacts = [team_contact(self._contacts, section.workload.team) for section in sections]
        escalate_days = (
            contacts[0].escalate_days if any(contact.leads for contact in contacts) else 0
        )
        to_owner = all(
            recipients != team_contact(self._contacts, workload.team).recipients
            for workload in workloads
        )
        notice = IdleNotice(tuple(sections), self._at_ms, escalate_days, to_owner=to_owner)
        self._put(
            f"{IDLE}/{sections[0].notification_id}", IDLE, recipients, self._writers.idle(notice)
        )

    def _add(self, **facts: Any) -> int | None:
        notification = Notification(id=0, notified_ms=self._at_ms, **facts)
        return finding_notifications.insert(self._connection, notification)

    def _put(
        self, key: str, kind: str, recipients: Sequence[str], content: Content, thread: str = ""
    ) -> int:
        count = 0
        for recipient in recipients:
            message = Message(
                key, kind, recipient, content, self._at_ms, self._at_ms, thread or key
            )
            # False where a message with this key exists: a run that is repeated writes nothing
            # twice.
            if outbox.insert(self._connection, message):
                self.report.messages.append(message)
                count += 1
        return count

    def _escalate(
        self, leads: tuple[str, ...], waiting: Sequence[tuple[Notification, IdleWorkload]]
    ) -> None:
        notifications = [notification for notification, _ in waiting]
        for notification in notifications:
            finding_notifications.update(
                self._connection, replace(notification, escalated_ms=self._at_ms)
            )
        self.report.escalated += len(waiting)
        notice = IdleNotice(
            tuple(Section(notification.id, workload) for notification, workload in waiting),
            self._at_ms,
            team_contact(self._contacts, waiting[0][1].team).escalate_days,
            min(notification.notified_ms for notification in notifications),
            tuple(
                dict.fromkeys(
                    name for notification in notifications for name in notification.recipients
                )
            ),
            to_owner=False,
        )
        thread = f"{IDLE}/{notifications[0].id}"
        self._put(f"{thread}/escalated", IDLE, leads, self._writers.idle(notice), thread)

    def notify_anomalies(self) -> None:
        """Notify of each spending episode once, however it grows; only a later one is notified
        again, unless somebody said of its kind that it is intended.

        One that was told in the mail of a week is notified again when it is small no more.
        """
        known = finding_notifications.recent(self._connection, ANOMALY, self._at_ms - HISTORY_MS)
        ongoing = finding_notifications.ongoing_anomalies(self._connection, self._at_ms)
        keys = {finding.key for finding in ongoing}
        acknowledgments = finding_notifications.anomaly_acknowledgments(self._connection)
        self._close_ended(known, keys)
        alone = [notification for notification in known if not notification.is_collected]
        collected = [notification for notification in known if notification.is_collected]
        for finding in ongoing:
            subject = anomaly_subject(finding)
            same = find_same_episode(alone, finding, subject)
            if same is not None:
                alone[alone.index(same)] = self._grown(same, finding)
                continue
            told = find_same_episode(collected, finding, subject)
            if told is not None:
                collected[collected.index(told)] = told = self._grown(told, finding)
            if not (
                is_intended(finding, acknowledgments, self._at_ms)
                or (told is not None and told.is_acknowledged(self._at_ms))
                # Looked at in each run: a small episode may grow.
                or not self._floors().is_reached(finding)
            ):
                self._notify_team(finding, told)

    def _close_ended(self, known: Sequence[Notification], ongoing: Set[str]) -> None:
        """Close what is ongoing no more, once it is too old to go on as the same episode."""
        for notification in known:
            is_old = notification.notified_ms < self._at_ms - MAX_AGE_MS
            if (
                notification.closed_ms is None
                and is_old
                and not ongoing & set(notification.findings)
            ):
                finding_notifications.update(
                    self._connection, replace(notification, closed_ms=self._at_ms)
                )

    def _grown(self, notification: Notification, finding: Finding) -> Notification:
        """Bring the notification of an episode up to date with its finding."""
        grown = replace(
            notification,
            until_ms=max(notification.until_ms, finding.until_ms),
            findings=tuple(dict.fromkeys([*notification.findings, finding.key])),
        )
        if grown != notification:
            finding_notifications.update(self._connection, grown)
        return grown

    def _notify_team(self, finding: Finding, told: Notification | None) -> None:
        contact = team_contact(self._contacts, finding.team)
        recipients = contact.recipients or contact.leads
        is_old = told is None and finding.opened_ms < self._at_ms - MAX_FIRST_AGE_MS
        if not recipients or is_old:
            return
        notice = self._add_anomaly(finding.key, finding, recipients)
        if notice is not None:
            self.report.anomalies += 1
            if told is not None:
                notice = replace(notice, collected_ms=told.notified_ms)
            content = self._writers.anomaly(notice)
            self._put(f"{ANOMALY}/{notice.notification_id}", ANOMALY, recipients, content)

    def _add_anomaly(
        self, key: str, finding: Finding, recipients: tuple[str, ...]
    ) -> AnomalyNotice | None:
        """A notification of an episode, stored; None when there is one with this key already."""
        notification_id = self._add(
            key=key,
            kind=ANOMALY,
            subject=anomaly_subject(finding),
            team=finding.team,
            recipients=recipients,
            findings=(finding.key,),
            since_ms=finding.since_ms,
            until_ms=finding.until_ms,
        )
        if notification_id is None:
            return None
        ids = finding.evidence.get(WORKLOADS, ())
        facts = workloads.facts(self._connection, ids)
        users = tuple(sorted({fact.user for fact in facts.values() if fact.user}))
        runs = tuple(facts[each].key for each in ids if each in facts)
        return AnomalyNotice(notification_id, finding, self._at_ms, users, runs)

    def send_spending_weeks(self) -> None:
        """Tell what was not mailed by itself in the last week, in the first run of a week."""
        known = finding_notifications.recent(self._connection, ANOMALY, self._at_ms - HISTORY_MS)
        acknowledgments = finding_notifications.anomaly_acknowledgments(self._connection)
        due = list_due_collections(
            self._connection, self._contacts, self._floors, known, acknowledgments, self._at_ms
        )
        for episodes in due:
            notices = [
                notice
                for finding in episodes.findings
                if (
                    notice := self._add_anomaly(
                        f"{COLLECTED}{finding.key}", finding, episodes.recipients
                    )
                )
                is not None
            ]
            if not notices:
                continue
            self.report.collected += len(notices)
            week = SpendingWeek(
                episodes.week.start_ms,
                episodes.week.end_ms,
                episodes.zone,
                tuple(notices),
                all(self._floors().usual.is_small(notice.finding) for notice in notices),
            )
            self._put(
                f"{ANOMALY}/{notices[0].notification_id}",
                ANOMALY,
                episodes.recipients,
                self._writers.spending_week(week),
            )

    def send_summaries(self) -> None:
        """Send last week's summary to the leads of each team, in the first run of a week."""
        for leads, summary in list_due_summaries(self._connection, self._contacts, self._at_ms):
            thread = f"{SUMMARY}/{summary.team}"
            content = self._writers.summary(summary)
            self.report.summaries += bool(
                self._put(f"{thread}/{summary.start_ms}", SUMMARY, leads, content, thread)
            )

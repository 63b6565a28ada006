"""Write to people about what was found: owners of idle GPUs, their leads when nothing happens, teams whose spending
stands out, and each week's sum.

A letter and its messages are one transaction, alone in writing letters: a writer that stops anywhere, and two at once,
tell of each episode once. What becomes of an episode is read from the findings; letters are never the cause of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.pricing import Price, PriceBook, PurchaseChoice
from gpuledger_collector.accounting.wasted_time import AcceleratorPlace, price_waste
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.storage.notifications.delivery_rules import local_week
from gpuledger_collector.storage.notifications.finding_rules import (
    ANOMALY,
    IDLE,
    TOLD_STATES,
    AnomalyNews,
    Contact,
    Holding,
    IdleNews,
    Notification,
    Section,
    SummaryNews,
    Wasted,
    deduplication_key,
    must_escalate,
    of_team,
    recipients_of,
    told_cards,
)
from gpuledger_collector.storage.notifications.messages import Content, Message
from gpuledger_common.plurals import plural

KEPT_MS = 90 * DAY_MS
"""Letters that ended longer ago than this are looked at no more."""
LATEST_MS = 2 * DAY_MS
"""An anomaly that was opened longer ago than this is no news."""
SUMMARY = "summary"


class NotificationTransaction(Protocol):
    """One transaction, alone in writing letters."""

    def contacts(self) -> Sequence[Contact]:
        """Who is written to."""

    def prices(self) -> Sequence[Price]:
        """The price book in force."""

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""

    def holdings(self, at_ms: int) -> Sequence[Holding]:
        """Workloads with accelerators that are found idle now."""

    def anomalies(self, at_ms: int) -> Sequence[Finding]:
        """Spending that stands out and goes on."""

    def idle_between(self, start_ms: int, end_ms: int) -> Sequence[Mapping[str, Any]]:
        """Idle findings of a period with names, and `gpu_micro` of the accelerator."""

    def notifications(self, kind: str, since_ms: int) -> Sequence[Notification]:
        """Letters of a kind that were told since, go on, or are meant so."""

    def add(self, notification: Notification) -> int | None:
        """A letter, with its number; None when its episode was told before."""

    def keep(self, notification: Notification) -> None:
        """A letter as it is now."""

    def put(self, message: Message) -> bool:
        """A message of this transaction."""


class Notifications(Protocol):
    """Where letters are kept."""

    def unit(self) -> AbstractContextManager[NotificationTransaction]:
        """A transaction, alone in writing letters."""


@dataclass(frozen=True, slots=True)
class Writers:
    """How each kind of letter is put into words."""

    idle: Callable[[IdleNews], Content]
    anomaly: Callable[[AnomalyNews], Content]
    summary: Callable[[SummaryNews], Content]


@dataclass
class Written:
    """What a round did; `unreachable`: workloads whose owner has no address, and whose team has no recipients."""

    told: int = 0
    escalated: int = 0
    closed: int = 0
    anomalies: int = 0
    summaries: int = 0
    unreachable: int = 0

    def __str__(self) -> str:
        """For the run's record."""
        return (
            f"{plural(self.told, 'idle episode')} told, {self.escalated} escalated, {self.closed} ended, "
            f"{self.anomalies} of spending told, {plural(self.summaries, 'notification')} about a week, "
            f"{self.unreachable} without an address"
        )


def notify_findings(store: Notifications, at_ms: int, writers: Writers) -> Written:
    """One round as of an instant."""
    done = Written()
    with store.unit() as unit:
        contacts = unit.contacts()
        if contacts:
            _idle(unit, contacts, at_ms, writers, done)
            _anomalies(unit, contacts, at_ms, writers, done)
            _summaries(unit, contacts, at_ms, writers, done)
    return done


def _idle(
    unit: NotificationTransaction, contacts: Sequence[Contact], at_ms: int, writers: Writers, done: Written
) -> None:
    found = {str(one.workload_id): one for one in unit.holdings(at_ms)}
    notifications = list(unit.notifications(IDLE, at_ms - KEPT_MS))
    still = [
        _brought_up(unit, notification, found.get(notification.subject), at_ms, done) for notification in notifications
    ]
    current = {notification.subject: notification for notification in still if notification.closed_ms is None}
    muted = {notification.subject for notification in still if notification.acknowledged(at_ms)}
    rounds = {notification.subject: sum(one.subject == notification.subject for one in still) for notification in still}
    new: dict[tuple[str, ...], list[tuple[Holding, bool]]] = {}
    late: dict[tuple[str, ...], list[tuple[Notification, Holding, Contact]]] = {}
    for subject, holding in found.items():
        contact = of_team(contacts, holding.team)
        _, cards = told_cards(holding, contact, at_ms)
        if not cards or subject in muted:
            continue
        holding = replace(holding, cards=cards)
        notification = current.get(subject)
        if notification is not None:
            if must_escalate(notification, contact, at_ms):
                late.setdefault(contact.leads, []).append((notification, holding, contact))
            continue
        recipients = recipients_of(holding, contacts)
        if not recipients:
            done.unreachable += 1
            continue
        to_owner = recipients != contact.recipients
        new.setdefault(recipients, []).append((holding, to_owner))
    for recipients, several in sorted(new.items()):
        _tell(unit, recipients, several, contacts, rounds, at_ms, writers, done)
    for leads, waiting in sorted(late.items()):
        _escalate(unit, leads, waiting, at_ms, writers, done)


def _brought_up(
    unit: NotificationTransaction, notification: Notification, holding: Holding | None, at_ms: int, done: Written
) -> Notification:
    """An open letter as its episode is now: ended, gone on, or to be told anew because it was meant so until now."""
    goes_on = holding is not None and any(card.finding.key in notification.findings for card in holding.cards)
    if notification.closed_ms is not None and not (goes_on and notification.ack_until_ms is None):
        return notification
    # What had ended and goes on after all is the same episode still: it was told.
    notification = replace(notification, closed_ms=None)
    if holding is None or not goes_on:
        done.closed += 1
        notification = replace(notification, closed_ms=at_ms)
    elif notification.ack_until_ms is not None and at_ms >= notification.ack_until_ms:
        notification = replace(notification, closed_ms=notification.ack_until_ms)
    else:
        keys = tuple(dict.fromkeys([*notification.findings, *(card.finding.key for card in holding.cards)]))
        changed = replace(notification, findings=keys, until_ms=max(notification.until_ms, holding.until_ms))
        if changed == notification:
            return notification
        notification = changed
    unit.keep(notification)
    return notification


def _tell(
    unit: NotificationTransaction,
    recipients: tuple[str, ...],
    several: Sequence[tuple[Holding, bool]],
    contacts: Sequence[Contact],
    rounds: Mapping[str, int],
    at_ms: int,
    writers: Writers,
    done: Written,
) -> None:
    sections = []
    for holding, _ in several:
        subject = str(holding.workload_id)
        key = f"{IDLE}:{subject}:{holding.since_ms}:{rounds.get(subject, 0)}"
        keys = tuple(card.finding.key for card in holding.cards)
        number = unit.add(
            Notification(
                0, key, IDLE, subject, holding.team, recipients, keys, holding.since_ms, holding.until_ms, at_ms
            )
        )
        if number is not None:
            sections.append(Section(number, holding))
    if not sections:
        return
    done.told += len(sections)
    days = of_team(contacts, sections[0].holding.team).escalate_days
    leads = any(of_team(contacts, section.holding.team).leads for section in sections)
    news = IdleNews(tuple(sections), at_ms, days if leads else 0, to_owner=all(owner for _, owner in several))
    _put(unit, f"{IDLE}/{sections[0].notification_id}", IDLE, recipients, writers.idle(news), at_ms)


def _put(
    unit: NotificationTransaction, key: str, kind: str, recipients: Sequence[str], content: Content, at_ms: int
) -> None:
    thread = key.removesuffix("/escalated")
    for recipient in recipients:
        unit.put(Message(key, kind, recipient, content, at_ms, at_ms, thread))


def _escalate(
    unit: NotificationTransaction,
    leads: tuple[str, ...],
    waiting: Sequence[tuple[Notification, Holding, Contact]],
    at_ms: int,
    writers: Writers,
    done: Written,
) -> None:
    for notification, _, _ in waiting:
        unit.keep(replace(notification, escalated_ms=at_ms))
    done.escalated += len(waiting)
    sections = tuple(Section(notification.id, holding) for notification, holding, _ in waiting)
    told_to = tuple(dict.fromkeys(one for notification, _, _ in waiting for one in notification.recipients))
    told_ms = min(notification.told_ms for notification, _, _ in waiting)
    news = IdleNews(sections, at_ms, waiting[0][2].escalate_days, told_ms, told_to, to_owner=False)
    _put(unit, f"{IDLE}/{waiting[0][0].id}/escalated", IDLE, leads, writers.idle(news), at_ms)


def _anomalies(
    unit: NotificationTransaction, contacts: Sequence[Contact], at_ms: int, writers: Writers, done: Written
) -> None:
    """An episode is told once, however it grows, and nobody is told that it was meant so: a later one is told again."""
    known = list(unit.notifications(ANOMALY, at_ms - KEPT_MS))
    found = unit.anomalies(at_ms)
    open_keys = {one.key for one in found}
    for notification in known:
        if (
            notification.closed_ms is None
            and not open_keys & set(notification.findings)
            and notification.told_ms < at_ms - LATEST_MS
        ):
            unit.keep(replace(notification, closed_ms=at_ms))
    for one in found:
        subject = f"{one.subject}:{one.currency or ''}"
        contact = of_team(contacts, one.team)
        recipients = contact.recipients or contact.leads
        # Spending that one job makes most of, and of whose storm was told, is that storm, grown.
        matters = {
            deduplication_key(one.key, subject),
            *(f"{subject}:{job}" for job in one.evidence.get("workloads", [])[:1]),
        }
        # A new look may move an episode's begin, and with it its key: what overlaps is the same episode.
        same = next(
            (
                notification
                for notification in known
                if one.key in notification.findings
                or (
                    notification.matter in matters
                    and notification.until_ms >= one.since_ms
                    and notification.since_ms < one.until_ms
                )
            ),
            None,
        )
        if same is not None:
            keys = tuple(dict.fromkeys([*same.findings, one.key]))
            grown = replace(same, until_ms=max(same.until_ms, one.until_ms), findings=keys)
            if grown != same:
                known[known.index(same)] = grown
                unit.keep(grown)
            continue
        if not recipients or one.opened_ms < at_ms - LATEST_MS:
            continue
        number = unit.add(
            Notification(
                0, one.key, ANOMALY, subject, one.team, recipients, (one.key,), one.since_ms, one.until_ms, at_ms
            )
        )
        if number is not None:
            done.anomalies += 1
            content = writers.anomaly(AnomalyNews(number, one, at_ms))
            _put(unit, f"{ANOMALY}/{number}", ANOMALY, recipients, content, at_ms)


def _summaries(
    unit: NotificationTransaction, contacts: Sequence[Contact], at_ms: int, writers: Writers, done: Written
) -> None:
    """Last week's sum to the leads of each team, in the first round of a week."""
    rows: dict[tuple[int, int], Sequence[Mapping[str, Any]]] = {}
    for contact in contacts:
        if not (contact.team and contact.leads and contact.summary):
            continue
        this = local_week(contact.zone, at_ms)
        week = local_week(contact.zone, this.start_ms - 1)
        span = (week.start_ms, week.end_ms)
        if span not in rows:
            rows[span] = unit.idle_between(*span)
        own = {one.team for one in contacts if one.team}
        teams = {row["team"] for row in rows[span]}
        mine = sorted(teams - own) if contact.team == "*" else [contact.team]
        for team in mine:
            news = _summary(unit, contacts, team, rows[span], week.start_ms, week.end_ms, contact.zone)
            if not news.wasted:
                continue
            key = f"{SUMMARY}/{team}/{week.start_ms}"
            content = writers.summary(news)
            put = [
                unit.put(Message(key, SUMMARY, lead, content, at_ms, at_ms, f"{SUMMARY}/{team}"))
                for lead in contact.leads
            ]
            done.summaries += any(put)


def _summary(
    unit: NotificationTransaction,
    contacts: Sequence[Contact],
    team: str,
    rows: Sequence[Mapping[str, Any]],
    start_ms: int,
    end_ms: int,
    zone: str,
) -> SummaryNews:
    book = PriceBook(unit.prices(), unit.purchase_choices())
    of_workload: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["team"] == team and row["state"] in TOLD_STATES and row["workload_id"] is not None:
            of_workload.setdefault(row["workload_id"], []).append(row)
    wasted = [_wasted(several, start_ms, end_ms, book) for several in of_workload.values()]
    notifications = [
        one for one in unit.notifications(IDLE, start_ms) if one.team == team and start_ms <= one.told_ms < end_ms
    ]
    reached = {one.subject for one in notifications}
    holdings = [one for one in unit.holdings(end_ms) if one.team == team and str(one.workload_id) not in reached]
    unreachable = tuple(sorted({one.user or one.label for one in holdings if not recipients_of(one, contacts)}))
    return SummaryNews(
        team,
        start_ms,
        end_ms,
        zone,
        tuple(sorted((one for one in wasted if one.gpu_ns), key=lambda one: (-(one.cost_micro or 0), one.label))),
        len(notifications),
        sum(one.acked_ms is not None for one in notifications),
        sum(one.closed_ms is not None and one.acked_ms is None for one in notifications),
        unreachable,
    )


def _wasted(rows: Sequence[Mapping[str, Any]], start_ms: int, end_ms: int, book: PriceBook) -> Wasted:
    """What one workload wasted inside a period, exactly: its rating intervals of the period at the rates in force in
    them.
    """
    gpu_ns, cost, day = 0, 0, 0
    currencies: set[str | None] = set()
    for row in rows:
        evidence = row["evidence"]
        inside = {int(at): ns for at, ns in evidence["wasted_gpu_ns"].items() if start_ms <= int(at) < end_ms}
        place = AcceleratorPlace(
            row["gpu_micro"], evidence.get("pool", ""), row["model"] or "", evidence.get("node", "")
        )
        priced = price_waste(place, inside, book, end_ms - 1)
        gpu_ns += priced.gpu_ns
        if not priced.gpu_ns:
            continue
        currencies.add(priced.currency if priced.cost_micro is not None else None)
        cost += priced.cost_micro or 0
        day += (priced.per_day_micro or 0) if row["resolved_ms"] is None else 0
    one = next(iter(currencies), None) if len(currencies) == 1 else None
    return Wasted(
        rows[0]["workload_name"] or rows[0]["workload"] or "",
        rows[0]["user_name"] or "",
        tuple(sorted({row["state"] for row in rows})),
        gpu_ns,
        one,
        None if one is None else cost,
        any(row["resolved_ms"] is None for row in rows),
        None if one is None else day,
    )

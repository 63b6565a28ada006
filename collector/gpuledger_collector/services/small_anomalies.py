"""Unusual spending that was not mailed by itself, told once a week."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.notifications.anomaly_floors import (
    USUAL_DAYS,
    AnomalyFloors,
    UsualCosts,
)
from gpuledger_collector.insight.notifications.delivery_rules import local_week
from gpuledger_collector.insight.notifications.finding_rules import (
    ANOMALY,
    AnomalyAcknowledgment,
    Contact,
    Notification,
    anomaly_subject,
    find_same_episode,
    is_intended,
    team_contact,
)
from gpuledger_collector.storage.billing import budgets
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.notifications import finding_notifications, notification_rules

LATE_MS = 7 * DAY_MS
"""What was found so long before the week, by late evidence, is told with it."""
LOOKED_BACK_MS = LATE_MS + 15 * DAY_MS
"""The last week began at most fifteen days ago."""


@dataclass(frozen=True, slots=True)
class CollectedEpisodes:
    """Episodes of a week for the same people, the dearest first."""

    recipients: tuple[str, ...]
    zone: str
    week: Period
    findings: tuple[Finding, ...]


def anomaly_floors(connection: Connection, at_ms: int) -> AnomalyFloors:
    """What unusual spending must come to before it is mailed by itself, at an instant."""
    declared = {
        floor.currency: floor.amount_micro
        for floor in notification_rules.anomaly_floors(connection)
    }
    return AnomalyFloors(declared, _usual_costs(connection, at_ms))


def _usual_costs(connection: Connection, at_ms: int) -> UsualCosts:
    """What GPUs cost on the last rated days before the present one."""
    today_ms = zones.calendar(connection).day_of(at_ms).start_ms
    days = budgets.last_rated_days(connection, today_ms, USUAL_DAYS)
    period = Period(min(days, default=today_ms), today_ms)
    of_all, of_teams = (
        {key: sum(by_day.values()) for key, by_day in costs.items()}
        for costs in (
            budgets.costs_by_owner(connection, levels, period) for levels in ((), ("team",))
        )
    )
    return UsualCosts(
        len(days),
        {currency: micro for (_, currency), micro in of_all.items()},
        {(team, currency): micro for ((team,), currency), micro in of_teams.items()},
    )


def find_collected(
    connection: Connection, episodes: Sequence[Finding], at_ms: int
) -> frozenset[str]:
    """Keys of those of these episodes that are told in the mail of a week and in none of their own:
    that were told in one, or are small and will be in the next.
    """
    contacts = notification_rules.contacts(connection) if episodes else []
    if not contacts:
        return frozenset()
    since_ms = min(finding.since_ms for finding in episodes)
    known = finding_notifications.recent(connection, ANOMALY, since_ms)
    alone = [each for each in known if not each.is_collected]
    collected = [each for each in known if each.is_collected]
    acknowledgments = finding_notifications.anomaly_acknowledgments(connection)
    floors = cache(partial(anomaly_floors, connection, at_ms))
    keys = set()
    for finding in episodes:
        if find_same_episode(alone, finding, anomaly_subject(finding)) is not None:
            continue
        contact = team_contact(contacts, finding.team)
        is_told = find_same_episode(collected, finding, anomaly_subject(finding)) is not None
        if is_told or (
            finding.opened_ms >= local_week(contact.zone, at_ms).start_ms - LATE_MS
            and _is_to_be_told(finding, contact, acknowledgments, at_ms)
            and floors().is_collected(finding)
        ):
            keys.add(finding.key)
    return frozenset(keys)


def _is_to_be_told(
    finding: Finding,
    contact: Contact,
    acknowledgments: Sequence[AnomalyAcknowledgment],
    at_ms: int,
) -> bool:
    """Whether there is somebody to tell, and nobody said that it is intended."""
    return bool(contact.recipients or contact.leads) and not is_intended(
        finding, acknowledgments, at_ms
    )


def list_due_collections(
    connection: Connection,
    contacts: Sequence[Contact],
    floors: Callable[[], AnomalyFloors],
    known: Sequence[Notification],
    acknowledgments: Sequence[AnomalyAcknowledgment],
    at_ms: int,
) -> Iterator[CollectedEpisodes]:
    """The episodes of the last week that nobody was notified of, for the first run of a week: once
    for the same people, where they come to something together.

    `floors` is asked only where there is one.
    """
    untold: dict[tuple[tuple[str, ...], str], list[Finding]] = defaultdict(list)
    for finding in findings.overlapping(connection, ANOMALY, at_ms - LOOKED_BACK_MS, at_ms):
        contact = team_contact(contacts, finding.team)
        recipients = contact.recipients or contact.leads
        if (
            _is_to_be_told(finding, contact, acknowledgments, at_ms)
            and find_same_episode(known, finding, anomaly_subject(finding)) is None
            and floors().is_by_usual(finding)
        ):
            untold[recipients, contact.zone].append(finding)
    for (recipients, zone), candidates in sorted(untold.items()):
        this_week = local_week(zone, at_ms)
        week = local_week(zone, this_week.start_ms - 1)
        is_told = any(
            each.is_collected
            and each.recipients == recipients
            and each.notified_ms >= this_week.start_ms
            for each in known
        )
        due = [
            finding
            for finding in candidates
            if week.start_ms - LATE_MS <= finding.opened_ms < week.end_ms
        ]
        if due and not is_told and floors().usual.are_worth_a_mail(due):
            due.sort(key=lambda each: (-(each.cost_micro or 0), each.key))
            yield CollectedEpisodes(recipients, zone, week, tuple(due))

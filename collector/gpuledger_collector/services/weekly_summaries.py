"""Weekly summaries: what each team held idle in the last week, for its leads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.insight.findings import NamedFinding
from gpuledger_collector.insight.notifications.delivery_rules import local_week
from gpuledger_collector.insight.notifications.finding_rules import (
    IDLE,
    Contact,
    IdleWeek,
    WeeklySummary,
    recipients_of,
)
from gpuledger_collector.insight.notifications.weekly_waste import add_up_week, waste_by_workload
from gpuledger_collector.storage.billing import budgets, prices
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.findings.idle_workloads import idle_workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.notifications import (
    finding_notifications,
)

MIN_SUMMARY_GPU_HOURS = 24
"""A week with less idle time is not worth a lead's minute: a day of one GPU, in any currency."""


def list_due_summaries(
    connection: Connection, contacts: Sequence[Contact], at_ms: int
) -> Iterator[tuple[tuple[str, ...], WeeklySummary]]:
    """The summary of the last week for the leads of each team that asked for one, where it is worth
    reading.
    """
    rows: dict[Period, list[NamedFinding]] = {}
    own_contact = {contact.team for contact in contacts if contact.team}
    for contact in contacts:
        if not (contact.team and contact.leads and contact.summary):
            continue
        # The week that holds the last millisecond before this one: correct where clocks change,
        # unlike minus seven days.
        week = local_week(contact.zone, local_week(contact.zone, at_ms).start_ms - 1)
        if week not in rows:
            rows[week] = findings.list_named(connection, IDLE, week.start_ms, week.end_ms)
        teams = (
            sorted({row.team for row in rows[week]} - own_contact)
            if contact.team == "*"
            else [contact.team]
        )
        for team in teams:
            summary = replace(
                _summary(connection, contacts, team, rows[week], week, contact.zone),
                before=_week_before(connection, team, week, contact.zone),
            )
            idle_ns = sum(usage.gpu_ns for usage in summary.wasted)
            if idle_ns >= MIN_SUMMARY_GPU_HOURS * GPU_NS_PER_HOUR:
                yield contact.leads, summary


def _week_before(connection: Connection, team: str, week: Period, zone: str) -> IdleWeek | None:
    """The idle usage of the team in the week before; None when the ledger did not cover all of
    it.
    """
    before = local_week(zone, week.start_ms - 1)
    if budgets.known_since(connection, before) > before.start_ms:
        return None
    rows = findings.list_named(connection, IDLE, before.start_ms, before.end_ms)
    return add_up_week(waste_by_workload(rows, team, before, prices.price_book(connection, before)))


def _summary(
    connection: Connection,
    contacts: Sequence[Contact],
    team: str,
    rows: Sequence[NamedFinding],
    week: Period,
    zone: str,
) -> WeeklySummary:
    wasted = waste_by_workload(rows, team, week, prices.price_book(connection, week))
    sent = [
        notification
        for notification in finding_notifications.recent(connection, IDLE, week.start_ms)
        if notification.team == team and week.start_ms <= notification.notified_ms < week.end_ms
    ]
    reached = {notification.subject for notification in sent}
    unreachable = {
        workload.user or workload.label
        for workload in idle_workloads(connection, week.end_ms)
        if workload.team == team
        and str(workload.workload_id) not in reached
        and not recipients_of(workload, contacts)
    }
    return WeeklySummary(
        team,
        week.start_ms,
        week.end_ms,
        zone,
        tuple(
            sorted(
                (usage for usage in wasted if usage.gpu_ns),
                key=lambda usage: (-(usage.cost_micro or 0), usage.label),
            )
        ),
        notified=len(sent),
        acknowledged=sum(notification.acked_ms is not None for notification in sent),
        ended=sum(
            notification.closed_ms is not None and notification.acked_ms is None
            for notification in sent
        ),
        unreachable=tuple(sorted(unreachable)),
    )

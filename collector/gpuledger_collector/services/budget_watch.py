"""Watch budgets: compare charges with each budget, and notify of every threshold that is crossed.

The alerts of a budget and their messages are written in one transaction, alone in watching budgets:
a run that stops anywhere, and two at once, notify of each threshold once. A period is watched for
two days after its end, since charges may come late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from gpuledger_collector.accounting.budget_status import News, Status
from gpuledger_collector.accounting.budgets import (
    TOTAL,
    Alert,
    Budget,
    HolderSpend,
    Reading,
    drivers,
    evaluate,
    is_urgent,
    must_escalate,
    send_at,
    top,
)
from gpuledger_collector.accounting.change_causes import SHARED
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.services.budget_status import (
    evaluate_shares,
    shared_cost,
    status_of,
    statuses,
)
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.billing import budgets, spend_forecasts
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings.idle_workloads import idle_of_budget
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.notifications import outbox

LATE_MS = 2 * DAY_MS
SHOWN_DRIVERS = 5
SHOWN_IDLE = 3
KIND = "budget"

Begin = Callable[[], AbstractContextManager[Connection]]
Write = Callable[[News], Content]


def watch_budgets(database: Database, at_ms: int, write: Write) -> int:
    """Watch every budget as of an instant; return how many messages were put into the outbox."""
    return _watch_all(partial(database.transaction, Lock.BUDGETS), at_ms, write)


def replay_budgets(
    database: Database, instants: Sequence[int], write: Write, *, dry_run: bool
) -> None:
    """Watch every budget as of each instant; a dry run sends nothing and leaves no trace."""
    if not dry_run:
        for at_ms in instants:
            watch_budgets(database, at_ms, write)
        return
    # All instants in one transaction: an alert that has fired must be seen by the instants after
    # it.
    with database.transaction(dry_run=True) as connection:
        for at_ms in instants:
            _watch_all(lambda: nullcontext(connection), at_ms, write)


def refresh_budgets(database: Database, now_ms: int) -> list[Status]:
    """Bring what budgets rest on up to date, and report each of them."""
    with database.transaction() as connection:
        periods = {budget.period_at(now_ms) for budget in budgets.current(connection)}
    for period in periods:
        refresh(database, period, now_ms)
    with database.transaction() as connection:
        for budget in budgets.current(connection):
            evaluate_shares(connection, budget, budget.period_at(now_ms), now_ms)
        return statuses(connection, now_ms)


def _watch_all(begin: Begin, at_ms: int, write: Write) -> int:
    """Watch every budget; `begin` opens a transaction, alone in watching budgets, for each."""
    with begin() as connection:
        watched = _list_watched(connection, at_ms)
    return sum(_watch(begin, budget, period, at_ms, write) for budget, period in watched)


def _list_watched(connection: Connection, at_ms: int) -> list[tuple[Budget, Period]]:
    watched = []
    for budget in budgets.current(connection):
        periods = dict.fromkeys((budget.period_at(at_ms - LATE_MS), budget.period_at(at_ms)))
        watched += [
            (budget, period)
            for period in periods
            if period.start_ms <= at_ms < period.end_ms + LATE_MS
        ]
    return watched


def _watch(begin: Begin, budget: Budget, period: Period, at_ms: int, write: Write) -> int:
    with begin() as connection:
        if not budgets.is_in_force(connection, budget.id):
            return 0
        known = budgets.alerts(connection, budget, period)
        evaluate_shares(connection, budget, period, at_ms)
        status = status_of(connection, budget, period, at_ms)
        if not status.is_rated:
            return 0
        assert status.spend.micro is not None  # its shares were just computed
        evaluation = evaluate(budget, _reading(status, status.spend.micro), known)
        after = {(alert.rule, alert.percent): alert for alert in (*known, *evaluation.changed)}
        notified = _highest_by_rule(evaluation.fired)
        late = [alert for alert in after.values() if must_escalate(budget, alert, at_ms)]
        escalated = [replace(alert, escalated_ms=at_ms) for alert in late]
        budgets.upsert_alerts(
            connection, budget, period, [*evaluation.changed, *escalated], status.spend.micro
        )
        if at_ms < period.end_ms:
            spend_forecasts.upsert_budget(connection, status)
        if not notified and not escalated:
            return 0
        status = replace(status, alerts=tuple(after.values()))
        since = max((alert.fired_ms for alert in known if alert.fired_ms is not None), default=None)
        put = 0
        for alert, also in notified:
            news = _news(connection, status, alert, also, since)
            put += _put(connection, news, write, budget.terms.recipients, "")
        for alert in escalated:
            news = replace(_news(connection, status, alert, (), since), escalated=True)
            put += _put(connection, news, write, budget.terms.escalate_to, "/escalated")
        return put


def _highest_by_rule(fired: Sequence[Alert]) -> list[tuple[Alert, tuple[Alert, ...]]]:
    """The highest threshold of each rule that fires now, with the lower ones that fire too: one
    message a rule.
    """
    highest = {alert.rule: alert for alert in sorted(fired, key=lambda alert: alert.percent)}
    return [
        (alert, tuple(other for other in fired if other.rule == alert.rule and other is not alert))
        for alert in highest.values()
    ]


def _put(
    connection: Connection, news: News, write: Write, recipients: Sequence[str], suffix: str
) -> int:
    budget, period, alert, at_ms = (
        news.status.budget,
        news.status.period,
        news.alert,
        news.status.at_ms,
    )
    thread = f"budget/{budget.id}/{period.start_ms}"
    key = f"{thread}/{alert.rule}/{alert.percent}{suffix}"
    content = write(news)
    not_before = send_at(budget.terms, alert, at_ms)
    urgent = is_urgent(alert)
    return sum(
        outbox.insert(
            connection, Message(key, KIND, recipient, content, at_ms, not_before, thread, urgent)
        )
        for recipient in recipients
    )


def _reading(status: Status, spent_micro: int) -> Reading:
    ahead = status.ahead
    return Reading(
        status.at_ms,
        status.period,
        spent_micro,
        None if ahead is None else ahead.likely_micro,
        None if ahead is None else ahead.middle_micro,
        status.pace_percents,
    )


def _news(
    connection: Connection,
    status: Status,
    alert: Alert,
    also: tuple[Alert, ...],
    since_ms: int | None,
) -> News:
    """What changed: whole days since the last message (else since the period began) compared with
    as many days before.

    When the ledger has fewer days before, the latest days are compared with as many as there are.
    """
    period = status.period
    days = status.budget.calendar
    end_ms = days.day_of(status.known_ms).start_ms
    start_ms = period.start_ms if since_ms is None else days.day_of(since_ms).start_ms
    start_ms = max(min(start_ms, days.day_of(end_ms - 1).start_ms), 0)
    since = days.days(Period(start_ms, end_ms))
    wanted_ms = days.days_before(start_ms, len(since))
    before = Period(budgets.known_since(connection, Period(wanted_ms, start_ms)), start_ms)
    known = len(days.days(before))
    after = Period(since[-known].start_ms if known else start_ms, end_ms)
    changes = drivers(
        _holders(connection, status.budget, before) if known else (),
        _holders(connection, status.budget, after),
    )
    idle = tuple(idle_of_budget(connection, status.budget, status.at_ms))[:SHOWN_IDLE]
    return News(
        alert,
        also,
        status,
        before if known else None,
        after,
        tuple(top(changes, SHOWN_DRIVERS)),
        since_ms is not None,
        idle=idle,
        shortened=known < len(since),
    )


def _holders(connection: Connection, budget: Budget, days: Period) -> list[HolderSpend]:
    """What counted against a budget in some days by holder, with shares of common costs as one
    more.
    """
    holders = [*budgets.spend_by_holder(connection, budget, days)]
    shared = shared_cost(connection, budget, days, days.end_ms) if budget.measure == TOTAL else 0
    return [*holders, HolderSpend((SHARED, "", ""), "", 0, shared)] if shared else holders

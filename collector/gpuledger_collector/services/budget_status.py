"""Budgets: how much of each is spent so far, and where it is heading.

Shares of common costs depend on what everybody held. `evaluate_shares` computes those of budgets on
total cost from the entire ledger, and stores them for readers who see a part of it, and for
dashboards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial

from gpuledger_collector.accounting.budget_status import Ahead, Status
from gpuledger_collector.accounting.budgets import TOTAL, Budget
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.insight.spend import (
    MAX_HISTORY_DAYS,
    budget_exhaustion,
    forecast_period,
    whole_days_of_spend,
)
from gpuledger_collector.services.findings import WHOLE_FLEET, Viewer
from gpuledger_collector.storage.billing import budgets
from gpuledger_collector.storage.billing.allocation import allocate
from gpuledger_collector.storage.billing.budgets import DaySpend
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer
from gpuledger_common.largest_remainder import split

BURN_HOURS = (1, 6)


class RatedDays:
    """From when and up to when the ledger is rated, read once for several budgets."""

    def __init__(self, connection: Connection) -> None:
        self.until = cache(partial(budgets.rated_until, connection))
        self.since = cache(partial(budgets.rated_since, connection))


def statuses(connection: Connection, at_ms: int, viewer: Viewer = WHOLE_FLEET) -> list[Status]:
    """Report every budget that a viewer may see in its period at an instant: ended ranges as they
    ended, future ones left out.
    """
    with as_viewer(connection, viewer.owner):
        return [
            replace(
                status,
                pace_percents=_pace(connection, status),
                alerts=tuple(budgets.alerts(connection, status.budget, status.period)),
            )
            for status in standings(connection, at_ms, viewer)
        ]


def standings(
    connection: Connection,
    at_ms: int,
    viewer: Viewer,
    shown: Viewer | None = None,
) -> list[Status]:
    """The same without pace and alerts, which cost more to read than the rest; `shown` narrows it
    further.
    """
    scope = viewer if shown is None else shown
    with as_viewer(connection, viewer.owner):
        periods = [(budget, budget.period_at(at_ms)) for budget in budgets.current(connection)]
        wanted = [
            (budget, period)
            for budget, period in periods
            if period.start_ms <= at_ms and scope.sees(budget.owner)
        ]
        return standings_of(connection, wanted, at_ms)


def evaluate_shares(connection: Connection, budget: Budget, period: Period, at_ms: int) -> None:
    """Compute and store the shares of common costs of a period and of a forecast's history; only of
    total cost.
    """
    if budget.measure != TOTAL:
        return
    rated = RatedDays(connection)
    known_ms = known_until(rated, period, at_ms)
    since_ms = min(period.start_ms, history_since(rated, budget.calendar, known_ms))
    parts = [
        part
        for span in (Period(since_ms, period.start_ms), Period(period.start_ms, known_ms))
        for part in _months(budget.calendar, span)
    ]
    budgets.upsert_shares(
        connection, budget, {part: shared_cost(connection, budget, part, at_ms) for part in parts}
    )


def _months(calendar: Calendar, span: Period) -> list[Period]:
    """The parts of a span by month: shared costs are split month by month."""
    parts, start_ms = [], span.start_ms
    while start_ms < span.end_ms:
        end_ms = min(calendar.month(calendar.month_of(start_ms)).end_ms, span.end_ms)
        parts.append(Period(start_ms, end_ms))
        start_ms = end_ms
    return parts


def shared_cost(connection: Connection, budget: Budget, span: Period, at_ms: int) -> int:
    """Return the owner's shares of common costs in a span, as the chargeback has them, in the
    budget's currency.
    """
    shared = allocate(
        connection, span, tuple(budget.owner) or ("team",), at_ms, budget.owner or None
    ).shared
    return sum(micro for (currency, _), micro in shared.items() if currency == budget.currency)


def known_until(rated: RatedDays, period: Period, at_ms: int) -> int:
    """Up to where the ledger is rated.

    Up to now would be wrong: time without a cost yet would look like a pause.
    """
    return max(rated.until(min(at_ms, period.end_ms)) or period.start_ms, period.start_ms)


def status_of(connection: Connection, budget: Budget, period: Period, at_ms: int) -> Status:
    """The standing of a budget as of an instant, from what is rated by then, with its pace."""
    (status,) = standings_of(connection, [(budget, period)], at_ms)
    return replace(status, pace_percents=_pace(connection, status))


def standings_of(
    connection: Connection, wanted: Sequence[tuple[Budget, Period]], at_ms: int
) -> list[Status]:
    """The standings of budgets in their periods as of an instant, from what is rated by then,
    without their pace.
    """
    rated = RatedDays(connection)
    known = [known_until(rated, period, at_ms) for _, period in wanted]
    since = [
        period.start_ms
        if at_ms >= period.end_ms
        else history_since(rated, budget.calendar, known_ms)
        for (budget, period), known_ms in zip(wanted, known, strict=True)
    ]
    read = [
        (budget, Period(min(since_ms, period.start_ms), known_ms))
        for (budget, period), known_ms, since_ms in zip(wanted, known, since, strict=True)
    ]
    days = budgets.daily_spend(connection, read) if read else {}
    return [
        _standing(connection, budget, period, at_ms, Period(since_ms, known_ms), days[budget.id])
        for (budget, period), known_ms, since_ms in zip(wanted, known, since, strict=True)
    ]


def _standing(
    connection: Connection,
    budget: Budget,
    period: Period,
    at_ms: int,
    history: Period,
    days: Sequence[DaySpend],
) -> Status:
    """The standing of a budget from its days, those of `history` for a forecast included."""
    known_ms = history.end_ms
    own_days = [day for day in days if day.day_ms >= period.start_ms]
    spend = budgets.spend(connection, budget, Period(period.start_ms, known_ms), own_days)
    if known_ms <= period.start_ms:
        spend = replace(spend, micro=None, idle_micro=None, shared_micro=None)
    ahead = None
    if at_ms < period.end_ms and spend.micro is not None:
        by_day = {
            day.day_ms: round(day.amount)
            for day in days
            if day.day_ms >= history.start_ms and day.is_charged
        }
        if budget.measure == TOTAL:
            by_day = _with_shares(by_day, budgets.shares(connection, budget, history))
        ahead = _forecast(budget, period, known_ms, spend.micro, history.start_ms, by_day)
    return Status(
        budget=budget,
        period=period,
        at_ms=at_ms,
        known_ms=known_ms,
        spend=spend,
        ahead=ahead,
        pace_percents=None,
        by_day=_by_day(budget, Period(period.start_ms, known_ms), own_days),
    )


def _by_day(budget: Budget, rated: Period, days: Sequence[DaySpend]) -> tuple[int, ...]:
    """What each rated day added; a day without a charge added nothing."""
    amounts = {day.day_ms: round(day.amount) for day in days}
    return tuple(amounts.get(day.start_ms, 0) for day in budget.calendar.days(rated))


def _with_shares(by_day: Mapping[int, int], parts: Mapping[Period, int]) -> dict[int, int]:
    """Daily costs with the shares of each part of time spread over its days in proportion to them,
    as an estimate.
    """
    spread = dict(by_day)
    for part, shared in parts.items():
        days = [
            day_ms
            for day_ms, micro in by_day.items()
            if part.start_ms <= day_ms < part.end_ms and micro > 0
        ]
        if days and shared > 0:
            for day_ms, micro in zip(
                days, split(shared, [by_day[day_ms] for day_ms in days]), strict=True
            ):
                spread[day_ms] += micro
    return spread


def history_since(rated: RatedDays, days: Calendar, known_ms: int) -> int:
    """The first day that a forecast goes by."""

    today_ms = days.day_of(known_ms).start_ms
    return max(rated.since(known_ms), days.day_of(today_ms - MAX_HISTORY_DAYS * DAY_MS).start_ms)


def _forecast(
    budget: Budget,
    period: Period,
    known_ms: int,
    spent_micro: int,
    since_ms: int,
    by_day: Mapping[int, int],
) -> Ahead | None:
    """The end of a period from the cost of each day since `since_ms`; None where the history is too
    short.
    """

    days = budget.calendar
    history = whole_days_of_spend(days, since_ms, known_ms, by_day)
    forecast = forecast_period(days, period, known_ms, history, spent_micro)
    if forecast is None:
        return None
    out = budget_exhaustion(forecast, budget.amount_micro)
    named = days.date_of(known_ms)
    gone = (out.earliest, out.middle, out.latest)
    dates = [None if day is None else days.start_of(named + timedelta(days=day)) for day in gone]
    return Ahead(*forecast.end, forecast.days_of_history, *dates)


def _pace(connection: Connection, status: Status) -> tuple[int, int] | None:
    """Burn of the last hour and the last six, in percent of the even pace of the period; None once
    it ended.
    """
    budget, period, known_ms, spend = status.budget, status.period, status.known_ms, status.spend
    if status.at_ms >= period.end_ms:
        return None
    if known_ms - max(BURN_HOURS) * HOUR_MS < period.start_ms or spend.micro is None:
        return None
    # Shares of common costs are counted in proportion to the direct cost of the period.
    whole, direct = (
        (spend.micro, spend.micro - spend.shared_micro) if spend.shared_micro else (1, 1)
    )
    if direct <= 0:
        return None
    short, long = (
        budgets.amount_of_range(connection, budget, Period(known_ms - hours * HOUR_MS, known_ms))
        * whole
        * period.ms
        * 100
        // (direct * budget.amount_micro * hours * HOUR_MS)
        for hours in BURN_HOURS
    )
    return short, long

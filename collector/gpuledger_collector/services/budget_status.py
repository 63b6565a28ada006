"""Budgets: what was charged of each so far, and where it is heading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from gpuledger_collector.accounting.budgets import MONTH, Budget
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.insight.spend import MAX_HISTORY_DAYS, budget_exhaustion, forecast_spend
from gpuledger_collector.storage.billing import budgets
from gpuledger_collector.storage.billing.budget_status import Ahead, News, Status
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.notifications.messages import Content

LATE_MS = 2 * DAY_MS
SHOWN_DRIVERS = 5
SHOWN_IDLE = 3
BURN_HOURS = (1, 6)
KIND = "budget"
Write = Callable[[News], Content]


def statuses(connection: Connection, at_ms: int) -> list[Status]:
    """Report every budget in its period at an instant: ended ranges as they ended, future ones left out."""
    return [
        replace(status_of(connection, budget, period, at_ms), alerts=tuple(budgets.alerts(connection, budget, period)))
        for budget in budgets.current(connection)
        if (period := budget.period_at(at_ms)).start_ms <= at_ms
    ]


def status_of(connection: Connection, budget: Budget, period: Period, at_ms: int) -> Status:
    """The standing of a budget as of an instant, from what is rated by then."""
    at_ms_in = min(at_ms, period.end_ms)
    # Up to where the ledger is rated, not up to now: the time in between has no cost yet and would look like a pause.
    known_ms = max(budgets.rated_until(connection, at_ms_in) or period.start_ms, period.start_ms)
    spend = budgets.spend(connection, budget, Period(period.start_ms, known_ms))
    if at_ms >= period.end_ms:
        return Status(
            budget=budget, period=period, at_ms=at_ms, known_ms=known_ms, spend=spend, ahead=None, pace_percents=None
        )
    ahead = _ahead(connection, budget, period, known_ms, spend.cost_micro)
    return Status(
        budget=budget,
        period=period,
        at_ms=at_ms,
        known_ms=known_ms,
        spend=spend,
        ahead=ahead,
        pace_percents=_pace(connection, budget, period, known_ms),
    )


def forecast_owners(
    connection: Connection, level: str, names: Sequence[str], period: Period, at_ms: int
) -> dict[str, dict[str, Ahead]]:
    """Where the spending of each owner of a level goes by the end of a month, by currency, as its budget would say."""
    calendar = zones.calendar(connection)
    known_ms = max(budgets.rated_until(connection, min(at_ms, period.end_ms)) or period.start_ms, period.start_ms)
    since_ms = _history_since(connection, calendar, known_ms)
    read = Period(min(since_ms, period.start_ms), known_ms)
    costs = budgets.costs_by_owner(connection, level, names, read) if read.ms else {}
    forecasts: dict[str, dict[str, Ahead]] = defaultdict(dict)
    for (name, currency), by_day in costs.items():
        spent_micro = sum(cost for day_ms, cost in by_day.items() if day_ms >= period.start_ms)
        # A budget of any amount has the owner's forecast.
        budget = Budget(0, "", {level: name}, MONTH, None, 1, currency, calendar=calendar)
        ahead = _forecast(budget, period, known_ms, spent_micro, since_ms, by_day)
        if ahead is not None:
            forecasts[name][currency] = ahead
    return forecasts


def _ahead(connection: Connection, budget: Budget, period: Period, known_ms: int, spent_micro: int) -> Ahead | None:
    today_ms = budget.calendar.day_of(known_ms).start_ms
    if today_ms >= period.end_ms:
        return None
    since_ms = _history_since(connection, budget.calendar, known_ms)
    by_day = budgets.daily_costs(connection, budget, Period(since_ms, today_ms))
    return _forecast(budget, period, known_ms, spent_micro, since_ms, by_day)


def _history_since(connection: Connection, days: Calendar, known_ms: int) -> int:
    """The first day that a forecast goes by."""

    today_ms = days.day_of(known_ms).start_ms
    return max(budgets.rated_since(connection, known_ms), days.day_of(today_ms - MAX_HISTORY_DAYS * DAY_MS).start_ms)


def _forecast(
    budget: Budget, period: Period, known_ms: int, spent_micro: int, since_ms: int, by_day: Mapping[int, int]
) -> Ahead | None:
    """The end of a period from the cost of each day since `since_ms`; None where the history is too short."""

    days = budget.calendar
    today = days.day_of(known_ms)
    today_ms = today.start_ms
    if today_ms >= period.end_ms:
        return None
    history = [by_day.get(day.start_ms, 0) for day in days.days(Period(since_ms, today_ms))]
    # Days before the owner's first cost are no history: zeros from before a project began would pull the forecast down.
    first = next((at for at, cost in enumerate(history) if cost), len(history))
    left = (today.end_ms - known_ms) / today.ms
    after = len(days.days(Period(today_ms, period.end_ms))) - 1
    forecast = forecast_spend(history[first:], spent_micro, left, after)
    if forecast is None:
        return None
    out = budget_exhaustion(forecast, budget.amount_micro)
    named = days.date_of(today_ms)
    gone = (out.earliest, out.middle, out.latest)
    dates = [None if day is None else days.start_of(named + timedelta(days=day)) for day in gone]
    ends = (forecast.low[-1], forecast.middle[-1], forecast.high[-1], forecast.likely[-1])
    return Ahead(*ends, forecast.days_of_history, *dates)


def _pace(connection: Connection, budget: Budget, period: Period, known_ms: int) -> tuple[int, int] | None:
    """Burn of the last hour and the last six, in percent of the even pace of the period."""
    if known_ms - max(BURN_HOURS) * HOUR_MS < period.start_ms:
        return None
    short, long = (
        budgets.cost_of_range(connection, budget, Period(known_ms - hours * HOUR_MS, known_ms))
        * period.ms
        * 100
        // (budget.amount_micro * hours * HOUR_MS)
        for hours in BURN_HOURS
    )
    return short, long

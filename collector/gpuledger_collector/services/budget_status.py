"""Budgets: what was charged of each so far, and where it is heading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from gpuledger_collector.accounting.budgets import (
    Budget,
)
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.storage.billing import budgets
from gpuledger_collector.storage.billing.budget_status import Ahead, News, Status
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


def _ahead(connection: Connection, budget: Budget, period: Period, known_ms: int, spent_micro: int) -> Ahead | None:
    from gpuledger_collector.insight.spend import (  # numpy: a closed month asks for none
        MAX_HISTORY_DAYS,
        budget_exhaustion,
        forecast_spend,
    )

    days = budget.calendar
    today = days.day_of(known_ms)
    today_ms = today.start_ms
    if today_ms >= period.end_ms:
        return None
    since_ms = max(
        budgets.rated_since(connection, known_ms), days.day_of(today_ms - MAX_HISTORY_DAYS * DAY_MS).start_ms
    )
    history = budgets.daily_costs(connection, budget, Period(since_ms, today_ms))
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

"""What owners have spent by day, and what they will have spent at the end of the month, from rated
days.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.insight.spend import MAX_HISTORY_DAYS, SpendForecast, forecast_spend
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class Ahead:
    """An owner's month in one currency, in micro-units; `forecast` None: `days` whole days are too
    few for one.
    """

    owner: str
    currency: str
    spent: int
    days: int
    forecast: SpendForecast | None


def rated_period(connection: Connection, now_ms: int) -> Period:
    """The days that have to be rated: the history of a forecast, up to now."""
    days = zones.calendar(connection)
    return Period(days.day_of(now_ms - MAX_HISTORY_DAYS * DAY_MS).start_ms, now_ms)


def ahead(connection: Connection, level: str, now_ms: int) -> list[Ahead]:
    """Every owner of a level with what the month of now will have cost, the dearest first.

    Corrections are left out.

    What is spent counts adjustments, as the owner's budget and chargeback do. A day without a
    charge cost nothing, from the owner's first charge on.
    """
    days = zones.calendar(connection)
    today, month = days.day_of(now_ms), days.month(days.month_of(now_ms))
    since_ms = rated_period(connection, now_ms).start_ms
    whole = (
        [day.start_ms for day in days.days(Period(since_ms, today.start_ms))]
        if today.start_ms > since_ms
        else []
    )
    rows = connection.execute(
        f"SELECT coalesce({LEVEL_COLUMNS[level]}, ''), l.currency, l.day_ms,"
        " sum(l.cost_micro)::bigint FROM ledger_day l LEFT JOIN owner o ON o.id = l.owner_id WHERE"
        " l.day_ms >= %s AND l.day_ms < %s AND l.state = ANY(%s) AND l.currency IS NOT NULL GROUP"
        " BY 1, 2, 3",
        (min(since_ms, month.start_ms), today.end_ms, sorted(PAID_BY_OWNERS)),
    )
    costs: dict[tuple[str, str], dict[int, int]] = {}
    for owner, currency, day_ms, cost in rows:
        costs.setdefault((owner, currency), {})[day_ms] = int(cost)
    left = (today.end_ms - now_ms) / (today.end_ms - today.start_ms)
    after = len(days.days(Period(today.start_ms, month.end_ms))) - 1
    series = []
    for (owner, currency), by_day in costs.items():
        history = [by_day.get(day, 0) for day in whole if day >= min(by_day)]
        spent = sum(cost for day, cost in by_day.items() if day >= month.start_ms)
        series.append(
            Ahead(owner, currency, spent, len(history), forecast_spend(history, spent, left, after))
        )
    return sorted(series, key=lambda spend: (spend.currency, -spend.spent, spend.owner))

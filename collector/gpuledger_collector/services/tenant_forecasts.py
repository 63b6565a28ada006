"""What tenants of shared model servers will have cost at the end of the month, charged or shown."""

from __future__ import annotations

from collections import defaultdict

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.insight.spend import (
    MAX_HISTORY_DAYS,
    SHOWN_DAYS,
    OwnerSpend,
    forecast_period,
    whole_days_of_spend,
)
from gpuledger_collector.services.inference_costs import read_days
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones


def forecast_tenants(database: Database, now_ms: int) -> list[OwnerSpend]:
    """Rate what a forecast of this month goes by, and return every tenant with what the month will
    have cost, the dearest first; a key without a team is "".

    By the rule of owners (insight.spend), on all that the tenant pays by the split, idle cost
    included. A day without a cost cost nothing, from the tenant's first one on.
    """
    with database.transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
    today = calendar.day_of(now_ms)
    month = calendar.month(calendar.month_of(now_ms))
    history = Period(calendar.day_of(now_ms - MAX_HISTORY_DAYS * DAY_MS).start_ms, now_ms)
    known = Period(min(history.start_ms, month.start_ms), today.end_ms)
    refresh(database, Period(known.start_ms, now_ms), now_ms)
    costs: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    with database.transaction(read_only=True) as connection:
        for line in read_days(connection, known).lines:
            if line.claimant.is_tenant and line.currency:
                cost = line.used_micro + line.idle_micro
                costs[line.claimant.tenant, line.currency][line.day_ms] += cost
    shown = calendar.days(Period(history.start_ms, today.start_ms))[-SHOWN_DAYS:]
    spends = []
    for (tenant, currency), by_day in costs.items():
        first_ms = min(by_day)
        past = whole_days_of_spend(calendar, history.start_ms, now_ms, by_day)
        spent = sum(cost for day, cost in by_day.items() if day >= month.start_ms)
        lately = tuple(
            None if day.start_ms < first_ms else by_day.get(day.start_ms, 0) for day in shown
        )
        ahead = forecast_period(calendar, month, now_ms, past, spent)
        spends.append(OwnerSpend(tenant, currency, spent, len(past), ahead, lately))
    return sorted(spends, key=lambda each: (each.currency, -each.spent_micro, each.owner))

"""What owners have spent by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select

DailyCosts = Mapping[tuple[str, str], Mapping[int, int]]
"""Micro-units by the start of the day, by owner ("": nobody) and currency."""


def daily_costs(connection: Connection, level: str, period: Period) -> DailyCosts:
    """What every owner of a level pays for each day of a period, without corrections."""
    costs: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    rows = select(
        connection,
        f"SELECT coalesce({LEVEL_COLUMNS[level]}, '') AS owner, l.currency, l.day_ms,"
        " sum(l.cost_micro)::bigint AS cost FROM ledger_day l LEFT JOIN owner o ON o.id ="
        " l.owner_id WHERE l.day_ms >= %s AND l.day_ms < %s AND l.state = ANY(%s) AND"
        " l.currency IS NOT NULL GROUP BY 1, 2, 3",
        (period.start_ms, period.end_ms, sorted(PAID_BY_OWNERS)),
    )
    for row in rows:
        costs[row.owner, row.currency][row.day_ms] = row.cost
    return costs

"""Store a forecast of every pool and team each day, and score those whose hours are known.

A second run changes nothing: a stored forecast is not made again, and scores follow from the demand
as it is known.
"""

from __future__ import annotations

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.forecast_history import (
    HORIZON_HOURS,
    daily_origins,
    forecast_at,
    score_forecast,
)
from gpuledger_collector.storage.capacity import backtests, demand
from gpuledger_collector.storage.database import Database

GROUPS = ("pool", "team")
DAYS = 56
LATE_MS = 3 * DAY_MS
"""Evidence may be this late; until then a score is updated."""


def store_forecasts(database: Database, now_ms: int) -> int:
    """Make the missing forecasts and score the stored ones; return how many were made."""
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - DAYS * DAY_MS
    count = 0
    with database.transaction() as connection:
        for group in GROUPS:
            series = {
                each.name: each for each in demand.demand(connection, start_ms, end_ms, group)
            }
            stored = {
                (each.origin_ms, each.series)
                for each in backtests.stored(connection, group, start_ms)
            }
            for origin_ms in daily_origins(now_ms):
                missing = [each for name, each in series.items() if (origin_ms, name) not in stored]
                forecasts = forecast_at(missing, group, origin_ms, now_ms)
                backtests.put(connection, forecasts)
                count += len(forecasts)
            since_ms = now_ms - HORIZON_HOURS * HOUR_MS - LATE_MS if stored else start_ms
            for forecast in backtests.stored(connection, group, since_ms):
                if forecast.series in series:
                    score = score_forecast(forecast, series[forecast.series])
                    backtests.put_score(connection, forecast, score, now_ms)
    return count

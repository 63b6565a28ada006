"""Keep a forecast of every pool and team each day, and score those whose hours are known.

Runs again change nothing: a forecast that is kept is not made anew, and a score is that of the demand as it is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.forecast import Workloads
from gpuledger_collector.insight.forecast_history import (
    HORIZON_HOURS,
    ForecastScore,
    StoredForecast,
    daily_origins,
    forecast_at,
    score_forecast,
)
from gpuledger_collector.insight.series import Series

GROUPS = ("pool", "team")
DAYS = 56
LATE_MS = 3 * DAY_MS
"""Evidence may come so late; until then a score is taken anew."""


class Unit(Protocol):
    """One transaction over what the job reads and writes."""

    def demand(self, start_ms: int, end_ms: int, group: str) -> Sequence[Series]:
        """Hourly demand."""

    def lives(self, start_ms: int, end_ms: int, group: str) -> Mapping[str, Workloads]:
        """The workloads behind it."""

    def kept(self, group: str, since_ms: int) -> Sequence[StoredForecast]:
        """Forecasts kept since an origin."""

    def put(self, made: Sequence[StoredForecast]) -> None:
        """Keep these."""

    def score(self, kept: StoredForecast, score: ForecastScore, now_ms: int) -> None:
        """Note what came of one."""


class Forecasts(Protocol):
    """Where forecasts are kept."""

    def unit(self) -> AbstractContextManager[Unit]:
        """A transaction."""


def store_forecasts(store: Forecasts, now_ms: int) -> int:
    """Make the forecasts that are missing and score what came; how many were made."""
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - DAYS * DAY_MS
    count = 0
    with store.unit() as unit:
        for group in GROUPS:
            series = unit.demand(start_ms, end_ms, group)
            lives = unit.lives(start_ms, end_ms, group)
            there = {(one.origin_ms, one.series) for one in unit.kept(group, start_ms)}
            for origin_ms in daily_origins(now_ms):
                missing = [one for one in series if (origin_ms, one.name) not in there]
                made = forecast_at(missing, group, origin_ms, now_ms, lives)
                unit.put(made)
                count += len(made)
            by_name = {one.name: one for one in series}
            for one in unit.kept(group, now_ms - HORIZON_HOURS * HOUR_MS - LATE_MS if there else start_ms):
                if one.series in by_name:
                    unit.score(one, score_forecast(one, by_name[one.series]), now_ms)
    return count

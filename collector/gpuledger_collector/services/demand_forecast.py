"""The demand of pools over the last weeks, and its forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.forecast import Forecast, forecast
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.scaling_advice import UnknownPool
from gpuledger_collector.storage.capacity import demand
from gpuledger_collector.storage.capacity.scaling import DEMAND_DAYS
from gpuledger_collector.storage.locks import Connection

MOST_POOLS = 50
"""Pools that an answer forecasts, those of most demand: whoever reports GPUs may name pools by the
hundred, and each takes milliseconds.
"""


@dataclass(frozen=True, slots=True)
class LargestPools:
    """Hourly demand of the pools of most demand, by name, and how many others are known."""

    pools: tuple[Series, ...]
    left_out: int


def pool_demand(connection: Connection, now_ms: int, pool: str | None = None) -> list[Series]:
    """Hourly demand of every pool, or of one, over the last weeks. Raises UnknownPool."""
    # The running hour is not complete and would look like a fall of demand.
    end_ms = now_ms // HOUR_MS * HOUR_MS
    hourly = demand.demand(connection, end_ms - DEMAND_DAYS * DAY_MS, end_ms, "pool")
    chosen = [series for series in hourly if pool in {None, series.name}]
    if pool is not None and not chosen:
        raise UnknownPool(pool)
    return chosen


def largest_pools(connection: Connection, now_ms: int, pool: str | None = None) -> LargestPools:
    """The pools to forecast, or this one: of those without a known hour nothing can be said.

    Raises UnknownPool.
    """
    known = [series for series in pool_demand(connection, now_ms, pool) if series.known]
    by_demand = sorted(known, key=lambda series: (-float(np.nansum(series.values)), series.name))
    largest = sorted(by_demand[:MOST_POOLS], key=lambda series: series.name)
    return LargestPools(tuple(largest), len(known) - len(largest))


def forecast_pools(pools: Sequence[Series], horizon_hours: int) -> list[Forecast]:
    """Forecast the demand of these pools; those without a known hour are left out."""
    return forecast([series for series in pools if series.known], horizon_hours)

"""What is to come: the demand of pools, models and owners, and how good earlier forecasts of it
were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.insight.forecast import Forecast, forecast
from gpuledger_collector.insight.forecast_history import (
    HORIZON_HOURS,
    ForecastRecord,
    daily_origins,
    forecast_at,
    score_forecast,
    summarize_scores,
)
from gpuledger_collector.insight.pool_outlook import Outlook, PoolOutlook, ended_ms, ended_note
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.free_gpus import read_free_gpus
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.scaling_advice import UnknownPool
from gpuledger_collector.storage.capacity import backtests, demand
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection

DAYS = 56
"""How far back the ledger is read by the hour: as much as the estimators use."""
FINE_DAYS = 14
"""How far back usage intervals are read for shorter steps, as far as they are kept."""
STORED_GROUPS = ("pool", "team")
LATE_MS = 3 * DAY_MS
"""Evidence may be this late; until then a score is updated."""
MOST_POOLS = 50
"""Pools that an answer forecasts, those of most demand: whoever reports GPUs may name pools by the
hundred, and each takes milliseconds.
"""
OUTLOOK_PAST_HOURS, OUTLOOK_HOURS = 72, 24
BAND = (0.1, 0.5, 0.9)
"""Quantiles of a forecast that people see: low, likely and high."""


@dataclass(frozen=True, slots=True)
class LargestPools:
    """Hourly demand of the pools of most demand, by name, and how many others are known."""

    pools: tuple[Series, ...]
    left_out: int


def pool_demand(connection: Connection, now_ms: int, pool: str | None = None) -> list[Series]:
    """Hourly demand of every pool, or of one, over the last weeks. Raises UnknownPool."""
    # The running hour is not complete and would look like a fall of demand.
    end_ms = now_ms // HOUR_MS * HOUR_MS
    hourly = demand.demand(connection, end_ms - DAYS * DAY_MS, end_ms, "pool")
    chosen = [series for series in hourly if pool in {None, series.name}]
    if pool is not None and not chosen:
        raise UnknownPool(pool)
    return chosen


def largest_pools(connection: Connection, now_ms: int, pool: str | None = None) -> LargestPools:
    """The pools to forecast, or this one: of those without a known hour nothing can be said.

    Raises UnknownPool.
    """
    known = [series for series in pool_demand(connection, now_ms, pool) if series.known_count]
    by_demand = sorted(known, key=lambda series: (-float(np.nansum(series.values)), series.name))
    largest = sorted(by_demand[:MOST_POOLS], key=lambda series: series.name)
    return LargestPools(tuple(largest), len(known) - len(largest))


def forecast_pools(pools: Sequence[Series], horizon_hours: int, now_ms: int) -> list[Forecast]:
    """Forecast the demand of these pools; those without a known hour are left out, and a note says
    of which the demand has ended.
    """
    known = [series for series in pools if series.known_count]
    forecasts = []
    for series, ahead in zip(known, forecast(known, horizon_hours), strict=True):
        notes = [note for note in (ended_note(series, now_ms), ahead.note) if note]
        forecasts.append(replace(ahead, note="; ".join(notes) or None))
    return forecasts


def days_of_demand(step_ms: int) -> int:
    """How many days of demand there are to read in steps of this length."""
    return DAYS if step_ms == HOUR_MS else FINE_DAYS


def forecast_outlook(database: Database, now_ms: int) -> Outlook:
    """Past and coming demand of the largest pools, and which GPUs are free; takes seconds."""
    with database.connect() as connection:
        largest = largest_pools(connection, now_ms)
        capacity = demand.capacity_by_pool(connection, now_ms)
        free = read_free_gpus(connection, now_ms)
    pools = {series.name: series for series in largest.pools}
    outlooks = []
    ended = {series.name: ended_ms(series, now_ms) for series in largest.pools}
    going_on = [series for series in largest.pools if ended[series.name] is None]
    for ahead in forecast_pools(going_on, OUTLOOK_HOURS, now_ms):
        values = pools[ahead.series].values[-OUTLOOK_PAST_HOURS:]
        band = [ahead.quantiles.index(quantile) for quantile in BAND]
        outlooks.append(
            PoolOutlook(
                name=ahead.series,
                past=tuple(float(value) if np.isfinite(value) else None for value in values),
                ahead=tuple(
                    (low, middle, high) for low, middle, high in ahead.values[:, band].tolist()
                ),
                note=ahead.note or "",
                first_ms=pools[ahead.series].end_ms - (len(values) - 1) * HOUR_MS,
                capacity=capacity.get(ahead.series),
            )
        )
    return Outlook(
        tuple(outlooks),
        largest.left_out,
        tuple((name, until_ms) for name, until_ms in ended.items() if until_ms is not None),
        free=tuple(free),
    )


def stored_outlook(connection: Connection, now_ms: int) -> Outlook | None:
    """What the latest stored forecasts say of the hours still to come, for a page that waits for a
    new one; None: none reaches so far. Past hours are left out: reading them is what takes time.
    """
    hour_ms = now_ms // HOUR_MS * HOUR_MS
    stored = backtests.list_stored(connection, "pool", hour_ms - HORIZON_HOURS * HOUR_MS)
    latest = {each.series: each for each in stored}
    capacity = demand.capacity_by_pool(connection, now_ms) if latest else {}
    outlooks = []
    for name, each in latest.items():
        band = [each.quantiles.index(quantile) for quantile in BAND]
        ahead = each.values[(hour_ms - each.origin_ms) // HOUR_MS - 1 :]
        outlooks.append(
            PoolOutlook(
                name=name,
                past=(),
                ahead=tuple((row[band[0]], row[band[1]], row[band[2]]) for row in ahead),
                note=each.note or "",
                first_ms=hour_ms,
                capacity=capacity.get(name),
            )
        )
    if not outlooks:
        return None
    largest = sorted(
        outlooks, key=lambda pool: (-sum(likely for _, likely, _ in pool.ahead), pool.name)
    )
    return Outlook(
        tuple(sorted(largest[:MOST_POOLS], key=lambda pool: pool.name)),
        max(len(largest) - MOST_POOLS, 0),
        stored_ms=max(each.origin_ms for each in latest.values()) + HOUR_MS,
    )


def refresh_demand(database: Database, now_ms: int, group: str, step_ms: int) -> list[Series]:
    """Bring usage up to date, and return the GPUs held and queued per pool, model or owner over the
    last weeks, up to the last full step.
    """
    end_ms = now_ms // step_ms * step_ms
    start_ms = end_ms - days_of_demand(step_ms) * DAY_MS
    refresh(database, Period(start_ms // HOUR_MS * HOUR_MS, end_ms), now_ms)
    with database.connect() as connection:
        return demand.demand(connection, start_ms, end_ms, group, step_ms)


def store_forecasts(database: Database, now_ms: int) -> int:
    """Store a forecast of every pool and team each day, and score those whose hours are known;
    return how many were made.

    A second run changes nothing: a stored forecast is not made again, and scores follow from the
    demand as it is known.
    """
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - DAYS * DAY_MS
    count = 0
    with database.transaction() as connection:
        for group in STORED_GROUPS:
            series = {
                each.name: each for each in demand.demand(connection, start_ms, end_ms, group)
            }
            stored = {
                (each.origin_ms, each.series)
                for each in backtests.list_stored(connection, group, start_ms)
            }
            for origin_ms in daily_origins(now_ms):
                missing = [each for name, each in series.items() if (origin_ms, name) not in stored]
                forecasts = forecast_at(missing, group, origin_ms, now_ms)
                backtests.insert(connection, forecasts)
                count += len(forecasts)
            since_ms = now_ms - HORIZON_HOURS * HOUR_MS - LATE_MS if stored else start_ms
            for past in backtests.list_stored(connection, group, since_ms):
                if past.series in series:
                    score = score_forecast(past, series[past.series])
                    backtests.update_score(connection, past, score, now_ms)
    return count


def forecast_records(
    connection: Connection, group: str, only: str | None = None
) -> list[ForecastRecord]:
    """How good the stored forecasts of each pool or team were, by name."""
    scores = backtests.scores(connection, group, only)
    return [summarize_scores(series, forecasts) for series, forecasts in scores.items()]


def refresh_forecast_records(
    database: Database, now_ms: int, group: str, only: str | None
) -> list[ForecastRecord]:
    """Store and score every forecast that is due, and return how good they were."""
    refresh(database, Period(now_ms - DAYS * DAY_MS, now_ms), now_ms)
    store_forecasts(database, now_ms)
    with database.connect() as connection:
        return forecast_records(connection, group, only)

"""Forecasts that are kept, and how good they were: what a planner asks before trusting the next one.

Every day one forecast of the next 24 hours is kept as it was made; when its hours are known it is scored. Days before
the first one are replayed from what was known then, so that a new installation has a history; they are marked, because
evidence that came late is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.forecast import Forecast, Workloads, forecast
from gpuledger_collector.insight.series import Floats, Series

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HORIZON_HOURS = 24
REPLAYED_DAYS = 14


@dataclass(frozen=True, slots=True)
class StoredForecast:
    """A forecast of one series as it was made: it knew up to and including `origin_ms`."""

    grouped: str
    series: str
    origin_ms: int
    made_ms: int
    replayed: bool
    quantiles: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    naive: tuple[tuple[float, ...], ...]
    models: Mapping[str, float]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ForecastScore:
    """What came of a forecast, over the hours that are known; losses are sums over them, in GPUs."""

    known: int
    inside: int
    under: Mapping[str, int]
    loss: float
    naive_loss: float
    actual: float


@dataclass(frozen=True, slots=True)
class ForecastRecord:
    """How good the forecasts of one series were; shares and losses are None while nothing is known.

    `wql` is 2 x the mean quantile loss over the mean demand, `skill` 1 - loss / loss of the naive twin.
    """

    series: str
    forecasts: int
    replayed: int
    hours: int
    inside: float | None
    under: Mapping[str, float]
    wql: float | None
    naive_wql: float | None
    skill: float | None


def daily_origins(now_ms: int) -> list[int]:
    """The last known hours that daily forecasts start from, oldest first: before each of the last days' midnights."""
    today = now_ms // DAY_MS * DAY_MS
    return [today - days * DAY_MS - HOUR_MS for days in range(REPLAYED_DAYS, -1, -1)]


def forecast_at(
    series: Sequence[Series], grouped: str, origin_ms: int, now_ms: int, lives: Mapping[str, Workloads]
) -> list[StoredForecast]:
    """Forecasts of each hourly series that has an hour at `origin_ms`, of what was known up to it."""
    then = [
        one.until((origin_ms - one.start_ms) // HOUR_MS + 1)
        for one in series
        if one.start_ms <= origin_ms <= one.end_ms
    ]
    usable = [one for one in then if one.known]
    replayed = now_ms - origin_ms > DAY_MS + HOUR_MS
    return [
        _kept(one, grouped, origin_ms, now_ms, replayed)
        for one in (forecast(usable, HORIZON_HOURS, workloads=lives) if usable else [])
    ]


def _kept(made: Forecast, grouped: str, origin_ms: int, now_ms: int, replayed: bool) -> StoredForecast:
    def rows(values: Floats) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(row) for row in values.round(4).tolist())

    models = {name: round(weight, 4) for name, weight in made.weights.items()}
    return StoredForecast(
        grouped,
        made.series,
        origin_ms,
        now_ms,
        replayed,
        made.quantiles,
        rows(made.values),
        rows(made.naive),
        models,
        made.note,
    )


def score_forecast(kept: StoredForecast, series: Series) -> ForecastScore:
    """What came of a forecast by the series as it is known now."""
    begin = (kept.origin_ms - series.start_ms) // HOUR_MS + 1
    actual = np.full(len(kept.values), np.nan)
    came = series.values[max(begin, 0) : max(begin + len(actual), 0)]
    actual[max(-begin, 0) : max(-begin, 0) + len(came)] = came
    known = np.isfinite(actual)
    quantiles, values, naive = np.asarray(kept.quantiles), np.asarray(kept.values)[known], np.asarray(kept.naive)[known]
    actual = actual[known]
    under = actual[:, None] <= values + 1e-6
    band = int(np.argmin(np.abs(quantiles - 0.9)))
    inside = under[:, band] & (actual >= values[:, 0] - 1e-6)
    return ForecastScore(
        int(known.sum()),
        int(inside.sum()),
        {f"{quantile:g}": int(count) for quantile, count in zip(quantiles, under.sum(axis=0), strict=True)},
        _loss(actual, values, quantiles),
        _loss(actual, naive, quantiles),
        float(actual.sum()),
    )


def _loss(actual: Floats, values: Floats, quantiles: Floats) -> float:
    """Sum over instants of the mean quantile loss."""
    error = actual[:, None] - values
    return float(np.maximum(quantiles * error, (quantiles - 1) * error).mean(axis=1).sum())


def summarize_scores(series: str, found: Sequence[tuple[bool, ForecastScore]]) -> ForecastRecord:
    """The record of a series from its forecasts (replayed or not, score)."""
    scores = [score for _, score in found]
    hours = sum(score.known for score in scores)
    loss, naive, actual = (sum(getattr(one, name) for one in scores) for name in ("loss", "naive_loss", "actual"))
    names = list(dict.fromkeys(name for score in scores for name in score.under))
    return ForecastRecord(
        series=series,
        forecasts=len(found),
        replayed=sum(replayed for replayed, _ in found),
        hours=hours,
        inside=sum(score.inside for score in scores) / hours if hours else None,
        under={name: sum(score.under.get(name, 0) for score in scores) / hours for name in names} if hours else {},
        wql=2 * loss / actual if actual > 0 else None,
        naive_wql=2 * naive / actual if actual > 0 else None,
        skill=1 - loss / naive if naive > 0 else None,
    )

"""Stored forecasts and their accuracy, on which a planner's trust in the next one rests.

Every day one forecast of the next 24 hours is stored; when its hours are known it is scored. Days
before the first one are replayed from what was known then, so that a new installation has a
history; they are marked as replayed, because they include late evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.forecast import Forecast, forecast, quantile_losses
from gpuledger_collector.insight.series import Floats, Series

HORIZON_HOURS = 24
REPLAYED_DAYS = 14


@dataclass(frozen=True, slots=True)
class StoredForecast:
    """A forecast of one series as it was made, from values up to and including `origin_ms`.

    `naive` is NaN in hours for which the baseline has no value.
    """

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
    """Accuracy of a forecast over the hours that are known; losses are sums over them, in GPUs."""

    known: int
    inside: int
    under: Mapping[str, int]
    loss: float
    naive_loss: float
    actual: float


@dataclass(frozen=True, slots=True)
class ForecastRecord:
    """Accuracy of all forecasts of one series; shares and losses are None while nothing is known.

    `wql` is 2 x the mean quantile loss over the mean demand, `skill` 1 - loss / loss of the naive
    baseline.
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
    """Return the last known hours of daily forecasts, oldest first: before each of the last days'
    midnights.
    """
    today = now_ms // DAY_MS * DAY_MS
    return [today - days * DAY_MS - HOUR_MS for days in range(REPLAYED_DAYS, -1, -1)]


def forecast_at(
    series: Sequence[Series], grouped: str, origin_ms: int, now_ms: int
) -> list[StoredForecast]:
    """Forecast each hourly series that has an hour at `origin_ms`, from what was known up to it; none
    of which nothing is known of the day before, as where that day's evidence is still to come.
    """
    past = [
        hourly.known_before((origin_ms - hourly.start_ms) // HOUR_MS + 1)
        for hourly in series
        if hourly.start_ms <= origin_ms <= hourly.end_ms
    ]
    usable = [
        hourly
        for hourly in past
        if (until_ms := hourly.known_until_ms) is not None and origin_ms - until_ms < DAY_MS
    ]
    replayed = now_ms - origin_ms > DAY_MS + HOUR_MS
    return [
        _to_stored(result, grouped, origin_ms, now_ms, replayed)
        for result in forecast(usable, HORIZON_HOURS)
    ]


def _to_stored(
    result: Forecast, grouped: str, origin_ms: int, now_ms: int, replayed: bool
) -> StoredForecast:
    def rows(values: Floats) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(row) for row in values.round(4).tolist())

    return StoredForecast(
        grouped,
        result.series,
        origin_ms,
        now_ms,
        replayed,
        result.quantiles,
        rows(result.values),
        rows(result.naive),
        {name: round(weight, 4) for name, weight in result.weights.items()},
        result.note,
    )


def score_forecast(stored: StoredForecast, series: Series) -> ForecastScore:
    """Score a forecast against the series as it is known now.

    Hours for which the naive baseline had no value are left out: there is nothing to compare with.
    """
    begin = (stored.origin_ms - series.start_ms) // HOUR_MS + 1
    actual = np.full(len(stored.values), np.nan)
    came = series.values[max(begin, 0) : max(begin + len(actual), 0)]
    actual[max(-begin, 0) : max(-begin, 0) + len(came)] = came
    known = np.isfinite(actual) & np.isfinite(np.asarray(stored.naive, dtype=float)).all(axis=1)
    actual, quantiles = actual[known], np.asarray(stored.quantiles)
    values, naive = np.asarray(stored.values)[known], np.asarray(stored.naive)[known]
    under = actual[:, None] <= values + 1e-6
    band = int(np.argmin(np.abs(quantiles - 0.9)))
    inside = under[:, band] & (actual >= values[:, 0] - 1e-6)
    loss, naive_loss = (
        float(quantile_losses(actual, levels, quantiles).mean(axis=1).sum())
        for levels in (values, naive)
    )
    counts = {
        f"{quantile:g}": int(count)
        for quantile, count in zip(quantiles, under.sum(axis=0), strict=True)
    }
    return ForecastScore(
        int(known.sum()), int(inside.sum()), counts, loss, naive_loss, float(actual.sum())
    )


def summarize_scores(
    series: str, forecasts: Sequence[tuple[bool, ForecastScore]]
) -> ForecastRecord:
    """Summarize the accuracy of a series from its forecasts (replayed or not, score)."""
    scores = [score for _, score in forecasts]
    hours = sum(score.known for score in scores)
    loss, naive, actual = (
        sum(getattr(score, name) for score in scores) for name in ("loss", "naive_loss", "actual")
    )
    names = list(dict.fromkeys(name for score in scores for name in score.under))
    return ForecastRecord(
        series=series,
        forecasts=len(forecasts),
        replayed=sum(replayed for replayed, _ in forecasts),
        hours=hours,
        inside=sum(score.inside for score in scores) / hours if hours else None,
        under={name: sum(score.under.get(name, 0) for score in scores) / hours for name in names}
        if hours
        else {},
        wql=2 * loss / actual if actual > 0 else None,
        naive_wql=2 * naive / actual if actual > 0 else None,
        skill=1 - loss / naive if naive > 0 else None,
    )

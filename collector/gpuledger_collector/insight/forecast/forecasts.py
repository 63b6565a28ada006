"""One forecast per series: quantiles, the naive baseline beside them, and the skill shown on the series' own past.

Laws: quantiles do not cross, nothing is below zero, unknown is never zero, and nothing after the last instant given is
used. Series are forecast one by one, so that an answer does not depend on which others are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.forecast.analogs import (
    PERSISTENCE,
    Analogs,
    History,
    Prediction,
    Similarity,
    history_of,
)
from gpuledger_collector.insight.series import Floats, Ints, Series
from gpuledger_common.plurals import plural

QUANTILES = (0.1, 0.5, 0.9, 0.95)
METHODS: Mapping[str, Similarity] = {"analog": Similarity(), "persistence": PERSISTENCE}
"""Every method by name; the first is the default."""
HISTORY_STEPS, HISTORY_DAYS = 1_008, 14
"""Steps of the past that are used at least, and days: coarse series need enough instants, fine ones enough days."""
SKILL_ORIGINS, SKILL_LEADS = 6, 4


@dataclass(frozen=True)
class Forecast:
    """Demand to come: `values[i, k]` is quantile `quantiles[k]` at `at_ms[i]`; `naive` is the persistence baseline.

    `weights` are the methods' shares; `skill` is 1 - loss / loss(naive) over the series' own backtest (None: the past
    is too short for one); `note` is a sentence when the series has too little history for a sound band.
    """

    series: str
    at_ms: Ints
    mean: Floats
    values: Floats
    quantiles: tuple[float, ...]
    naive: Floats
    weights: Mapping[str, float] = field(default_factory=dict)
    skill: float | None = None
    note: str | None = None


def forecast(
    series: Sequence[Series],
    horizon: int,
    quantiles: Sequence[float] = QUANTILES,
    method: str = "analog",
    track: Callable[[Sequence[Series]], Iterable[Series]] = iter,
) -> list[Forecast]:
    """Forecast each series for `horizon` steps after its last instant (known or not); order is kept.

    `track` wraps the iteration over the series, for a progress bar. Raises ValueError for a horizon below one step,
    quantiles outside (0, 1) or a series without any known value, KeyError for an unknown method.
    """
    levels = np.asarray(sorted(quantiles), dtype=float)
    if horizon < 1 or not len(levels) or levels[0] <= 0 or levels[-1] >= 1:
        raise ValueError("a forecast needs at least one step and quantiles between 0 and 1")
    similarity = METHODS[method]
    return [_forecast(entry, horizon, levels, method, similarity) for entry in track(series)]


def recent_history(series: Series) -> History:
    """The part of the past that forecasts use. Raises ValueError for a series without any known value."""
    if not series.known:
        raise ValueError(f"series {series.name!r} has no known value")
    cut = max(0, len(series.values) - max(HISTORY_STEPS, HISTORY_DAYS * DAY_MS // series.step_ms))
    # Nothing known in the recent part: an old value is better than none.
    if not np.isfinite(series.values[cut:]).any():
        cut = 0
    return history_of(series.values[cut:], series.start_ms + cut * series.step_ms, series.step_ms)


def _forecast(series: Series, horizon: int, quantiles: Floats, method: str, similarity: Similarity) -> Forecast:
    history = recent_history(series)
    at_ms = series.end_ms + series.step_ms * np.arange(1, horizon + 1)
    leads = (at_ms - history.at_ms[-1]) // series.step_ms
    if history.known.sum() < max(24, min(3 * horizon // 2, 96)):
        return _short(series.name, history, at_ms, leads, quantiles)
    (values, mean), (naive, _) = _pair(history, leads, quantiles, similarity)
    if np.isnan(mean).any():
        return _short(series.name, history, at_ms, leads, quantiles)
    return Forecast(
        series.name,
        at_ms,
        np.maximum(mean, 0.0),
        _tidy(values),
        tuple(quantiles),
        _tidy(naive),
        {method: 1.0},
        _skill(history, horizon, quantiles, similarity),
    )


def _pair(history: History, leads: Ints, quantiles: Floats, similarity: Similarity) -> tuple[Prediction, Prediction]:
    """The prediction and that of persistence."""
    plain = analogs = Analogs(history, leads, plain=similarity == PERSISTENCE)
    if analogs.rhythm.is_clear:
        plain = Analogs(history, leads, plain=True)
    return analogs.predict(similarity, quantiles), plain.predict(PERSISTENCE, quantiles)


def _tidy(levels: Floats) -> Floats:
    """Quantiles in order, none below zero."""
    return np.maximum(np.sort(levels, axis=1), 0.0)


def _skill(history: History, horizon: int, quantiles: Floats, similarity: Similarity) -> float | None:
    """1 - loss / loss of persistence over a few earlier origins of the past; None while it is too short for one."""
    count = len(history.values)
    # An origin needs a horizon after it to be judged, and as much history before it to predict from.
    room = count - horizon - max(48, horizon)
    if room <= 0:
        return None
    apart = max(1, min(horizon, room // SKILL_ORIGINS))
    leads = np.unique(np.geomspace(1, horizon, SKILL_LEADS).round().astype(int))
    losses = []
    for back in range(min(SKILL_ORIGINS, 1 + room // apart)):
        target = count - horizon - back * apart - 1 + leads
        actual = np.where(history.known[target], history.values[target], np.nan)
        past = history.until(count - horizon - back * apart)
        if np.isfinite(actual).any() and past.known.any():
            pair = _pair(past, leads, quantiles, similarity)
            losses.append([quantile_loss(actual, _tidy(levels), quantiles) for levels, _ in pair])
    if not losses:
        return None
    loss, naive = np.sum(losses, axis=0)
    return 1 - float(loss / naive) if naive > 0 else 0.0


def quantile_loss(actual: Floats, values: Floats, quantiles: Floats) -> float:
    """Return the mean quantile (pinball) loss of `values` (H, Q) against `actual` (H,), over known instants."""
    loss = quantile_losses(actual, values, quantiles)
    known = np.isfinite(loss)
    return float(loss[known].mean()) if known.any() else float("nan")


def quantile_losses(actual: Floats, values: Floats, quantiles: Floats) -> Floats:
    """Return the quantile loss of each value (H, Q)."""
    error = actual[:, None] - values
    return np.asarray(np.maximum(quantiles * error, (quantiles - 1) * error))


def _short(name: str, history: History, at_ms: Ints, leads: Ints, quantiles: Floats) -> Forecast:
    """Forecast a short history: the last value with a band that widens with the square root of time.

    The band is that of a random walk with the one-step changes seen so far; with fewer than three of them, that of a
    count (variance of a day = level), which is a guess, and the note says which it is.
    """
    now = float(history.values[-1])
    steps = np.diff(history.values)[history.known[1:] & history.known[:-1]]
    per_day = max(1.0, DAY_MS / history.step_ms)
    sigma = float(np.sqrt(np.square(steps).mean())) if len(steps) >= 3 else 0.0
    band = "a band from its few changes, not a learnt one" if sigma > 0 else "a guessed band"
    sigma = sigma or float(np.sqrt(max(now, 1.0) / per_day))
    # A random walk for two days; after them the band stays as wide.
    reach = np.sqrt(np.minimum(leads, 2 * per_day))
    normal = np.asarray([NormalDist().inv_cdf(quantile) for quantile in quantiles])
    values = now + sigma * reach[:, None] * normal[None, :]
    known = plural(int(history.known.sum()), "known value")
    note = f"series {name!r} has only {known}: its forecast is the last value with {band}"
    mean, values = np.full(len(leads), now), np.maximum(values, 0.0)
    return Forecast(name, at_ms, mean, values, tuple(quantiles), values.copy(), {"last value": 1.0}, None, note)

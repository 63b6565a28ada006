"""One forecast per series: quantiles, the naive baseline beside them, and the skill shown on the
series' own past.

Laws: quantiles do not cross, nothing is below zero, unknown is never zero, and nothing after the
last instant given is used. Series are forecast one by one, so that an answer does not depend on
which others are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.forecast import methods
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
HISTORY_STEPS, HISTORY_DAYS = 1_008, 14
"""Steps of the past that are used at least, and days: coarse series need enough instants, fine ones
enough days.
"""
SKILL_ORIGINS, SKILL_LEADS = 6, 4


@dataclass(frozen=True)
class Forecast:
    """Demand to come: `values[i, k]` is quantile `quantiles[k]` at `at_ms[i]`; `naive` is the
    persistence baseline.

    `weights` are the methods' shares; `skill` is 1 - loss / loss(naive) over the series' own
    backtest (None: the past is too short for one); `note` is a sentence when the series has too
    little history for a sound band.
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
    method: str = methods.OWN[0],
    track: Callable[[Sequence[Series]], Iterable[Series]] = iter,
    *,
    judged: bool = True,
) -> list[Forecast]:
    """Forecast each series for `horizon` steps after its last instant (known or not); order is
    kept.

    `method` may name several, separated by commas: their quantiles are averaged, weighed by what
    each lost on the past. `track` wraps the iteration over the series, for a progress bar. Not
    `judged`, one method is spared its back-test, and its skill is None. Raises ValueError for a
    horizon below one step, quantiles outside (0, 1) or a series without any known value, KeyError
    for an unknown method, ForecasterFailed for one of another package that gives no answer.
    """
    levels = np.asarray(sorted(quantiles), dtype=float)
    if horizon < 1 or not len(levels) or levels[0] <= 0 or levels[-1] >= 1:
        raise ValueError("a forecast needs at least one step and quantiles between 0 and 1")
    chosen = tuple(dict.fromkeys(method.split(",")))
    if unknown := [name for name in chosen if name not in methods.names()]:
        raise KeyError(unknown[0])
    judged = judged or len(chosen) > 1
    return [_forecast(entry, horizon, levels, chosen, judged) for entry in track(series)]


def recent_history(series: Series) -> History:
    """The part of the past that forecasts use.

    Raises ValueError for a series without any known value.
    """
    if not series.known_count:
        raise ValueError(f"series {series.name!r} has no known value")
    cut = max(0, len(series.values) - max(HISTORY_STEPS, HISTORY_DAYS * DAY_MS // series.step_ms))
    # Nothing known in the recent part: an old value is better than none.
    if not np.isfinite(series.values[cut:]).any():
        cut = 0
    return history_of(series.values[cut:], series.start_ms + cut * series.step_ms, series.step_ms)


def _forecast(
    series: Series, horizon: int, quantiles: Floats, chosen: Sequence[str], judged: bool
) -> Forecast:
    history = recent_history(series)
    at_ms = series.end_ms + series.step_ms * np.arange(1, horizon + 1)
    leads = (at_ms - history.at_ms[-1]) // series.step_ms
    if history.known.sum() < max(24, min(3 * horizon // 2, 96)):
        return _short(series.name, history, at_ms, leads, quantiles)
    predictions, (naive, _) = _predict(history, leads, quantiles, chosen)
    if any(np.isnan(mean).any() for _, mean in predictions):
        return _short(series.name, history, at_ms, leads, quantiles)
    losses = _past_losses(history, horizon, quantiles, chosen) if judged else None
    weights, skill = _judge(losses, len(chosen))
    values = sum(
        weight * _tidy(levels) for weight, (levels, _) in zip(weights, predictions, strict=True)
    )
    mean = sum(weight * mean for weight, (_, mean) in zip(weights, predictions, strict=True))
    return Forecast(
        series.name,
        at_ms,
        np.maximum(mean, 0.0),
        _tidy(values),
        tuple(quantiles),
        _tidy(naive),
        dict(zip(chosen, map(float, weights), strict=True)),
        skill,
    )


def _predict(
    history: History, leads: Ints, quantiles: Floats, chosen: Sequence[str]
) -> tuple[list[Prediction], Prediction]:
    """The prediction of each method, and that of persistence."""
    analogs = Analogs(history, leads, plain=tuple(chosen) == ("persistence",))
    plain = Analogs(history, leads, plain=True) if analogs.rhythm.is_clear else analogs
    naive = plain.predict(PERSISTENCE, quantiles)
    predictions = []
    for name in chosen:
        if name == "persistence":
            predictions.append(naive)
        elif name == "analog":
            predictions.append(analogs.predict(Similarity(), quantiles))
        else:
            values = np.where(history.known, history.values, np.nan)
            levels = methods.load(name)(values, history.step_ms, leads, quantiles)
            predictions.append((levels, _mean(levels, quantiles)))
    return predictions, naive


def _mean(levels: Floats, quantiles: Floats) -> Floats:
    """The mean of a distribution that is linear between its quantiles and flat beyond them."""
    edges = np.concatenate([[0.0], quantiles, [1.0]])
    padded = np.concatenate([levels[:, :1], levels, levels[:, -1:]], axis=1)
    return np.asarray(((padded[:, 1:] + padded[:, :-1]) / 2 * np.diff(edges)).sum(axis=1))


def _tidy(levels: Floats) -> Floats:
    """Quantiles in order, none below zero."""
    return np.maximum(np.sort(levels, axis=1), 0.0)


def _past_losses(
    history: History, horizon: int, quantiles: Floats, chosen: Sequence[str]
) -> Floats | None:
    """Loss of each method, and of persistence last, over a few earlier origins; None while the past
    is too short.
    """
    count = len(history.values)
    # An origin needs a horizon after it to be judged, and as much history before it to predict
    # from.
    room = count - horizon - max(48, horizon)
    if room <= 0:
        return None
    apart = max(1, min(horizon, room // SKILL_ORIGINS))
    leads = np.unique(np.geomspace(1, horizon, SKILL_LEADS).round().astype(int))
    losses = []
    for back in range(min(SKILL_ORIGINS, 1 + room // apart)):
        target = count - horizon - back * apart - 1 + leads
        actual = np.where(history.known[target], history.values[target], np.nan)
        past = history.first_steps(count - horizon - back * apart)
        if np.isfinite(actual).any() and past.known.any():
            predictions, naive = _predict(past, leads, quantiles, chosen)
            losses.append(
                [
                    quantile_loss(actual, _tidy(levels), quantiles)
                    for levels, _ in (*predictions, naive)
                ]
            )
    return np.sum(losses, axis=0) if losses else None


def _judge(losses: Floats | None, count: int) -> tuple[Floats, float | None]:
    """Weights of the methods, inverse to the square of their losses, and 1 - their mean loss / loss
    of persistence.

    Equal weights where the past is too short, or where some method lost nothing.
    """
    equal = np.full(count, 1 / count)
    if losses is None:
        return equal, None
    own, naive = losses[:-1], float(losses[-1])
    weights = own**-2.0 / (own**-2.0).sum() if (own > 0).all() and np.isfinite(own).all() else equal
    return weights, 1 - float(weights @ own) / naive if naive > 0 else 0.0


def quantile_loss(actual: Floats, values: Floats, quantiles: Floats) -> float:
    """Return the mean quantile (pinball) loss of `values` (H, Q) against `actual` (H,), over known
    instants.
    """
    loss = quantile_losses(actual, values, quantiles)
    known = np.isfinite(loss)
    return float(loss[known].mean()) if known.any() else float("nan")


def quantile_losses(actual: Floats, values: Floats, quantiles: Floats) -> Floats:
    """Return the quantile loss of each value (H, Q)."""
    error = actual[:, None] - values
    return np.asarray(np.maximum(quantiles * error, (quantiles - 1) * error))


def _short(name: str, history: History, at_ms: Ints, leads: Ints, quantiles: Floats) -> Forecast:
    """Forecast a short history: the last value with a band that widens with the square root of
    time.

    The band is that of a random walk with the one-step changes seen so far; with fewer than three
    of them, that of a count (variance of a day = level), which is a guess, and the note says which
    it is.
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
    return Forecast(
        name, at_ms, mean, values, tuple(quantiles), values.copy(), {"last value": 1.0}, None, note
    )

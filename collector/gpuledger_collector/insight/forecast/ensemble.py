"""One forecast per series: models combined by their recent accuracy, and calibrated.

Every model forecasts each series at a few earlier origins of its own past; a model's weight is a power of its quantile
loss there, times a prior that favors the level-and-plateau analog. Quantiles are averaged quantile by quantile. Models
that use more than the series (boosted trees over all series, workloads) predict at the same origins beforehand, and are
weighted against the series' own models together. The tails are then widened by one factor per quantile, learnt across
all series of the run (a single series has too few independent days for its own calibration). Laws: quantiles do not
cross, nothing is below zero, and nothing after the last instant given is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.forecast.analogs import (
    KERNELS,
    History,
    Prediction,
    history_of,
    kernel_weights,
    past_changes,
    seasonal,
    weighted_quantiles,
)
from gpuledger_collector.insight.forecast.workloads import Workloads, predict_at_origins
from gpuledger_collector.insight.series import Floats, Ints, Series
from gpuledger_common.plurals import plural

QUANTILES = (0.1, 0.5, 0.9, 0.95)
SEASONS = (("day ago", 1), ("week ago", 7))
"""Seasonal models and their periods in days."""
MODELS = (*(kernel.name for kernel in KERNELS), *(name for name, _ in SEASONS), "workloads", "boosted")
"""Every model by name; boosted is not in the default mix, its gain did not pay for its time (docs/forecasting.md)."""
External = Mapping[str, Mapping[int, Prediction]]
"""Predictions of models that use more than the series, by model and length of the history."""


@dataclass(frozen=True)
class ForecastSettings:
    """How the models are combined; the defaults hold for any series and were fitted to none."""

    history_steps: int = 1_008  # of the past, at least; see `history_days`
    history_days: float = 14.0
    origins: int = 6  # earlier origins at which the models are judged
    judged_leads: int = 6
    power: float = 12.0  # how sharply a smaller loss is preferred
    doubt: float = 1.0  # weight of the prior against the judgment, in origins
    prior: tuple[tuple[str, float], ...] = (
        ("analog", 4.0),
        ("recent", 1.0),
        ("rhythm", 1.0),
        ("persistence", 0.5),
        ("day ago", 0.25),
        ("week ago", 0.25),
        ("workloads", 1.0),
    )
    external_weight: float = 2.0  # of an external model with the same loss as all own models together
    external_power: float = 5.0  # how sharply an external model's weight falls with its loss
    min_external_share: float = 0.2  # an external model with a smaller share is left out
    calibration_doubt: float = 200.0  # weight of "no widening" against the learnt factor, in series


def settings_for(model: str) -> ForecastSettings:
    """Return settings of `auto` (the default mix) or of one model of MODELS alone. Raises KeyError."""
    if model == "auto":
        return ForecastSettings()
    if model not in MODELS:
        raise KeyError(model)
    return ForecastSettings(prior=((model, 1.0),))


@dataclass(frozen=True)
class Forecast:
    """Demand to come: `values[i, k]` is quantile `quantiles[k]` at `at_ms[i]`; `naive` is the persistence baseline.

    `weights` are the models' shares; `skill` is 1 - loss / loss(naive) over the series' own backtest (None: the past is
    too short for one); `note` is a sentence when the series has too little history for a sound band.
    """

    series: str
    at_ms: Ints
    mean: Floats
    values: Floats
    quantiles: tuple[float, ...]
    naive: Floats
    weights: dict[str, float] = field(default_factory=dict)
    skill: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class _Backtest:
    """Weights and skill from a series' backtest, and its pairs of actual (M,) and forecast (M, Q) for calibration."""

    weights: dict[str, float]
    skill: float | None
    actual: Floats
    forecast: Floats


@dataclass(frozen=True)
class _Task:
    """A series to forecast: its history, the instants to come, and the earlier origins at which it is judged.

    `origins` are lengths of the history, latest first; `known` counts its known values.
    """

    name: str
    history: History
    at_ms: Ints
    leads: Ints
    judged_leads: Ints
    origins: tuple[int, ...]
    known: int

    @property
    def asked(self) -> tuple[tuple[int, Ints], ...]:
        """Every origin with its leads; now is last."""
        earlier = tuple((origin, self.judged_leads) for origin in self.origins[::-1])
        return (*earlier, (len(self.history.values), self.leads))


def forecast(
    series: Sequence[Series],
    horizon: int,
    quantiles: Sequence[float] = QUANTILES,
    settings: ForecastSettings | None = None,
    track: Callable[[Sequence[Series]], Iterable[Series]] = iter,
    workloads: Mapping[str, Workloads] | None = None,
) -> list[Forecast]:
    """Forecast each series for `horizon` steps after its last instant (known or not); order is kept.

    `track` wraps the iteration over the series, for a progress bar; `workloads` are those of a series, by its name.
    Raises ValueError for a horizon below one step, quantiles outside (0, 1) or a series without any known value.
    """
    settings = settings or ForecastSettings()
    levels = np.asarray(sorted(quantiles), dtype=float)
    if horizon < 1 or not len(levels) or levels[0] <= 0 or levels[-1] >= 1:
        raise ValueError("a forecast needs at least one step and quantiles between 0 and 1")
    tasks = [_task(one_series, horizon, settings) for one_series in series]
    external: list[dict[str, Mapping[int, Prediction]]] = [{} for _ in tasks]
    if any(name == "boosted" for name, _ in settings.prior):
        external = [{"boosted": trees} for trees in _boosted(tasks, levels)]
    plain = []
    for task, given, one_series in zip(tasks, external, track(series), strict=True):
        known = (workloads or {}).get(one_series.name)
        plain.append(_forecast(task, levels, settings, known, given))
    factors = _widening([backtest for _, backtest in plain if backtest], levels, settings)
    return [_finish(result, factors if backtest else np.ones(len(levels))) for result, backtest in plain]


def _task(series: Series, horizon: int, settings: ForecastSettings) -> _Task:
    """Prepare a series. Raises ValueError for one without any known value."""
    if not series.known:
        raise ValueError(f"series {series.name!r} has no known value")
    # Steps for coarse series, days for fine ones: both need enough instants and enough days.
    cap = max(settings.history_steps, int(settings.history_days * DAY_MS // series.step_ms))
    cut = max(0, len(series.values) - cap)
    # Nothing known in the recent part: an old value is better than none.
    if not np.isfinite(series.values[cut:]).any():
        cut = 0
    history = history_of(series.values[cut:], series.start_ms + cut * series.step_ms, series.step_ms)
    at_ms = series.end_ms + series.step_ms * np.arange(1, horizon + 1)
    return _Task(
        series.name,
        history,
        at_ms,
        (at_ms - history.at_ms[-1]) // series.step_ms,
        np.unique(np.geomspace(1, horizon, settings.judged_leads).round().astype(int)),
        _origins(len(history.values), horizon, settings),
        int(history.known.sum()),
    )


def _origins(count: int, horizon: int, settings: ForecastSettings) -> tuple[int, ...]:
    """Earlier origins at which the models are judged, latest first; none while the past is too short for one."""
    # An origin needs a horizon after it to be judged, and as much history before it to predict from.
    room = count - horizon - max(48, horizon)
    if room <= 0:
        return ()
    apart = max(1, min(horizon, room // settings.origins))
    return tuple(count - horizon - back * apart for back in range(min(settings.origins, 1 + room // apart)))


def _boosted(tasks: Sequence[_Task], quantiles: Floats) -> Sequence[Mapping[int, Prediction]]:
    """Predictions of trees over all series, for each series by origin."""
    from gpuledger_collector.insight.forecast.boosted import ForecastTask, predict_all

    return predict_all([ForecastTask(task.history, *zip(*task.asked, strict=True)) for task in tasks], quantiles)


def _forecast(
    task: _Task,
    quantiles: Floats,
    settings: ForecastSettings,
    workloads: Workloads | None,
    external: dict[str, Mapping[int, Prediction]],
) -> tuple[Forecast, _Backtest | None]:
    """The uncalibrated forecast of one series, and its backtest (None: too little history for models)."""
    horizon = len(task.at_ms)
    if task.known < max(24, min(3 * horizon // 2, 96)):
        return _short(task, quantiles), None
    if workloads is not None and "workloads" in dict(settings.prior):
        external["workloads"] = predict_at_origins(workloads, task.history, task.asked, quantiles)
    external = {name: predictions for name, predictions in external.items() if predictions or name == "workloads"}
    backtest = _backtest(task, quantiles, settings, external)
    predictions = _predict(task.history, task.leads, quantiles, {*backtest.weights}, external)
    levels, mean, used = _combine(predictions, backtest.weights)
    naive = predictions["persistence"][0]
    result = Forecast(task.name, task.at_ms, mean, levels, tuple(quantiles), naive, used, backtest.skill)
    return result, backtest


def _predict(
    history: History, leads: Ints, quantiles: Floats, models: set[str], external: External
) -> dict[str, Prediction]:
    """Predict with each of these models that can; persistence always."""
    changes = past_changes(history, leads)
    now = history.values[-1]
    predictions: dict[str, Prediction] = {}
    for kernel in KERNELS:
        if kernel.name == "persistence" or kernel.name in models:
            levels, mean = weighted_quantiles(changes, kernel_weights(kernel, history, changes.origin), quantiles)
            predictions[kernel.name] = (now + levels, now + mean)
    for name, days in SEASONS:
        period = history.per_day * days
        if name in models and period and len(history.values) >= 2 * period + 1:
            predictions[name] = seasonal(history, period, leads, quantiles)
    for name, by_origin in external.items():
        if name in models and len(history.values) in by_origin:
            predictions[name] = by_origin[len(history.values)]
    return predictions


def _combine(
    predictions: Mapping[str, Prediction], weights: Mapping[str, float]
) -> tuple[Floats, Floats, dict[str, float]]:
    """The weighted average of quantiles and means, and the weights used; a model counts only where it predicts."""
    # Shares of at most 2 % change nothing visible and are dropped.
    used = {name: weights[name] for name in predictions if weights.get(name, 0) > 0.02} or {"persistence": 1.0}
    used = _normalized(used)
    share = np.array(list(used.values()))
    levels = np.stack([predictions[name][0] for name in used])
    mean = np.stack([predictions[name][1] for name in used])
    # Weights per lead: a model that ends early leaves its share to the others there.
    have = np.isfinite(mean) * share[:, None]
    have = have / np.where(have.sum(axis=0) > 0, have.sum(axis=0), 1.0)
    average = (np.nan_to_num(levels) * have[:, :, None]).sum(axis=0)
    return np.sort(average, axis=1), (np.nan_to_num(mean) * have).sum(axis=0), used


def _normalized(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _backtest(task: _Task, quantiles: Floats, settings: ForecastSettings, external: External) -> _Backtest:
    """Forecast from earlier origins of the past and weigh the models by their quantile loss there.

    A model that could not be judged at any of them gets no weight, unless none could; then the series' own models do.
    """
    history, leads, prior = task.history, task.judged_leads, dict(settings.prior)
    own_prior = {name: weight for name, weight in prior.items() if name not in external}
    losses: list[dict[str, float]] = []
    judged: list[tuple[Floats, dict[str, Prediction]]] = []
    for origin in task.origins:
        target = origin - 1 + leads
        actual = np.where(history.known[target], history.values[target], np.nan)
        if np.isfinite(actual).any():
            predictions = _predict(history.until(origin), leads, quantiles, {*prior}, external)
            losses.append({name: quantile_loss(actual, levels, quantiles) for name, (levels, _) in predictions.items()})
            judged.append((actual, predictions))
    if not losses:
        return _Backtest(own_prior or {"persistence": 1.0}, None, np.empty(0), np.empty((0, len(quantiles))))
    weights = _weigh(losses, own_prior or prior, settings)
    if own_prior:
        together = [
            quantile_loss(actual, _combine(predictions, weights)[0], quantiles) for actual, predictions in judged
        ]
        weights = _add_external(weights, together, losses, settings, [name for name in prior if name in external])
    combined = [(actual, _combine(predictions, weights)[0]) for actual, predictions in judged]
    loss = sum(quantile_loss(actual, levels, quantiles) for actual, levels in combined)
    naive = sum(by_model["persistence"] for by_model in losses)
    return _Backtest(
        weights,
        1 - loss / naive if naive > 0 else 0.0,
        np.concatenate([actual for actual, _ in combined]),
        np.concatenate([levels for _, levels in combined]),
    )


def _add_external(
    own: dict[str, float],
    own_losses: Sequence[float],
    losses: Sequence[Mapping[str, float]],
    settings: ForecastSettings,
    names: Sequence[str],
) -> dict[str, float]:
    """Add external models, each weighted against the own models together by a power of the ratio of their losses.

    One without a prediction at half of the origins, or with too small a share, is left out.
    """
    added = {}
    for name in names:
        pairs = [
            (together, by_model[name])
            for together, by_model in zip(own_losses, losses, strict=True)
            if np.isfinite(by_model.get(name, np.nan))
        ]
        if 2 * len(pairs) < len(losses) or not pairs:
            continue
        # At the origins where both predicted: a model must not win by being silent when it was hard.
        ours, theirs = (sum(part) + 1e-9 for part in zip(*pairs, strict=True))
        share = settings.external_weight * (theirs / ours) ** -settings.external_power
        if share >= settings.min_external_share * (1 + share):
            added[name] = min(share, 3.0)
    total = 1 + sum(added.values())
    return {name: weight / total for name, weight in (own | added).items()}


def _weigh(
    losses: Sequence[Mapping[str, float]], prior: Mapping[str, float], settings: ForecastSettings
) -> dict[str, float]:
    """Weights prior x (loss / least loss)^-power over the origins where a model predicted; they sum to 1."""
    relative: dict[str, float] = {}
    for name in prior:
        have = [by_model for by_model in losses if np.isfinite(by_model.get(name, np.nan))]
        if have:
            # Relative to persistence at the same origins: a model that predicted only the last ones is not favored.
            base = sum(by_model["persistence"] for by_model in have)
            relative[name] = (sum(by_model[name] for by_model in have) + 1e-9) / (base + 1e-9)
    if not relative:
        return {"persistence": 1.0}
    least = min(relative.values())
    # With few origins a smaller loss may be luck, so the preference is weaker.
    power = settings.power * len(losses) / (len(losses) + settings.doubt)
    return _normalized({name: prior[name] * float((ratio / least) ** -power) for name, ratio in relative.items()})


def quantile_loss(actual: Floats, values: Floats, quantiles: Floats) -> float:
    """Return the mean quantile (pinball) loss of `values` (H, Q) against `actual` (H,), over known instants."""
    loss = quantile_losses(actual, values, quantiles)
    known = np.isfinite(loss)
    return float(loss[known].mean()) if known.any() else float("nan")


def quantile_losses(actual: Floats, values: Floats, quantiles: Floats) -> Floats:
    """Return the quantile loss of each value (H, Q)."""
    error = actual[:, None] - values
    return np.asarray(np.maximum(quantiles * error, (quantiles - 1) * error))


def _widening(backtests: Sequence[_Backtest], quantiles: Floats, settings: ForecastSettings) -> Floats:
    """Per quantile the factor on its distance from the median that would have given it its coverage, over all series.

    Split conformal on the ratio (actual - median) / (quantile - median) (Romano et al. 2019, scaled), shrunk towards
    1 while there are few series. Plateaus, where the quantile equals the median, say nothing about width and are
    excluded.
    """
    factors = np.ones(len(quantiles))
    middle = _median_index(quantiles)
    # As an exponent: a factor of 1 stays 1, and one series moves the band hardly at all.
    trust = len(backtests) / (len(backtests) + settings.calibration_doubt)
    for column, quantile in enumerate(quantiles):
        if column == middle or not backtests:
            continue
        ratios = []
        for backtest in backtests:
            median = backtest.forecast[:, middle]
            distance = backtest.forecast[:, column] - median
            use = np.isfinite(backtest.actual) & (np.abs(distance) > 1e-6)
            ratios.append((backtest.actual[use] - median[use]) / distance[use])
        pooled = np.concatenate(ratios)
        # Fewer ratios have no stable tail.
        if len(pooled) >= 50:
            # Below the median distances are negative, so the ratio is mirrored, and with it the quantile.
            factor = float(np.quantile(pooled, quantile if quantile > 0.5 else 1 - quantile))
            factors[column] = np.clip(factor, 0.8, 1.6) ** trust
    return factors


def _median_index(quantiles: Floats) -> int:
    return int(np.argmin(np.abs(quantiles - 0.5)))


def _finish(plain: Forecast, factors: Floats) -> Forecast:
    """Widen, sort the quantiles and clip at zero."""
    middle = _median_index(np.asarray(plain.quantiles))
    center = plain.values[:, middle : middle + 1]
    values = np.maximum(np.sort(center + (plain.values - center) * factors[None, :], axis=1), 0.0)
    naive = np.maximum(np.sort(plain.naive, axis=1), 0.0)
    return replace(plain, values=values, mean=np.maximum(plain.mean, 0.0), naive=naive)


def _short(task: _Task, quantiles: Floats) -> Forecast:
    """Forecast a short history: the last value with a band that widens with the square root of time.

    The band is that of a random walk with the one-step changes seen so far; with fewer than three of them, that of a
    count (variance of a day = level), which is a guess, and the note says which it is.
    """
    history = task.history
    now = float(history.values[-1])
    steps = np.diff(history.values)[history.known[1:] & history.known[:-1]]
    per_day = max(1.0, DAY_MS / history.step_ms)
    sigma = float(np.sqrt(np.square(steps).mean())) if len(steps) >= 3 else 0.0
    band = "a band from its few changes, not a learnt one" if sigma > 0 else "a guessed band"
    sigma = sigma or float(np.sqrt(max(now, 1.0) / per_day))
    # A random walk for two days; after them the band stays as wide.
    reach = np.sqrt(np.minimum(task.leads, 2 * per_day))
    normal = np.asarray([NormalDist().inv_cdf(quantile) for quantile in quantiles])
    values = now + sigma * reach[:, None] * normal[None, :]
    note = (
        f"series {task.name!r} has only {plural(task.known, 'known value')}: its forecast is the last value with {band}"
    )
    mean = np.full(len(task.leads), now)
    return Forecast(
        task.name, task.at_ms, mean, values, tuple(quantiles), values.copy(), {"last value": 1.0}, None, note
    )

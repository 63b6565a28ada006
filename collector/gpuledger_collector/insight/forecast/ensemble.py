"""One forecast per series: the models that were right lately, combined, calibrated, and honest about what they had.

Each series is forecast by every model at a few earlier instants of its own past; a model counts by how small its
quantile loss was there (a power of it, times a prior that favours the level-and-plateau analog). Quantiles are averaged
quantile by quantile. Models that look at more than the series (boosted trees over all series, workloads) answer for the
same instants beforehand, and count beside the series' own models together by their loss over theirs. The tails are then
widened by one factor, learnt across all series of the run (a single series has too few independent days to calibrate by
itself). Laws: quantiles do not cross, nothing is below zero, and nothing after the last instant given
is ever looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger_collector.insight.forecast.analogs import (
    KERNELS,
    History,
    history_of,
    kernel_weights,
    past_changes,
    seasonal,
    weighted_quantiles,
)
from gpuledger_collector.insight.forecast.workloads import Workloads
from gpuledger_collector.insight.forecast.workloads import predict_at_origins as lived
from gpuledger_collector.insight.series import Floats, Ints, Series

QUANTILES = (0.1, 0.5, 0.9, 0.95)
WEEK_DAYS = 7
SEASONS = (("day ago", 1), ("week ago", WEEK_DAYS))
MODELS = (*(look.name for look in KERNELS), *(name for name, _ in SEASONS), "workloads", "boosted")
"""Every model by name; boosted is not in the default mix, it did not earn its time (docs/forecasting.md)."""
Answer = tuple[Floats, Floats]
Answers = Mapping[str, Mapping[int, Answer]]
"""Levels (H, Q) and means (H,) by model and by how much of the past was known."""


@dataclass(frozen=True)
class ForecastSettings:
    """How the models are combined; the defaults hold for any series and were fitted to none."""

    history_steps: int = 1_008  # of the past, at least; see `history_days`
    history_days: float = 14.0
    origins: int = 6  # earlier instants at which the models are judged
    judged_leads: int = 6
    power: float = 12.0  # how sharply a smaller loss is preferred
    doubt: float = 1.0  # origins' worth of disbelief in the judgement
    prior: tuple[tuple[str, float], ...] = (
        ("analog", 4.0),
        ("recent", 1.0),
        ("rhythm", 1.0),
        ("persistence", 0.5),
        ("day ago", 0.25),
        ("week ago", 0.25),
        ("workloads", 1.0),
    )
    outsider: float = 2.0  # what a model beyond the series counts beside all its own, when its loss was the same
    doubted: float = 5.0  # how sharply it counts less as its loss was larger
    least: float = 0.2  # the share below which it does not count
    calibration_doubt: float = 200.0  # series' worth of disbelief in the common widening of the tails


def settings_for(model: str) -> ForecastSettings:
    """Settings of `auto` (the default mix) or of one model of MODELS alone. Raises KeyError."""
    usual = ForecastSettings()
    if model == "auto":
        return usual
    if model not in MODELS:
        raise KeyError(model)
    return replace(usual, prior=((model, 1.0),))


@dataclass(frozen=True)
class Forecast:
    """Demand to come: `values[i, k]` is quantile `quantiles[k]` at `at_ms[i]`; `naive` is the same by persistence
    alone.

    `weights` says how much each model counts; `skill` is 1 - loss / loss(naive) over the series' own back-test (None
    when the past was too short for one); `note` is a sentence when the series had too little history for a sound band.
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
class _Judged:
    """What a series' back-test said: weights and skill, and (actual, median, quantiles) for the calibration."""

    weights: dict[str, float]
    skill: float | None
    actual: Floats  # (M,)
    promised: Floats  # (M, Q)


def forecast(
    series: Sequence[Series],
    horizon: int,
    quantiles: Sequence[float] = QUANTILES,
    settings: ForecastSettings | None = None,
    track: Callable[[Sequence[Series]], Iterable[Series]] = iter,
    workloads: Mapping[str, Workloads] | None = None,
) -> list[Forecast]:
    """Forecast each series for `horizon` steps after its last instant (known or not); order is kept.

    `track` wraps the walk over the series, for a progress bar; `workloads` are those of a series, by its name. Raises
    ValueError for a horizon below one step, quantiles outside (0, 1) or a series without any known value.
    """
    settings = settings or ForecastSettings()
    wanted = np.asarray(sorted(quantiles), dtype=float)
    if horizon < 1 or not len(wanted) or wanted[0] <= 0 or wanted[-1] >= 1:
        raise ValueError("a forecast needs at least one step and quantiles between 0 and 1")
    known = workloads or {}
    trees: Sequence[Mapping[int, Answer]] = ()
    if any(name == "boosted" for name, _ in settings.prior):
        trees = _boosted([_asked(one, horizon, settings) for one in series], wanted)
    made = [
        _one(_asked(one, horizon, settings), wanted, settings, known.get(one.name), trees[number] if trees else {})
        for number, one in enumerate(track(series))
    ]
    factors = _widening([judged for _, judged in made if judged], wanted, settings)
    return [_finish(plain, factors) if judged else _finish(plain, np.ones(len(wanted))) for plain, judged in made]


@dataclass(frozen=True)
class _Asked:
    """A series as it is forecast: its past, the instants to come, and the earlier origins at which it is judged."""

    name: str
    past: History
    at_ms: Ints
    leads: Ints
    judged_leads: Ints
    origins: tuple[int, ...]  # how much of the past was known at each, latest first
    known: int

    @property
    def plan(self) -> tuple[tuple[int, Ints], ...]:
        """Every origin with its leads, now last."""
        then = tuple((origin, self.judged_leads) for origin in self.origins[::-1])
        return (*then, (len(self.past.values), self.leads))


def _asked(series: Series, horizon: int, settings: ForecastSettings) -> _Asked:
    """What is asked of a series. Raises ValueError for one without any known value."""
    if not series.known:
        raise ValueError(f"series {series.name!r} has no known value")
    cap = max(settings.history_steps, int(settings.history_days * 86_400_000 // series.step_ms))
    cut = max(0, len(series.values) - cap)
    values = series.values[cut:]
    if not np.isfinite(values).any():
        cut, values = 0, series.values
    past = history_of(values, series.start_ms + cut * series.step_ms, series.step_ms)
    at_ms = series.end_ms + series.step_ms * np.arange(1, horizon + 1)
    judged = np.unique(np.geomspace(1, horizon, settings.judged_leads).round().astype(int))
    return _Asked(
        series.name,
        past,
        at_ms,
        (at_ms - past.at_ms[-1]) // series.step_ms,
        judged,
        _origins(len(past.values), horizon, settings),
        int(past.known.sum()),
    )


def _origins(count: int, horizon: int, settings: ForecastSettings) -> tuple[int, ...]:
    """Earlier instants at which the models are judged, latest first; none while the past is too short for one."""
    room = count - horizon - max(48, horizon)
    if room <= 0:
        return ()
    apart = max(1, min(horizon, room // settings.origins))
    return tuple(count - horizon - back * apart for back in range(min(settings.origins, 1 + room // apart)))


def _boosted(asked: Sequence[_Asked], quantiles: Floats) -> Sequence[Mapping[int, Answer]]:
    """What trees over all series answer, for each series by origin."""
    from gpuledger_collector.insight.forecast.boosted import ForecastTask, predict_all

    plans = [
        ForecastTask(one.past, tuple(origin for origin, _ in one.plan), tuple(leads for _, leads in one.plan))
        for one in asked
    ]
    return predict_all(plans, quantiles)


def _one(
    asked: _Asked,
    quantiles: Floats,
    settings: ForecastSettings,
    workloads: Workloads | None,
    trees: Mapping[int, Answer],
) -> tuple[Forecast, _Judged | None]:
    """The uncalibrated forecast of one series and what its back-test said."""
    past, horizon = asked.past, len(asked.at_ms)
    if asked.known < max(24, min(3 * horizon // 2, 96)):
        return _short(asked.name, past, asked.at_ms, asked.leads, quantiles, asked.known), None
    prior = dict(settings.prior)
    given: dict[str, Mapping[int, Answer]] = {"boosted": trees} if trees else {}
    if workloads is not None and "workloads" in prior:
        given["workloads"] = lived(workloads, past, asked.plan, quantiles)
    judged = _judge(asked, quantiles, settings, given)
    models = _models(past, asked.leads, quantiles, {*judged.weights}, given)
    values_, mean, used = _combine(models, judged.weights)
    naive = models["persistence"][0]
    return Forecast(asked.name, asked.at_ms, mean, values_, tuple(quantiles), naive, used, judged.skill), judged


def _models(past: History, leads: Ints, quantiles: Floats, wanted: set[str], given: Answers) -> dict[str, Answer]:
    """Levels (H, Q) and mean (H,) of each wanted model, as far as it has an answer; persistence always."""
    changes = past_changes(past, leads)
    now = past.values[-1]
    made: dict[str, Answer] = {}
    for look in KERNELS:
        if look.name == "persistence" or look.name in wanted:
            values, mean = weighted_quantiles(changes, kernel_weights(look, past, changes.origin), quantiles)
            made[look.name] = (now + values, now + mean)
    for name, days in SEASONS:
        period = past.per_day * days
        if name in wanted and period and len(past.values) >= 2 * period + 1:
            made[name] = seasonal(past, period, leads, quantiles)
    for name, by_origin in given.items():
        if name in wanted and len(past.values) in by_origin:
            made[name] = by_origin[len(past.values)]
    return made


def _combine(
    models: dict[str, tuple[Floats, Floats]], weights: dict[str, float]
) -> tuple[Floats, Floats, dict[str, float]]:
    """The weighted average of the models' quantiles and means; a model without an answer for a lead does not count
    there.
    """
    used = {name: weights[name] for name in models if weights.get(name, 0) > 0.02} or {"persistence": 1.0}
    total = sum(used.values())
    used = {name: weight / total for name, weight in used.items()}
    share = np.array(list(used.values()))
    values = np.stack([models[name][0] for name in used])
    mean = np.stack([models[name][1] for name in used])
    have = np.isfinite(mean) * share[:, None]
    have = have / np.where(have.sum(axis=0) > 0, have.sum(axis=0), 1.0)
    joined = (np.nan_to_num(values) * have[:, :, None]).sum(axis=0)
    return np.sort(joined, axis=1), (np.nan_to_num(mean) * have).sum(axis=0), used


def _judge(asked: _Asked, quantiles: Floats, settings: ForecastSettings, given: Answers) -> _Judged:
    """Forecast from earlier instants of the past and weigh the models by their quantile loss there.

    A model that could not be judged at any of them does not count, unless none could; then the series' own models do.
    """
    past, leads, prior = asked.past, asked.judged_leads, dict(settings.prior)
    losses: list[dict[str, float]] = []
    pairs: list[tuple[Floats, dict[str, Answer]]] = []
    for origin in asked.origins:
        actual = np.where(past.known[origin - 1 + leads], past.values[origin - 1 + leads], np.nan)
        if not np.isfinite(actual).any():
            continue
        # The arrays are cut, not recomputed: all of `Past` at an instant depends on what came before only.
        then = replace(
            past,
            values=past.values[:origin],
            known=past.known[:origin],
            at_ms=past.at_ms[:origin],
            age=past.age[:origin],
        )
        models = _models(then, leads, quantiles, {*prior}, given)
        losses.append({name: quantile_loss(actual, made[0], quantiles) for name, made in models.items()})
        pairs.append((actual, models))
    if not losses:
        own = {name: weight for name, weight in prior.items() if name not in given} or {"persistence": 1.0}
        return _Judged(own, None, np.empty(0), np.empty((0, len(quantiles))))
    own = {name: weight for name, weight in prior.items() if name not in given}
    weights = _weigh(losses, own or prior, settings)
    if own:
        weights = _beside(weights, pairs, losses, quantiles, settings, [name for name in prior if name in given])
    promised = [(actual, _combine(models, weights)[0]) for actual, models in pairs]
    ours = sum(quantile_loss(actual, values, quantiles) for actual, values in promised)
    naive = sum(loss["persistence"] for loss in losses)
    skill = 1 - ours / naive if naive > 0 else 0.0
    return _Judged(
        weights,
        skill,
        np.concatenate([actual for actual, _ in promised]),
        np.concatenate([values for _, values in promised]),
    )


def _beside(
    own: dict[str, float],
    pairs: Sequence[tuple[Floats, dict[str, Answer]]],
    losses: list[dict[str, float]],
    quantiles: Floats,
    settings: ForecastSettings,
    outsiders: Sequence[str],
) -> dict[str, float]:
    """The weights with the outsiders: each counts beside the own models together by a power of its loss over theirs.

    One that had no answer at half of the origins, or that would count for little, does not count.
    """
    together = [quantile_loss(actual, _combine(models, own)[0], quantiles) for actual, models in pairs]
    added = {}
    for name in outsiders:
        have = [place for place, loss in enumerate(losses) if np.isfinite(loss.get(name, np.nan))]
        if 2 * len(have) < len(losses) or not have:
            continue
        ours, theirs = (
            sum(part) + 1e-9 for part in zip(*((together[at], losses[at][name]) for at in have), strict=True)
        )
        share = settings.outsider * (theirs / ours) ** -settings.doubted
        if share >= settings.least * (1 + share):
            added[name] = min(share, 3.0)
    total = 1 + sum(added.values())
    return {name: weight / total for name, weight in (own | added).items()}


def _weigh(losses: list[dict[str, float]], prior: dict[str, float], settings: ForecastSettings) -> dict[str, float]:
    """Prior x (loss / least loss)^-power, over the origins where a model had an answer; the weights sum to 1."""
    names = [name for name in prior if any(np.isfinite(loss.get(name, np.nan)) for loss in losses)]
    relative: dict[str, float] = {}
    for name in names:
        have = [loss for loss in losses if np.isfinite(loss.get(name, np.nan))]
        # The ratio to persistence over the same origins: a model that only answered the last ones is not favoured.
        base = sum(loss["persistence"] for loss in have)
        relative[name] = (sum(loss[name] for loss in have) + 1e-9) / (base + 1e-9)
    if not relative:
        return {"persistence": 1.0}
    least = min(relative.values())
    power = settings.power * len(losses) / (len(losses) + settings.doubt)
    raw = {name: prior[name] * float((relative[name] / least) ** -power) for name in names}
    total = sum(raw.values())
    return {name: weight / total for name, weight in raw.items()}


def quantile_loss(actual: Floats, values: Floats, quantiles: Floats) -> float:
    """Mean quantile loss of `values` (H, Q) against `actual` (H,), unknown instants left out; NaN when nothing is
    known.
    """
    error = actual[:, None] - values
    loss = np.maximum(quantiles * error, (quantiles - 1) * error)
    use = np.isfinite(loss)
    return float(loss[use].mean()) if use.any() else float("nan")


def _widening(judged: Sequence[_Judged], quantiles: Floats, settings: ForecastSettings) -> Floats:
    """Per quantile the factor on its distance from the median that would have given it its share, over all series.

    Split conformal on the ratio (actual - median) / (quantile - median) (Romano et al. 2019, scaled), shrunk towards
    1 while few series speak. Plateaus, where the quantile equals the median, say nothing about width and stay out.
    """
    factors = np.ones(len(quantiles))
    middle = int(np.argmin(np.abs(quantiles - 0.5)))
    trust = len(judged) / (len(judged) + settings.calibration_doubt)
    for k, quantile in enumerate(quantiles):
        if k == middle or not judged:
            continue
        ratios = []
        for one in judged:
            distance = one.promised[:, k] - one.promised[:, middle]
            use = np.isfinite(one.actual) & (np.abs(distance) > 1e-6)
            ratios.append((one.actual[use] - one.promised[use, middle]) / distance[use])
        pooled = np.concatenate(ratios)
        if len(pooled) >= 50:
            factor = float(np.quantile(pooled, quantile if quantile > 0.5 else 1 - quantile))
            factors[k] = np.clip(factor, 0.8, 1.6) ** trust
    return factors


def _finish(plain: Forecast, factors: Floats) -> Forecast:
    """Widen, keep the quantiles in order and nothing below zero."""
    middle = int(np.argmin(np.abs(np.asarray(plain.quantiles) - 0.5)))
    centre = plain.values[:, middle : middle + 1]
    values = np.maximum(np.sort(centre + (plain.values - centre) * factors[None, :], axis=1), 0.0)
    naive = np.maximum(np.sort(plain.naive, axis=1), 0.0)
    return replace(plain, values=values, mean=np.maximum(plain.mean, 0.0), naive=naive)


def _short(name: str, past: History, at_ms: Ints, leads: Ints, quantiles: Floats, known: int) -> Forecast:
    """Too little history for models: the last value with a band that widens with the square root of time.

    The band is that of a random walk with the one-step changes seen so far; with fewer than three of them, that of a
    count (variance of a day = level), which is a guess, and the note says which it was.
    """
    now = float(past.values[-1])
    steps = np.diff(past.values)[past.known[1:] & past.known[:-1]]
    per_day = max(1.0, 86_400_000 / past.step_ms)
    normal = np.asarray([_normal_quantile(q) for q in quantiles])
    sigma = float(np.sqrt(np.square(steps).mean())) if len(steps) >= 3 else 0.0
    seen = f"series {name!r} has only {known} known value{'s' if known > 1 else ''}: "
    if sigma > 0:
        note = seen + "its forecast is the last value with a band from its few changes, not a learnt one"
    else:
        sigma = float(np.sqrt(max(now, 1.0) / per_day))
        note = seen + "its forecast is the last value with a guessed band"
    reach = np.sqrt(np.minimum(leads, 2 * per_day))
    values = now + sigma * reach[:, None] * normal[None, :]
    return Forecast(
        name, at_ms, np.full(len(leads), now), values, tuple(quantiles), values.copy(), {"last value": 1.0}, None, note
    )


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)

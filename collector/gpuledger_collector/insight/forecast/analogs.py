"""Forecasts from a series' own past changes.

Problem: hourly GPU use is close to a random walk with plateaus. The last value is hard to beat as a point forecast;
what can be improved is the shape of the distribution around it. Idea: the change over the next h steps is drawn from
the changes over h steps that followed earlier instants, each weighted by its similarity to now. A model is nothing but
such a weighting (SimilarityKernel), so all of them share one sorted table of past changes, which is what costs time.

Empirical persistence is the kernel that finds every past instant equally similar; the analogs compare the level (a
queue at its quota behaves unlike an idle one), the hour, the age of the plateau, and prefer recent instants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.series import Flags, Floats, Ints, fill_forward, is_weekend

MAX_CELLS = 600_000
"""Largest table of changes; longer pasts are thinned out to keep a forecast within milliseconds."""

Prediction = tuple[Floats, Floats]
"""Levels (H, Q) by lead and quantile, and means (H,)."""


@dataclass(frozen=True)
class SimilarityKernel:
    """How similar a past instant is to now.

    `level`: width in standard deviations of the series (None: any level). `half_life_days`: age at which an instant
    counts half (None: age does not matter). `hour`: width in hours of the day. `weekday`: weight of an instant on the
    other kind of day (weekend or not). `age`: width in factors of e of the time since the last change. `floor`: least
    weight of any instant, relative to the best; it keeps rare jumps in the tails.
    """

    name: str
    level: float | None = None
    half_life_days: float | None = None
    hour: float | None = None
    weekday: float = 1.0
    age: float | None = None
    floor: float = 0.0


KERNELS = (
    SimilarityKernel("analog", level=0.3, half_life_days=5, hour=7, age=1.4, floor=0.01),
    SimilarityKernel("recent", level=0.5, half_life_days=2, hour=9, floor=0.02),
    SimilarityKernel("rhythm", level=1.0, half_life_days=21, hour=0.8, weekday=0.1, floor=0.001),
    SimilarityKernel("persistence"),
)
"""The models besides the seasonal ones; `persistence` is the naive baseline of every forecast."""


@dataclass(frozen=True)
class History:
    """A series up to now with what the kernels compare; one entry per step, the last is now.

    `values` has its gaps filled with the last known value; `age` is log(1 + steps since the last change).
    """

    values: Floats
    known: Flags
    at_ms: Ints
    step_ms: int
    age: Floats

    @property
    def per_day(self) -> int:
        """Steps per day; 0 when a step is a day or longer or does not divide it."""
        return DAY_MS // self.step_ms if DAY_MS % self.step_ms == 0 and self.step_ms < DAY_MS else 0

    def until(self, count: int) -> History:
        """Return the history as it was after `count` steps: every entry depends on earlier values only."""
        arrays = (self.values[:count], self.known[:count], self.at_ms[:count])
        return replace(self, values=arrays[0], known=arrays[1], at_ms=arrays[2], age=self.age[:count])


def history_of(values: Floats, start_ms: int, step_ms: int) -> History:
    """Return the history at the last known value of `values` (NaN: gap; at least one is known)."""
    known = np.isfinite(values)
    last = int(np.flatnonzero(known)[-1]) + 1
    values, known = values[:last], known[:last]
    values = fill_forward(values, float(values[np.argmax(known)]))
    index = np.arange(last)
    changed = np.concatenate([[False], np.abs(np.diff(values)) > 1e-9])
    since = index - np.maximum.accumulate(np.where(changed, index, 0))
    return History(values, known, start_ms + index * step_ms, step_ms, np.log1p(since))


@dataclass(frozen=True)
class PastChanges:
    """Past changes sorted for each lead: row r holds `values[t + leads[r]] - values[t]` over the instants `origin`.

    Shapes: `sorted`, `order` (positions into origin) and `usable` (H, N), `origin` (N,) indices into the history.
    """

    sorted: Floats
    order: Ints
    usable: Flags
    origin: Ints
    leads: Ints


def past_changes(history: History, leads: Ints) -> PastChanges:
    """Tabulate the changes over each lead (steps, ascending); those not over yet or touching a gap are unusable."""
    count = len(history.values)
    # Thinned from the newest end: the latest instants are always among the origins.
    stride = max(1, -(-count * len(leads) // MAX_CELLS))
    origin = np.arange(count - 1, -1, -stride)[::-1]
    target = origin[None, :] + leads[:, None]
    inside = target < count
    target = np.minimum(target, count - 1)
    # Filled gaps have values, but a change from or to one never happened.
    usable = inside & history.known[origin][None, :] & history.known[target]
    change = np.where(usable, history.values[target] - history.values[origin][None, :], 0.0)
    order = np.argsort(change, axis=1)
    change, usable = (np.take_along_axis(table, order, 1) for table in (change, usable))
    return PastChanges(change, order, usable, origin, leads)


def kernel_weights(kernel: SimilarityKernel, history: History, origin: Ints) -> Floats:
    """Return the weight of each instant of `origin` (N,); the most similar one weighs 1."""
    now = len(history.values) - 1
    # Products of weights as sums of logarithms: a product of small factors would underflow.
    log = np.zeros(len(origin))
    if kernel.half_life_days is not None:
        half_life = max(kernel.half_life_days * DAY_MS / history.step_ms, 12 * kernel.half_life_days)
        log -= (now - origin) * (np.log(2) / half_life)
    values = history.values[origin]
    if kernel.level is not None:
        width = kernel.level * (float(history.values.std()) + 1e-9)
        log -= 0.5 * np.square((values - history.values[now]) / width)
    if kernel.age is not None:
        log -= 0.5 * np.square((history.age[origin] - history.age[now]) / kernel.age)
    if kernel.hour is not None and history.per_day:
        # The distance on a clock: 23:00 and 01:00 are two hours apart.
        apart = np.abs((history.at_ms[origin] - history.at_ms[now]) % DAY_MS) / HOUR_MS
        log -= 0.5 * np.square(np.minimum(apart, 24 - apart) / kernel.hour)
    if kernel.weekday < 1:
        same_kind = is_weekend(history.at_ms[origin]) == is_weekend(history.at_ms[now])
        log += np.where(same_kind, 0.0, np.log(kernel.weekday))
    # Without now itself, which is always the most similar and has no change yet.
    best = log[:-1].max() if len(log) > 1 else 0.0
    return np.exp(np.minimum(log - best, 0.0)) + kernel.floor


def weighted_quantiles(changes: PastChanges, weights: Floats, quantiles: Floats) -> Prediction:
    """Return weighted quantiles and mean of the changes for each lead; midpoint rule, linear between.

    A lead without any usable change gives NaN.
    """
    weight = np.where(changes.usable, weights[changes.order], 0.0)
    total = weight.sum(axis=1)
    safe = np.where(total > 0, total, 1.0)
    position = (np.cumsum(weight, axis=1) - weight / 2) / safe[:, None]
    levels = np.empty((len(changes.leads), len(quantiles)))
    for row in range(len(levels)):
        # Cells without weight repeat a position and would drag the interpolation to a change that never happened.
        use = weight[row] > 0
        levels[row] = np.interp(quantiles, position[row][use], changes.sorted[row][use]) if use.any() else np.nan
    mean = (weight * changes.sorted).sum(axis=1) / safe
    return levels, np.where(total > 0, mean, np.nan)


def seasonal(history: History, period: int, leads: Ints, quantiles: Floats) -> Prediction:
    """Predict the value one period before each target, with its past errors; needs two periods of history."""
    values = history.values
    errors = values[period:] - values[:-period]
    errors = errors[history.known[period:] & history.known[:-period]]
    if not len(errors):
        return np.full((len(leads), len(quantiles)), np.nan), np.full(len(leads), np.nan)
    # As many periods back as are needed for the value to be known now.
    base = values[len(values) - 1 + leads - period * -(-leads // period)]
    return base[:, None] + np.quantile(errors, quantiles)[None, :], base + errors.mean()

"""Forecasts out of a series' own past changes.

Problem: hourly GPU use is close to a random walk with plateaus. The last value is hard to beat as a point forecast;
what can be won is the shape of the distribution around it. Idea: the change over the next h steps is drawn from the
changes over h steps that followed earlier instants, each weighted by how much that instant resembles now. A model is
nothing but such a weighting ("Look"), so all of them share one sorted table of past changes, which is what costs time.

Empirical persistence is the look that finds every past instant alike; the analogs look for the same level (a queue at
its quota behaves unlike an idle one), the same hour, the same age of the plateau, and prefer what is recent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.series import Floats, Ints

DAY_MS = 86_400_000
CELLS = 600_000
"""Most cells of a table of changes; longer pasts are thinned out to keep a forecast within milliseconds."""


@dataclass(frozen=True)
class SimilarityKernel:
    """What makes a past instant resemble now.

    `level`: width in standard deviations of the series (None: any level). `half_life_days`: age at which an instant
    counts half (None: age does not matter). `hour`: width in hours of the day. `weekday`: how much an instant on the
    other kind of day (weekend or not) counts. `age`: width in factors of e of the time since the last change.
    `floor`: what every instant counts at least, relative to the best; keeps rare jumps in the tails.
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
"""The models beside the seasonal ones; `persistence` is the naive twin that every forecast is compared with."""


@dataclass(frozen=True)
class History:
    """A series up to now with what the looks compare; arrays of one entry per step, index n-1 is now."""

    values: Floats  # gaps filled with the last known value
    known: npt.NDArray[np.bool_]
    at_ms: Ints
    step_ms: int
    age: Floats  # log(1 + steps since the last change)

    @property
    def per_day(self) -> int:
        """Steps of a day, 0 when a step is a day or longer or does not divide it."""
        return DAY_MS // self.step_ms if DAY_MS % self.step_ms == 0 and self.step_ms < DAY_MS else 0


def history_of(values: Floats, start_ms: int, step_ms: int) -> History:
    """What is known at the last known value of `values` (shape (n,), NaN for gaps, at least one known)."""
    known = np.isfinite(values)
    last = int(np.flatnonzero(known)[-1]) + 1
    values, known = values[:last], known[:last]
    index = np.arange(last)
    if not known.all():
        seen = np.maximum.accumulate(np.where(known, index, -1))
        values = values[np.where(seen < 0, int(np.argmax(known)), seen)]
    changed = np.concatenate([[False], np.abs(np.diff(values)) > 1e-9])
    since = index - np.maximum.accumulate(np.where(changed, index, 0))
    return History(values, known, start_ms + index * step_ms, step_ms, np.log1p(since))


@dataclass(frozen=True)
class PastChanges:
    """Past changes, sorted for each horizon: row r holds `values[t + leads[r]] - values[t]` over the instants
    `origin`.
    """

    sorted: Floats  # (H, N)
    order: Ints  # (H, N) positions into origin
    usable: npt.NDArray[np.bool_]  # (H, N) in the order of `order`
    origin: Ints  # (N,) indices into the past
    leads: Ints


def past_changes(past: History, leads: Ints) -> PastChanges:
    """The table of changes over each lead (steps, ascending); what has not happened yet or is a gap is not usable."""
    count = len(past.values)
    stride = max(1, -(-count * len(leads) // CELLS))
    origin = np.arange(count - 1, -1, -stride)[::-1]
    target = origin[None, :] + leads[:, None]
    inside = target < count
    target = np.minimum(target, count - 1)
    usable = inside & past.known[origin][None, :] & past.known[target]
    change = np.where(usable, past.values[target] - past.values[origin][None, :], 0.0)
    order = np.argsort(change, axis=1)
    return PastChanges(np.take_along_axis(change, order, 1), order, np.take_along_axis(usable, order, 1), origin, leads)


def kernel_weights(look: SimilarityKernel, past: History, origin: Ints) -> Floats:
    """How much each instant of `origin` counts under this look, shape (N,), the best 1."""
    now = len(past.values) - 1
    log = np.zeros(len(origin))
    if look.half_life_days is not None:
        half_life = max(look.half_life_days * DAY_MS / past.step_ms, 12 * look.half_life_days)
        log -= (now - origin) * (np.log(2) / half_life)
    values = past.values[origin]
    if look.level is not None:
        width = look.level * (float(past.values.std()) + 1e-9)
        log -= 0.5 * np.square((values - past.values[now]) / width)
    if look.age is not None:
        log -= 0.5 * np.square((past.age[origin] - past.age[now]) / look.age)
    if look.hour is not None and past.per_day:
        apart = np.abs((past.at_ms[origin] - past.at_ms[now]) % DAY_MS) / 3_600_000
        log -= 0.5 * np.square(np.minimum(apart, 24 - apart) / look.hour)
    if look.weekday < 1:
        log += np.where(_weekend(past.at_ms[origin]) == _weekend(past.at_ms[now]), 0.0, np.log(look.weekday))
    best = log[:-1].max() if len(log) > 1 else 0.0
    return np.exp(np.minimum(log - best, 0.0)) + look.floor


def _weekend(at_ms: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether an instant lies on a Saturday or Sunday, UTC (1970-01-01 was a Thursday)."""
    return np.asarray((np.asarray(at_ms) // DAY_MS + 3) % 7 >= 5)


def weighted_quantiles(changes: PastChanges, weights: Floats, quantiles: Floats) -> tuple[Floats, Floats]:
    """Weighted quantiles (H, Q) and mean (H,) of the changes for each lead; midpoint rule, linear between.

    A lead without any usable change gives NaN.
    """
    weight = np.where(changes.usable, weights[changes.order], 0.0)
    total = weight.sum(axis=1)
    safe = np.where(total > 0, total, 1.0)
    position = (np.cumsum(weight, axis=1) - weight / 2) / safe[:, None]
    out = np.empty((len(changes.leads), len(quantiles)))
    for row in range(len(out)):
        # Cells without weight repeat a position and would drag the interpolation to a change that never happened.
        use = weight[row] > 0
        out[row] = np.interp(quantiles, position[row][use], changes.sorted[row][use]) if use.any() else np.nan
    mean = (weight * changes.sorted).sum(axis=1) / safe
    return out, np.where(total > 0, mean, np.nan)


def seasonal(past: History, period: int, leads: Ints, quantiles: Floats) -> tuple[Floats, Floats]:
    """Levels (H, Q) and means (H,) from the value one period before each target, with its past errors (at least 2
    periods).
    """
    now = len(past.values) - 1
    back = now + leads - period * -(-leads // period)
    errors = past.values[period:] - past.values[:-period]
    errors = errors[past.known[period:] & past.known[:-period]]
    if not len(errors):
        return np.full((len(leads), len(quantiles)), np.nan), np.full(len(leads), np.nan)
    base = past.values[back]
    return base[:, None] + np.quantile(errors, quantiles)[None, :], base + errors.mean()

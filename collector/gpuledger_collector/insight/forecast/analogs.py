"""Forecasts from what followed similar instants of a series' own past.

Problem: hourly GPU use is close to a random walk with plateaus. The last value is hard to beat as a
point forecast; what can be improved is the distribution around it. Idea (the method of analogues):
the change over the next h steps is drawn from the changes over h steps that followed earlier
instants, each weighted by its similarity to now. Instants are compared by level, age of the
plateau, hour of the day and recent movement; the weight falls with distance like a heavy-tailed
density, so that a rare jump under other circumstances keeps a place in the tails.

A level that the series had on a few days only, as after a service was scaled to a size that it
never had, says nothing about what follows: its analogs are one event seen many times. The fewer
days, the less the level counts.

Changes over more than a day overlap: those of a month over 30 days are one or two. The fewer there
are, the more of what can come is not among them, so that the band is widened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.series import Flags, Floats, Ints, fill_forward

MAX_CELLS = 600_000
"""Largest table of changes; longer pasts are thinned out to keep a forecast within milliseconds."""
MAX_ORIGINS = 1_400
"""Most instants to compare: neighbors among weeks of five minutes are nearly the same instant."""
MOVEMENT_HOURS, USUAL_HOURS = 3, 72
"""Movement is the change over the last 3 hours; the usual level is the mean of the last 3 days."""
CLEAR_RHYTHM, SOME_RHYTHM = 1 / 3, 2 / 3
"""Ratios of Rhythm below which a series is compared with a period before, and its leads are not
averaged.
"""
GUARD_POWER = 4
"""How sharply trust in the level falls below `Similarity.level_days`."""

Prediction = tuple[Floats, Floats]
"""Levels (H, Q) by lead and quantile, and means (H,)."""


@dataclass(frozen=True)
class Similarity:
    """How instants are compared: the width of each distance, None where it does not count.

    `level`, `movement` and `departure` (level - usual level) are in standard deviations of the
    series, `age` in factors of e of the time since the last change, `hour` in hours around the
    clock, `memory_days` is the age at which an instant counts half. The level itself counts half
    when the series was near it on `level_days` days (0: always fully). A lead is averaged with its
    neighbors fewer than `blend` steps away. Beyond a day, the band is wider by `widening` times the
    square root of those days over the days that carry the weight.
    """

    level: float | None = 0.1
    age: float | None = 0.7
    hour: float | None = 3.0
    movement: float | None = 0.4
    departure: float | None = 0.5
    memory_days: float | None = 14.0
    level_days: float = 5.0
    blend: int = 9
    widening: float = 0.5


PERSISTENCE = Similarity(None, None, None, None, None, None, 0.0, 1, 0.0)
"""Every instant is equally similar: the naive baseline of every forecast."""


@dataclass(frozen=True)
class History:
    """A series up to now; one entry per step, the last is now, with gaps filled by the last known
    value.
    """

    values: Floats
    known: Flags
    at_ms: Ints
    step_ms: int

    def first_steps(self, count: int) -> History:
        """Return the history as it was after `count` steps."""
        return replace(
            self, values=self.values[:count], known=self.known[:count], at_ms=self.at_ms[:count]
        )

    def steps(self, span_ms: int) -> int:
        """Number of steps in a span, at least one."""
        return max(1, span_ms // self.step_ms)


def history_of(values: Floats, start_ms: int, step_ms: int) -> History:
    """Return the history at the last known value of `values` (NaN: gap; at least one is known)."""
    known = np.isfinite(values)
    last = int(np.flatnonzero(known)[-1]) + 1
    values, known = values[:last], known[:last]
    values = fill_forward(values, float(values[np.argmax(known)]))
    return History(values, known, start_ms + np.arange(last) * step_ms, step_ms)


@dataclass(frozen=True)
class PastChanges:
    """Past changes sorted for each lead: row r holds `values[t + leads[r]] - values[t]` over the
    instants `origin`.

    Shapes: `sorted`, `order` (positions into origin) and `usable` (H, N), `origin` (N,) indices
    into the history.
    """

    sorted: Floats
    order: Ints
    usable: Flags
    origin: Ints


def past_changes(history: History, leads: Ints) -> PastChanges:
    """Tabulate the changes over each lead (steps, ascending); those not over yet or touching a gap
    are unusable.
    """
    count = len(history.values)
    # Thinned from the newest end: the latest instants are always among the origins.
    stride = max(1, -(-count // MAX_ORIGINS), -(-count * len(leads) // MAX_CELLS))
    origin = np.arange(count - 1, -1, -stride)[::-1]
    target = origin[None, :] + leads[:, None]
    inside = target < count
    target = np.minimum(target, count - 1)
    # Filled gaps have values, but a change from or to one never happened.
    usable = inside & history.known[origin][None, :] & history.known[target]
    change = np.where(usable, history.values[target] - history.values[origin][None, :], 0.0)
    order = np.argsort(change, axis=1)
    change, usable = (np.take_along_axis(table, order, 1) for table in (change, usable))
    return PastChanges(change, order, usable, origin)


@dataclass(frozen=True)
class Distances:
    """How far each instant of a history is from now, (N,) per distance, in the units of Similarity;
    `days` is age.
    """

    level: Floats
    age: Floats
    hour: Floats
    movement: Floats
    departure: Floats
    days: Floats


def distances(history: History) -> Distances:
    """Compare every instant with the last one."""
    values, index = history.values, np.arange(len(history.values))
    scale = float(values.std()) + 1e-9
    changed = np.concatenate([[False], np.abs(np.diff(values)) > 1e-9])
    age = np.log1p(index - np.maximum.accumulate(np.where(changed, index, 0)))
    # The distance on a clock: 23:00 and 01:00 are two hours apart.
    apart = np.abs((history.at_ms - history.at_ms[-1]) % DAY_MS) / HOUR_MS
    movement = values - values[np.maximum(index - history.steps(MOVEMENT_HOURS * HOUR_MS), 0)]
    total = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(index + 1 - history.steps(USUAL_HOURS * HOUR_MS), 0)
    departure = values - (total[1:] - total[first]) / (index + 1 - first)
    return Distances(
        level=(values - values[-1]) / scale,
        age=age - age[-1],
        hour=np.minimum(apart, 24 - apart),
        movement=(movement - movement[-1]) / scale,
        departure=(departure - departure[-1]) / scale,
        days=(index[-1] - index) * (history.step_ms / DAY_MS),
    )


def similarity_weights(apart: Distances, usable: Flags, similarity: Similarity) -> Floats:
    """Return the weight of each instant (N,); those of the `usable` ones sum to 1, the others are
    0.
    """
    recent = np.where(usable, 1.0, 0.0)
    if similarity.memory_days is not None:
        recent /= 1 + apart.days / similarity.memory_days
    weight = np.ones(len(usable))
    for name in ("age", "hour", "movement", "departure"):
        weight *= _closeness(getattr(apart, name), getattr(similarity, name))
    if similarity.level is None:
        return _normalize(weight * recent)
    at_level = recent * _closeness(apart.level, similarity.level)
    trust = _days_spread(at_level, apart.days) ** GUARD_POWER
    share = trust / (trust + similarity.level_days**GUARD_POWER)
    return share * _normalize(weight * at_level) + (1 - share) * _normalize(weight * recent)


def _closeness(distance: Floats, width: float | None) -> Floats | float:
    return 1.0 if width is None else 1 / np.sqrt(1 + 2 * np.square(distance / width))


def _normalize(weight: Floats) -> Floats:
    return weight / max(float(weight.sum()), 1e-300)


def _days_spread(weight: Floats, days: Floats) -> float:
    """Effective number of days that carry the weight (Kish 1965): 1 if one has all, n if n have
    equal parts.
    """
    by_day = np.bincount(days.astype(np.int64), weight)
    return float(by_day.sum() ** 2 / max(float(np.square(by_day).sum()), 1e-300))


class Analogs:
    """The past changes of a history over some leads, for predictions by any similarity.

    A series with a clear rhythm is compared by what it differs from a day or a week before, unless
    `plain`.
    """

    def __init__(self, history: History, leads: Ints, plain: bool = False) -> None:
        self.leads, self.rhythm = leads, rhythm_of(history)
        self.days_beyond_one = np.maximum(leads * history.step_ms / DAY_MS - 1, 0.0)
        self.base: Floats | float = 0.0
        if self.rhythm.is_clear and not plain:
            history, self.base = without_rhythm(history, leads, self.rhythm.period)
        self.now = float(history.values[-1])
        self.changes, self.apart = past_changes(history, leads), distances(history)
        count = len(history.values)
        self.usable = history.known & (np.arange(count) + int(leads[0]) < count)

    def predict(self, similarity: Similarity, quantiles: Floats) -> Prediction:
        """Predict levels and means at each lead, not clipped; NaN if no lead has a usable change."""
        weight = similarity_weights(self.apart, self.usable, similarity)
        # Averaging leads would flatten a rhythm.
        blend = _blending(self.leads, 1 if self.rhythm.ratio < SOME_RHYTHM else similarity.blend)
        levels, mean = (
            blend @ part
            for part in weighted_quantiles(
                self.changes, weight[self.changes.origin], np.append(quantiles, 0.5)
            )
        )
        days = max(_days_spread(weight, self.apart.days), 1.0)
        wider = similarity.widening * np.sqrt(self.days_beyond_one / days)
        levels, middle = levels[:, :-1], levels[:, -1:]
        levels = levels + wider[:, None] * (levels - middle)
        return self.now + levels + np.reshape(self.base, (-1, 1)), self.now + mean + self.base


@dataclass(frozen=True)
class Rhythm:
    """The more regular of the daily and the weekly rhythm: its period in steps, and how regular it
    is.

    `ratio` is the mean change over a period relative to that over half a day: above 1 without any
    rhythm.
    """

    period: int
    ratio: float

    @property
    def is_clear(self) -> bool:
        """Whether what differs from a period before is far easier to predict than the series
        itself.
        """
        return self.ratio < CLEAR_RHYTHM


def rhythm_of(history: History) -> Rhythm:
    """Measure the rhythm; a period needs three repetitions in the past, and a day six steps."""
    values = np.where(history.known, history.values, np.nan)
    day = DAY_MS // history.step_ms
    found = Rhythm(day, np.inf)
    if day < 6 or DAY_MS % history.step_ms:
        return found
    for period in (day, 7 * day):
        if len(values) >= 3 * period:
            moved, half = (np.abs(values[steps:] - values[:-steps]) for steps in (period, day // 2))
            if np.isfinite(moved).any() and np.nansum(half) > 0:
                ratio = float(np.nanmean(moved) / np.nanmean(half))
                found = min(found, Rhythm(period, ratio), key=lambda rhythm: rhythm.ratio)
    return found


def without_rhythm(history: History, leads: Ints, period: int) -> tuple[History, Floats]:
    """The history of differences from a period before, and the values a period before each lead."""
    values, known = history.values.copy(), history.known
    # A gap is filled by the same hour of the period before rather than by the hour before.
    values[period:] = np.where(known[period:], values[period:], values[:-period])
    rest = replace(
        history,
        values=values[period:] - values[:-period],
        known=known[period:] & known[:-period],
        at_ms=history.at_ms[period:],
    )
    return rest, values[len(values) - 1 + leads - period * -(-leads // period)]


def _blending(leads: Ints, reach: int) -> Floats:
    """Weights (H, H) that average each lead with its neighbors, falling linearly to 0 at `reach`
    steps.
    """
    tent = np.maximum(0.0, 1 - np.abs(leads[:, None] - leads[None, :]) / reach)
    return np.asarray(tent / tent.sum(axis=1, keepdims=True))


def weighted_quantiles(changes: PastChanges, weights: Floats, quantiles: Floats) -> Prediction:
    """Return weighted quantiles and mean of the changes for each lead; midpoint rule, linear
    between.

    A lead without any usable change gets those between its neighbors' (or of the last one); NaN if
    no lead has any.
    """
    weight = np.where(changes.usable, weights[changes.order], 0.0)
    total = weight.sum(axis=1)
    result = np.full((len(weight), len(quantiles) + 1), np.nan)
    rows = np.flatnonzero(total > 0)
    for row in rows:
        # Cells without weight repeat a position and would drag the interpolation to a change that
        # never happened.
        use = weight[row] > 0
        share, change = weight[row][use] / total[row], changes.sorted[row][use]
        result[row, :-1] = np.interp(quantiles, np.cumsum(share) - share / 2, change)
        result[row, -1] = share @ change
    if 0 < len(rows) < len(result):
        every = np.arange(len(result))
        result = np.stack([np.interp(every, rows, column[rows]) for column in result.T], axis=1)
    return result[:, :-1], result[:, -1]

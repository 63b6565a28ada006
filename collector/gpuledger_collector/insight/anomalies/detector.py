"""Upward anomalies of one series, instant by instant.

Problem: a runaway job stands out in an hour, a leak only over days, a weekly batch stands out and
is normal, and an unobserved instant must be neither a saving nor an alarm.

Idea: two excesses over the rolling baseline (baseline.py), in units of its spread, are added.
*Fast*: the height above everything usual. *Slow*: a one-sided CUSUM (Page 1954) of the distance
from the level, capped so that no single hour fires, and leaking so that it forgets. The reference
of both is raised to what recurred at this hour in both weeks before. What
long-running workloads make is judged the same way beside the whole, where it is known: a runaway or
a leak grows there long before it is above a team's usual bursts. Where the rate is known (cost and
usage apart), a rise of the rate is an alarm of its own, without statistics. Which instants are
alarms is decided in alarms.py.

Law: the judgment of an instant depends on values up to that instant alone; scaling a series changes
no score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.anomalies.alarms import AlarmRule, find_alarms
from gpuledger_collector.insight.anomalies.baseline import rolling_baseline
from gpuledger_collector.insight.series import Flags, Floats, Ints, Series

LONG_RUNNING_HOURS = 12
"""A workload that has run for so long is long-running."""
PRICE_RISE = 1.02
PRICE_SCORE = 99.0
"""Score of an instant whose rate has risen: certain, so above every threshold."""
MIN_TRUST = 0.5
"""With less past than this (about eight days) no instant is flagged at once."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Parameters chosen on the open traces, for at most one false alarm per team and month
    (docs/insight.md).
    """

    threshold: float = 1.0
    persistence_hours: int = 2
    """Hours in a row above the threshold before a flag, but for a score of `far` times the
    threshold.
    """
    far: float = 3.0
    min_of_mean: float = 0.15
    """The spread is at least this share of the mean: after a flat past a small change is no
    anomaly.
    """
    above_height: float = 1.15
    """Usual height, as a share of the distance from the level to the height of the past."""
    smooth: float = 0.3
    """Share of the fast excess that carries over to the next hour."""
    fast: float = 0.5
    slow: float = 0.07
    slack: float = 0.6
    clip_up: float = 4.0
    memory: float = 0.985
    cap: float = 20.0
    fatigue: float = 0.5
    """By what share each recent alarm of the series raises the threshold of the next one."""
    long_running: float = 0.5
    """Weight of the score of long-running workloads."""
    min_of_all: float = 0.1
    """Their spread is at least this share of the level of all spending."""
    at_once: float = 1.0
    """Spreads above everything usual at which an instant stands out at once."""


TUNED = Tuning()


@dataclass(frozen=True)
class Detection:
    """Judgment of every instant of a series; NaN where an instant is unknown or has too little
    past.

    `price` marks instants at which a rate was above that of the three days before, `long_running`
    those whose score is that of long-running workloads. `excess` is what is above what was expected
    (of long-running workloads: of theirs); `alarm` is the number of the alarm, 0: not flagged.
    """

    series: Series
    expected: Floats
    lower: Floats
    upper: Floats
    score: Floats
    price: Flags
    long_running: Flags
    excess: Floats
    alarm: Ints

    @property
    def flag(self) -> Flags:
        """Whether an instant is in an alarm."""
        return self.alarm > 0


@dataclass(frozen=True)
class _Judged:
    """The scores of a series; `leap` is the part of the score that is above everything usual."""

    expected: Floats
    usual: Floats
    scale: Floats
    level: Floats
    score: Floats
    leap: Floats


@dataclass(frozen=True, slots=True)
class AnomalyLimit:
    """Expected value of an instant, and the value it must exceed to stand out at once; in the unit
    of the series.
    """

    expected: float
    stands_out: float


@dataclass(frozen=True, slots=True)
class AnomalyEpisode:
    """Flags that belong together: first and last flagged instant as indices of the series.

    `excess` is the sum of value - expected where that is above zero: unit x steps.
    """

    first: int
    last: int
    excess: float


def detect(
    series: Series,
    price: Flags | None = None,
    long_running: Floats | None = None,
    tuning: Tuning = TUNED,
) -> Detection:
    """Judge every instant of a series; `price` marks instants at which a rate has risen, which
    needs no statistics.

    `long_running` is the part of each value that workloads make which have run for
    LONG_RUNNING_HOURS: what grows in it (a runaway, a leak) is hidden where short work leaps about.
    With less than two weeks of history the score is smaller, and with less than a day and a half
    there is none.
    """
    own = _judge(series, tuning)
    score, leap = own.score, own.leap
    excess = np.fmax(series.values - own.expected, 0.0)
    price = np.zeros(len(score), dtype=bool) if price is None else price
    by_long_running = np.zeros(len(score), dtype=bool)
    if long_running is not None:
        part = replace(series, values=np.where(np.isfinite(series.values), long_running, np.nan))
        longer = _judge(part, tuning, tuning.min_of_all * own.level)
        by_long_running = tuning.long_running * longer.score > score
        score = np.fmax(score, tuning.long_running * longer.score)
        leap = np.fmax(leap, tuning.long_running * longer.leap)
        excess = np.fmax(excess, part.values - longer.expected)
    rule = AlarmRule(tuning.threshold, tuning.persistence_hours, tuning.far, tuning.fatigue)
    upper = own.usual + tuning.threshold / tuning.fast * own.scale
    return Detection(
        series,
        own.expected,
        # The band is symmetric for people who look at it; only its upper edge is judged.
        np.maximum(2 * own.expected - upper, 0.0),
        upper,
        # A dearer rate is certain, whatever the statistics say.
        np.where(price, PRICE_SCORE, score),
        price,
        by_long_running,
        np.nan_to_num(excess),
        find_alarms(score, leap, price, rule, series.step_ms),
    )


def _judge(series: Series, tuning: Tuning, least_scale: Floats | None = None) -> _Judged:
    expected, usual, scale, trust, level = _limits(series, tuning)
    if least_scale is not None:
        scale = np.fmax(scale, np.where(least_scale > 0, least_scale, np.nan))
    # The parameters are per hour; for shorter steps memory and slack are scaled to the step.
    hours = min(1.0, series.step_ms / HOUR_MS)
    fast = _smooth(np.fmax((series.values - usual) / scale, 0.0), tuning.smooth**hours)
    slow = _drift((series.values - expected) / scale, hours, tuning)
    is_judged = np.isfinite(series.values) & np.isfinite(scale)
    leap = np.where(is_judged, trust * tuning.fast * fast, np.nan)
    return _Judged(expected, usual, scale, level, leap + trust * tuning.slow * slow, leap)


def _limits(series: Series, tuning: Tuning) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Expected value, usual height, spread, trust and level of every instant, from what was known before
    it.
    """
    past = rolling_baseline(series)
    # A flat past has no spread: without a minimum, its first small change would be infinitely far
    # away.
    scale = np.maximum(past.spread, tuning.min_of_mean * past.mean)
    scale = np.where(scale > 0, scale, np.nan)
    expected = np.fmax(past.level, past.recurring)
    usual = np.fmax(past.level + tuning.above_height * (past.height - past.level), expected)
    return expected, usual, scale, past.trust, past.level


def limits(series: Series, tuning: Tuning = TUNED) -> Floats:
    """Return the value each instant must exceed to stand out at once; NaN with too little past.

    One spread above everything usual, so that the first minutes of a large anomaly are flagged
    without waiting for whole hours.
    """
    _, usual, scale, trust, _ = _limits(series, tuning)
    return np.where(trust >= MIN_TRUST, usual + tuning.at_once * scale, np.nan)


def next_limit(series: Series) -> AnomalyLimit | None:
    """Return the limit of the instant after the series; None with too little past."""
    # An unknown instant at the end: its limits come from the past alone, as for every instant.
    longer = Series(series.name, series.start_ms, series.step_ms, np.append(series.values, np.nan))
    expected, limit = float(_limits(longer, TUNED)[0][-1]), float(limits(longer)[-1])
    return None if limit != limit else AnomalyLimit(expected, limit)


def _smooth(excess: Floats, memory: float) -> Floats:
    """Smooth the excess exponentially; an unknown instant changes nothing."""
    out = np.zeros(len(excess))
    total = 0.0
    for at, value in enumerate(excess.tolist()):
        if value == value:
            total = memory * total + (1 - memory) * value
        out[at] = total
    return out


def _drift(distance: Floats, hours: float, tuning: Tuning) -> Floats:
    """The leaking one-sided CUSUM after each instant of `hours`; an unknown instant changes
    nothing.
    """
    # Capped before it is summed, so that one extreme hour cannot fill the sum; the fast excess
    # sees that hour.
    change = hours * (np.minimum(distance, tuning.clip_up) - tuning.slack)
    memory = tuning.memory**hours
    out = np.zeros(len(distance))
    total = 0.0
    for at, value in enumerate(change.tolist()):
        if value == value:
            # Capped: after a long excess the sum must fall within days, or normal spending would go
            # on being flagged.
            total = min(max(0.0, total * memory + value), tuning.cap)
        out[at] = total
    return out


def detect_spending(cost: Series, usage: Series | None) -> Detection:
    """Judge a series of cost; where its usage is known, the cost at the first rate, and the rate
    apart.
    """
    if usage is None:
        return detect(cost)
    # Without usage there is no rate: what costs nonetheless is unknown, not dear.
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(usage.values > 0, cost.values / usage.values, np.nan)
    known = rate[np.isfinite(rate)]
    if not len(known):
        return detect(cost)
    at_first_rate = replace(cost, values=usage.values * known[0])
    return detect(at_first_rate, price_rises(rate, cost.step_ms))


def price_rises(rate: Floats, step_ms: int) -> Flags:
    """Flag instants whose rate (NaN unknown) is above the median of those known in the three days
    of usage before.

    For series without a price book, of which only cost and usage are known.
    """
    known = np.flatnonzero(np.isfinite(rate))
    risen = np.zeros(len(rate), dtype=bool)
    steps = max(1, 3 * DAY_MS // step_ms)
    for place in range(1, len(known)):
        before = rate[known[max(0, place - steps) : place]]
        risen[known[place]] = rate[known[place]] > PRICE_RISE * np.median(before)
    return risen


def group_episodes(judgment: Detection) -> list[AnomalyEpisode]:
    """The episode of each alarm."""
    where = np.flatnonzero(judgment.alarm)
    if not len(where):
        return []
    cut = np.flatnonzero(np.diff(judgment.alarm[where]))
    starts, ends = where[np.r_[0, cut + 1]], where[np.r_[cut, len(where) - 1]]
    return [
        AnomalyEpisode(int(a), int(b), float(judgment.excess[a : b + 1].sum()))
        for a, b in zip(starts, ends, strict=True)
    ]

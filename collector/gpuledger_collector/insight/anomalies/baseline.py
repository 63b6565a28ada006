"""The rolling baseline of each instant of a series, from values that end before it.

Problem: a level, a spread and a usual height are wanted for every instant, from what was known
before it alone, fast enough for years of hours. Idea: median and quartiles of two weeks for level
and spread; the highest hour of two weeks, the last day left out, for the usual height; and what
recurred at this hour of the week in both of the last two known weeks. A window is kept sorted while
it moves on, so that an instant costs one insertion and one removal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.quantiles import quantile
from gpuledger_collector.insight.series import Floats, Series

HISTORY_DAYS = 14
MIN_DAYS = 3
"""With less known history than this an instant is not judged."""
ENOUGH = 0.8
"""Share of the two weeks that must be known for full trust."""
NORMAL_QUARTILES = 0.7413
"""Interquartile range to standard deviation of a normal distribution (1 / 1.349)."""


@dataclass(frozen=True)
class RollingBaseline:
    """For each instant, from the two weeks before it; NaN where too little of them is known.

    `trust` is how much there is to judge from, 0..1: one with two known weeks (a day or so may be
    missing). `recurring` is the lower of the highest values about this hour one and two weeks ago;
    three weeks ago for an unknown one.
    """

    level: Floats
    spread: Floats
    mean: Floats
    height: Floats
    trust: Floats
    recurring: Floats


def rolling_baseline(series: Series) -> RollingBaseline:
    """Compute the baseline of every instant of a series."""
    day = max(1, round(DAY_MS / series.step_ms))
    window = HISTORY_DAYS * day
    # A day and a half of known values is enough for a first baseline, which is hardly trusted.
    least = max(MIN_DAYS * day // 2, 3)
    values = np.asarray(series.values, dtype=float)
    level, spread, mean, height = (np.full(len(values), np.nan) for _ in range(4))
    count = np.zeros(len(values))
    for at, (known, total) in enumerate(_windows(values, window)):
        count[at] = len(known)
        if len(known) >= least:
            level[at] = quantile(known, 0.5)
            spread[at] = NORMAL_QUARTILES * (quantile(known, 0.75) - quantile(known, 0.25))
            mean[at] = total / len(known)
        # Without the last day: an ongoing anomaly would be usual from its second hour on.
        if known and at + day < len(values):
            height[at + day] = known[-1]
    return RollingBaseline(
        level=level,
        spread=spread,
        mean=mean,
        height=height,
        # Squared: with half of the history there is a quarter of the trust.
        trust=np.minimum(1.0, count / (ENOUGH * window)) ** 2,
        recurring=_recurring(values, day),
    )


def _windows(values: Floats, size: int) -> Iterator[tuple[list[float], float]]:
    """For each instant: the known values of the `size` instants before it, sorted, and their sum.

    The list is the same one each time. The instant itself is no part of its own window.
    """
    known: list[float] = []
    total = lost = 0.0
    plain: list[float] = values.tolist()
    for at in range(len(plain)):
        yield known, total
        if at >= size and (gone := plain[at - size]) == gone:
            del known[bisect_left(known, gone)]
            total, lost = _add(total, -gone, lost)
        if (new := plain[at]) == new:
            insort(known, new)
            total, lost = _add(total, new, lost)
        if not known:
            total = lost = 0.0


def _add(total: float, value: float, lost: float) -> tuple[float, float]:
    """Add with the part that rounding lost the last time (Kahan): years of additions leave no
    drift.
    """
    value -= lost
    new = total + value
    return new, (new - total) - value


def _recurring(values: Floats, day: int) -> Floats:
    around = max(1, day // 24)
    padded = np.pad(values, around, constant_values=np.nan)
    highest = np.fmax.reduce(
        [padded[shift : shift + len(values)] for shift in range(2 * around + 1)]
    )
    first, second, third = (_later(highest, week * 7 * day) for week in (1, 2, 3))
    # The two latest known of the last three weeks; the lower one, so that one odd week does not
    # make a spike usual.
    newest = np.where(np.isnan(first), second, first)
    older = np.where(np.isnan(first) | np.isnan(second), third, second)
    both: Floats = np.minimum(newest, older)
    return both


def _later(values: Floats, steps: int) -> Floats:
    """Return the values that many steps later, NaN before the first."""
    return np.concatenate(
        [np.full(min(steps, len(values)), np.nan), values[: max(0, len(values) - steps)]]
    )

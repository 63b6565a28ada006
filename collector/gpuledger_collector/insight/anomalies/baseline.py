"""The rolling baseline of each instant of a series, from values that end before it.

Problem: a level, a spread and a usual height are wanted for every instant, from what was known before it alone, fast
enough for years of hours. Idea: median and quartiles of two weeks for level and spread; the highest hour of two weeks,
the last day left out, for the usual height; and what recurred at this hour of the week in both of the last two known
weeks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.series import Floats, Series

if TYPE_CHECKING:
    import pandas as pd

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

    `trust` is how much there is to judge from, 0..1: one with two known weeks (a day or so may be missing). `recurring`
    is the lower of the highest values about this hour one and two weeks ago; three weeks ago for an unknown one.
    """

    level: Floats
    spread: Floats
    mean: Floats
    height: Floats
    trust: Floats
    recurring: Floats


def rolling_baseline(series: Series) -> RollingBaseline:
    """Compute the baseline of every instant of a series."""
    import pandas as pd  # here, because commands that judge no series must not wait for it

    day = max(1, round(DAY_MS / series.step_ms))
    values = pd.Series(series.values)
    # Shifted by one: the judged instant is no part of its own baseline.
    before = values.shift(1)
    window = HISTORY_DAYS * day
    # A day and a half of known values is enough for a first baseline, which is hardly trusted.
    rolling = before.rolling(window, min_periods=max(MIN_DAYS * day // 2, 3))
    quartiles = rolling.quantile(0.75) - rolling.quantile(0.25)
    # Without the last day: an ongoing anomaly would be usual from its second hour on.
    height = before.shift(day).rolling(window, min_periods=1).max()
    return RollingBaseline(
        level=rolling.median().to_numpy(),
        spread=(NORMAL_QUARTILES * quartiles).to_numpy(),
        mean=rolling.mean().to_numpy(),
        height=height.to_numpy(),
        # Squared: with half of the history there is a quarter of the trust.
        trust=np.minimum(1.0, before.rolling(window, min_periods=1).count().to_numpy() / (ENOUGH * window)) ** 2,
        recurring=_recurring(values, day),
    )


def _recurring(values: pd.Series[float], day: int) -> Floats:
    around = max(1, day // 24)
    highest = values.rolling(2 * around + 1, min_periods=1, center=True).max()
    first, second, third = (highest.shift(week * 7 * day).to_numpy() for week in (1, 2, 3))
    # The two latest known of the last three weeks; the lower one, so that one odd week does not make a spike usual.
    newest = np.where(np.isnan(first), second, first)
    older = np.where(np.isnan(first) | np.isnan(second), third, second)
    both: Floats = np.minimum(newest, older)
    return both

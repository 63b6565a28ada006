"""What the past of each instant looked like: rolling measures that end before it.

Problem: a level, a spread and a usual height are wanted for every instant, from what was known before it alone, fast
enough for years of hours, and not spoilt by the anomaly of last week. Idea: medians and quartiles of two weeks for
level and spread; for the usual height a high one, not the highest, of the daily maxima, which a bad day or two cannot
move; and what came back at this hour of the week in both of the last two weeks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpuledger_collector.insight.series import Floats, Series

DAY_MS = 86_400_000
HISTORY_DAYS = 14
LEAST_DAYS = 3
"""With less known history than this an instant is not judged."""
NORMAL_QUARTILES = 0.7413
"""Interquartile range to standard deviation of a normal distribution (1 / 1.349)."""


@dataclass(frozen=True)
class Past:
    """For each instant, from the two weeks before it; NaN where too little of them is known."""

    level: Floats
    spread: Floats
    mean: Floats
    height: Floats
    recurring: Floats
    """Lower of the highest values about this hour one and two weeks ago; NaN when one of the two is not known."""


def past_of(series: Series, rank: int) -> Past:
    """The past of every instant of a series; `rank` daily maxima of fourteen are left out of the usual height."""
    day = max(1, round(DAY_MS / series.step_ms))
    values = pd.Series(series.values)
    before = values.shift(1)
    least = max(LEAST_DAYS * day // 2, 3)
    rolling = before.rolling(HISTORY_DAYS * day, min_periods=least)
    quartiles = rolling.quantile(0.75) - rolling.quantile(0.25)
    return Past(
        level=rolling.median().to_numpy(),
        spread=(NORMAL_QUARTILES * quartiles).to_numpy(),
        mean=rolling.mean().to_numpy(),
        height=_height(before, day, rank),
        recurring=_recurring(values, day),
    )


def _height(before: pd.Series[float], day: int, rank: int) -> Floats:
    """The highest of 14 daily maxima but `rank`; of fewer known days as many fewer are left out.

    The last day is not among them: else what goes on now would be usual from its second hour on.
    """
    daily = before.rolling(day, min_periods=1).max()
    days = np.stack([daily.shift(back * day).to_numpy() for back in range(1, HISTORY_DAYS + 1)])
    known = np.isfinite(days).sum(axis=0)
    ascending = np.sort(np.where(np.isfinite(days), days, -np.inf), axis=0)[::-1]
    left_out = rank * known // HISTORY_DAYS
    picked = np.take_along_axis(ascending, left_out[None, :], axis=0)[0]
    return np.where(known > 0, picked, np.nan)


def _recurring(values: pd.Series[float], day: int) -> Floats:
    around = max(1, day // 24)
    highest = values.rolling(2 * around + 1, min_periods=1, center=True).max()
    weeks = [highest.shift(week * 7 * day).to_numpy() for week in (1, 2)]
    both: Floats = np.minimum(weeks[0], weeks[1])
    return both

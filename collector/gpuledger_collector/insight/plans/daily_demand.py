"""Demand of a pool on the days ahead, with bands as wide as past periods ask for.

Demand is forecast by the day, with the quantiles of `insight.forecast`. How wide its bands are
comes from past periods as long: each was forecast from the days before it, and what came says how
wide its band had to be. The days and their sum are asked apart: days are not all high together, so
that a sum of high days is further off than it should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.demand import COVERED
from gpuledger_collector.insight.forecast import forecast, quantile_loss
from gpuledger_collector.insight.series import Floats, Series
from gpuledger_common.plurals import plural

QUANTILES = tuple(number / 20 for number in range(1, 20))
LOW, LIKELY, HIGH = (QUANTILES.index(quantile) for quantile in (0.1, 0.5, 0.9))
MIN_DAYS = 24
"""Fewer known days give no band."""
LEARNED_PART = 3
"""A band is learned as far ahead as a third of the known days; beyond, it widens with the square
root of time.
"""
MIN_PERIODS, MAX_PERIODS = 3, 12
"""Periods as long as a forecast, one after the other, that its back-test needs, and the latest ones
that it uses.
"""
STATED = 0.8
"""Share of the days that a band is to hold."""
PRIOR_PERIODS = 2
"""As if in so many periods more the band had been as wide as it had to be."""
MOST_WIDENING = 4.0
"""One period counts as at most so many times too narrow or too wide."""
SHAPE_DAYS = 28
DAY_HOURS = 24


@dataclass(frozen=True)
class Backtest:
    """Past periods as long as a forecast, each forecast from the days before it.

    `covered` is the share of days inside the band, `skill` is 1 - loss / loss of persistence; both
    None: unjudged.
    """

    days: int
    periods: int
    covered: float | None = None
    skill: float | None = None

    def sentence(self) -> str:
        """What the back-test says, in words."""
        length = f"{plural(self.periods, 'period')} of {plural(self.days, 'day')}"
        if self.covered is None:
            return (
                f"unjudged: the past allows a back-test of {length}, and {MIN_PERIODS} are needed"
            )
        skill = (
            ""
            if self.skill is None
            else f"; {abs(self.skill):.0%} {'better' if self.skill >= 0 else 'worse'}"
        )
        skill += " than no change" if skill else ""
        return (
            f"judged on {length}: {self.covered:.0%} of the days were in the band (80 % is"
            f" right){skill}"
        )


def _by_day(hours: Series) -> tuple[int, Floats]:
    """The first whole UTC day, and the hours of every whole day (days, 24)."""
    skipped = -hours.start_ms % DAY_MS // HOUR_MS
    days = max(0, len(hours.values) - skipped) // DAY_HOURS
    table = hours.values[skipped : skipped + days * DAY_HOURS].reshape(days, DAY_HOURS)
    return hours.start_ms + skipped * HOUR_MS, table


def daily_means(hours: Series) -> Series:
    """Return mean demand by UTC day; a day without nine tenths of its hours is unknown."""
    start_ms, table = _by_day(hours)
    known = np.isfinite(table)
    means = np.where(known, table, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return Series(
        hours.name, start_ms, DAY_MS, np.where(known.mean(axis=1) >= COVERED, means, np.nan)
    )


def hour_shapes(hours: Series) -> Floats:
    """Return demand of the hours relative to the mean of their day, for the last known days (days,
    24).
    """
    _, table = _by_day(hours)
    means = daily_means(hours).values
    usable = np.flatnonzero(np.isfinite(means) & (means > 0))[-SHAPE_DAYS:]
    if not len(usable):
        return np.ones((1, DAY_HOURS))
    return np.asarray(np.nan_to_num(table[usable] / means[usable, None], nan=1.0))


def day_levels(days: Series, reach: int, method: str = "analog") -> Floats:
    """Forecast the quantiles (reach, Q) of mean GPUs on the days after the last one, before past
    periods are looked at.
    """
    learned = min(reach, days.known_count // LEARNED_PART)
    (result,) = forecast([days], learned, QUANTILES, method, judged=False)
    middle = result.values[-1, LIKELY]
    factor = np.sqrt(np.arange(learned + 1, reach + 1) / learned)
    beyond = middle + factor[:, None] * (result.values[-1] - middle)[None, :]
    return np.concatenate([result.values, np.maximum(beyond, 0.0)])


@dataclass(frozen=True)
class Period:
    """A past period as it was forecast from the days before it, and its days that are known."""

    levels: Floats
    naive: Floats
    actual: Floats

    def needed(self) -> Floats:
        """By what factor the band of each known day had to be wider to reach it."""
        known = np.isfinite(self.actual)
        return _needed_widening(self.levels[known], self.actual[known])

    def needed_in_sum(self) -> Floats:
        """By what factor the band of the sum over the known days had to be wider."""
        known = np.isfinite(self.actual)
        total = self.levels[known].sum(axis=0)
        return _needed_widening(total[None, :], self.actual[known].sum()[None])


def _needed_widening(levels: Floats, actual: Floats) -> Floats:
    off = actual - levels[:, LIKELY]
    half = np.where(
        off > 0, levels[:, HIGH] - levels[:, LIKELY], levels[:, LIKELY] - levels[:, LOW]
    )
    # A band without any width is missed by whatever moved, and by nothing that did not.
    return np.asarray(np.abs(off) / np.maximum(half, 1e-6 * (1 + levels[:, LIKELY])))


def widening(needed: Sequence[Floats]) -> float:
    """Return by what factor a band is widened after periods that needed such: a conformal quantile,
    drawn to 1 while there are few.
    """
    if not needed:
        return 1.0
    factor = float(np.quantile(np.concatenate(needed), STATED))
    share = len(needed) / (len(needed) + PRIOR_PERIODS)
    return float(np.clip(factor, 1 / MOST_WIDENING, MOST_WIDENING) ** share)


def widen(levels: Floats, factor: float) -> Floats:
    """Return the quantiles with their distance from the likely one multiplied, none below zero."""
    middle = levels[..., LIKELY, None]
    return np.asarray(np.maximum(middle + factor * (levels - middle), 0.0))


def past_periods(days: Series, reach: int) -> list[Period]:
    """The last periods of `reach` days, oldest first, each forecast from the days before it alone."""
    periods: list[Period] = []
    for origin in range(len(days.values) - reach, max(reach, MIN_DAYS) - 1, -reach):
        past, actual = days.known_before(origin), days.values[origin : origin + reach]
        if past.known_count < MIN_DAYS or not np.isfinite(actual).any():
            continue
        naive = day_levels(past, reach, "persistence")
        periods.insert(0, Period(day_levels(past, reach), naive, actual))
        if len(periods) == MAX_PERIODS:
            break
    return periods


def judge(periods: Sequence[Period], reach: int) -> Backtest:
    """Judge the band of each period, as wide as the periods before it said."""
    inside, losses = [], []
    quantiles = np.asarray(QUANTILES)
    for number, period in enumerate(periods):
        factor = widening([earlier.needed() for earlier in periods[:number]])
        levels = widen(period.levels, factor)
        known = np.isfinite(period.actual)
        actual = period.actual[known]
        inside += list(
            (levels[known, LOW] - 1e-9 <= actual) & (actual <= levels[known, HIGH] + 1e-9)
        )
        losses.append(
            [quantile_loss(period.actual, each, quantiles) for each in (levels, period.naive)]
        )
    if len(periods) < MIN_PERIODS:
        return Backtest(reach, len(periods))
    own, naive = np.sum(losses, axis=0)
    return Backtest(
        reach, len(periods), float(np.mean(inside)), float(1 - own / naive) if naive > 0 else None
    )


@dataclass(frozen=True)
class DaysAhead:
    """Quantiles of mean GPUs on the days ahead (reach, Q), with the widths that past periods ask for.

    `in_sum` are those whose sum over days has the right width: days are not all high together.
    """

    levels: Floats
    in_sum: Floats
    backtest: Backtest


def days_ahead(days: Series, reach: int) -> DaysAhead:
    """Forecast the days after the last one; at least MIN_DAYS are known."""
    periods, levels = past_periods(days, reach), day_levels(days, reach)
    return DaysAhead(
        widen(levels, widening([period.needed() for period in periods])),
        widen(levels, widening([period.needed_in_sum() for period in periods])),
        judge(periods, reach),
    )

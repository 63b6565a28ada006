"""What will have been spent at the end of a period: an estimate with a band, from the charges of past days.

A day to come is expected to cost the mean of the last seven days; from two weeks of history on, the mean of its own
weekday over the last (at most four) weeks, moved by half of the way, as a ratio, that the last week lies off them.

The band comes from how wrong the same rule was on this history: it is replayed from every past day, and the absolute
log ratios of what came to what was expected give its half width (split conformal with the finite-sample rank, Lei et
al. 2018). Errors of overlapping usage intervals are not independent, so the width grows by days ahead over days known.
Fewer than five whole days give no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MIN_DAYS = 5
WEEK = 7
WEEKDAY_HISTORY = 14
MOST_WEEKS = 4
MAX_HISTORY_DAYS = 56
BAND = 0.8
"""The band that is shown holds with this probability."""
LIKELY = 0.6
"""The lower end of a band of this probability is passed with four chances in five."""
MOST_OFF, MOST_WIDER = 3.0, 5.0
"""A ratio beyond twenty, or a horizon beyond four times the history, says no more."""
FEW_RATIOS = 9
"""Below this many past errors the largest is taken, a quarter larger, and at least a tenth."""


@dataclass(frozen=True, slots=True)
class SpendForecast:
    """Spend at the ends of today and of each day to come, as micro-units: `middle`, `low` to `high`, and `likely`.

    Every sequence begins with the end of today, and never falls.
    """

    low: tuple[int, ...]
    middle: tuple[int, ...]
    high: tuple[int, ...]
    likely: tuple[int, ...]
    days_of_history: int


@dataclass(frozen=True, slots=True)
class BudgetExhaustion:
    """Days from today until the budget is spent (0: today); None: not before the period's end."""

    earliest: int | None
    middle: int | None
    latest: int | None


def forecast_spend(history: Sequence[int], spent: int, left_of_today: float, days_after: int) -> SpendForecast | None:
    """The outlook, None when the history is too short.

    `history`: micro-units of each whole day, oldest first, up to yesterday. `spent`: of the period up to now.
    `left_of_today`: the fraction of today that is still to come. `days_after`: whole days of the period after today.
    """
    past = np.asarray(history[-MAX_HISTORY_DAYS:], dtype=float)
    if len(past) < MIN_DAYS:
        return None
    ahead = np.cumsum(expected_days(past, days_after + 1) * np.concatenate([[left_of_today], np.ones(days_after)]))
    widths = [half_widths(ratios, len(past), day + 1) for day, ratios in enumerate(past_ratios(past, days_after + 1))]

    def path(factors: Sequence[float]) -> tuple[int, ...]:
        return tuple(round(value) for value in np.maximum.accumulate(spent + ahead * np.asarray(factors)))

    return SpendForecast(
        low=path([math.exp(-band) for band, _ in widths]),
        middle=path([1.0] * len(widths)),
        high=path([math.exp(band) for band, _ in widths]),
        likely=path([math.exp(-likely) for _, likely in widths]),
        days_of_history=len(past),
    )


def expected_days(past: Floats, days: int) -> Floats:
    """What each of the next days is expected to cost, by the rule above."""
    if len(past) < WEEKDAY_HISTORY:
        return np.full(days, past[-WEEK:].mean())
    weeks = past[-(min(len(past) // WEEK, MOST_WEEKS)) * WEEK :].reshape(-1, WEEK)
    usual, lately = weeks.mean(), weeks[-1].mean()
    moved = math.sqrt(lately / usual) if usual > 0 else 1.0
    return np.asarray(np.resize(weeks.mean(axis=0), days) * moved)


def past_ratios(past: Floats, days: int) -> list[Floats]:
    """For each number of days ahead, what came over what was expected, from every past day that can tell.

    Where no past day can be followed so far, the longest way that can be is taken.
    """
    found: list[Floats] = []
    expected = {origin: np.cumsum(expected_days(past[:origin], days)) for origin in range(MIN_DAYS, len(past))}
    came = {origin: np.cumsum(past[origin : origin + days]) for origin in expected}
    for ahead in range(days):
        ratios = [
            came[origin][ahead] / expected[origin][ahead]
            for origin in expected
            if len(came[origin]) > ahead and expected[origin][ahead] > 0
        ]
        if len(ratios) < 2 and found:
            found.append(found[-1])
        else:
            found.append(np.asarray(ratios))
    return found


def half_widths(ratios: Floats, known: int, ahead: int) -> tuple[float, float]:
    """Half widths, as logarithms, of the band that is shown and of the one whose lower end is likely passed."""
    off = np.sort(np.abs(np.log(ratios[ratios > 0])))
    wider = min(1 + ahead / known, MOST_WIDER)
    if len(off) < FEW_RATIOS:
        widest = min(max([0.1, *off]) * 1.25, MOST_OFF)
        return float(widest * wider), float(widest * wider * LIKELY / BAND)
    band, likely = (float(off[min(math.ceil((len(off) + 1) * level), len(off)) - 1]) for level in (BAND, LIKELY))
    return min(band, MOST_OFF) * wider, min(likely, MOST_OFF) * wider


def budget_exhaustion(found: SpendForecast, amount: int) -> BudgetExhaustion:
    """When the budget is spent: earliest by the high path, latest by the low one."""
    return BudgetExhaustion(*(_first_at(path, amount) for path in (found.high, found.middle, found.low)))


def _first_at(path: Sequence[int], amount: int) -> int | None:
    return next((day for day, value in enumerate(path) if value >= amount), None)

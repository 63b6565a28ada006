"""What will have been spent at the end of a period: an estimate with a band, from the charges of past days.

A day to come is expected to cost the mean of the last seven days, or, from two weeks of history on, the mean between
that and its own weekday in the last four weeks. The band comes from how wrong the same rule was on this history: it
is replayed from every past day, and the ratios of what came to what was expected give the quantiles (split conformal:
Lei et al. 2018, with the finite-sample rank). Fewer than five whole days give no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FEWEST_DAYS = 5
WEEK = 7
WEEKDAY_HISTORY = 14
MOST_HISTORY = 56
BAND = (0.1, 0.9)
"""The band that is shown: eight chances in ten."""
LIKELY = 0.2
"""What is reached with four chances in five."""
FEW_RATIOS = 9
"""Below this many past errors the extremes are taken, and pulled apart by a quarter."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Spend at the ends of today and of each day to come, as micro-units: `middle`, `low` to `high`, and `likely`.

    Every sequence begins with the end of today, and never falls.
    """

    low: tuple[int, ...]
    middle: tuple[int, ...]
    high: tuple[int, ...]
    likely: tuple[int, ...]
    days_of_history: int


@dataclass(frozen=True, slots=True)
class RunOut:
    """Days from today until the budget is spent (0: today); None: not before the period's end."""

    earliest: int | None
    middle: int | None
    latest: int | None


def outlook(history: Sequence[int], spent: int, left_of_today: float, days_after: int) -> Outlook | None:
    """The outlook, None when the history is too short.

    `history`: micro-units of each whole day, oldest first, up to yesterday. `spent`: of the period up to now.
    `left_of_today`: the fraction of today that is still to come. `days_after`: whole days of the period after today.
    """
    past = np.asarray(history[-MOST_HISTORY:], dtype=float)
    if len(past) < FEWEST_DAYS:
        return None
    expected = expect(past, days_after + 1)
    steps = expected * np.concatenate([[left_of_today], np.ones(days_after)])
    ahead = np.cumsum(steps)
    ratios = past_ratios(past, days_after + 1)
    paths = {
        name: np.maximum.accumulate([spent + ahead[at] * quantile(ratios[at], level) for at in range(len(ahead))])
        for name, level in (("low", BAND[0]), ("middle", 0.5), ("high", BAND[1]), ("likely", LIKELY))
    }
    whole = {name: tuple(round(value) for value in path) for name, path in paths.items()}
    return Outlook(whole["low"], whole["middle"], whole["high"], whole["likely"], len(past))


def expect(past: Floats, days: int) -> Floats:
    """What each of the next days is expected to cost, by the rule above."""
    level = float(past[-WEEK:].mean())
    if len(past) < WEEKDAY_HISTORY:
        return np.full(days, level)
    weekdays = [float(past[::-1][WEEK - 1 - day % WEEK :: WEEK][:4].mean()) for day in range(min(days, WEEK))]
    return np.asarray([(level + weekdays[day % WEEK]) / 2 for day in range(days)])


def past_ratios(past: Floats, days: int) -> list[Floats]:
    """For each number of days ahead, what came over what was expected, from every past day that can tell.

    Where no past day can be followed so far, the longest way that can be is taken.
    """
    found: list[Floats] = []
    expected = {origin: np.cumsum(expect(past[:origin], days)) for origin in range(FEWEST_DAYS, len(past))}
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


def quantile(ratios: Floats, level: float) -> float:
    """The conformal quantile of past ratios; 1 for the middle, because the rule itself is the middle."""
    if level == 0.5:
        return 1.0
    if len(ratios) < FEW_RATIOS:
        reach = max([0.1, *(abs(float(ratio) - 1) for ratio in ratios)]) * 1.25
        share = 1.0 if level in BAND else (0.5 - LIKELY) / (0.5 - BAND[0])
        return max(0.0, 1 - reach * share) if level < 0.5 else 1 + reach * share
    ordered = np.sort(ratios)
    count = len(ordered)
    if level < 0.5:
        rank = max(math.floor((count + 1) * level), 1)
        return min(1.0, float(ordered[rank - 1]))
    rank = min(math.ceil((count + 1) * level), count)
    return max(1.0, float(ordered[rank - 1]))


def run_out(found: Outlook, amount: int) -> RunOut:
    """When the budget is spent: earliest by the high path, latest by the low one."""
    return RunOut(*(_first_at(path, amount) for path in (found.high, found.middle, found.low)))


def _first_at(path: Sequence[int], amount: int) -> int | None:
    return next((day for day, value in enumerate(path) if value >= amount), None)

"""Spend at the end of a period: an estimate with a band, from the charges of past days.

A future day is expected to cost the mean of the last seven days; from two weeks of history on, the
mean of its own weekday over the last (at most four) weeks, times the square root of the ratio of
the last week to them.

The band comes from how wrong the same rule was on this history: it is replayed from every past day,
and the absolute log ratios of what came to what was expected over as many days give its half width
(split conformal with the finite-sample rank, Lei et al. 2018). Where the errors of one day resemble
those of the next, the level drifts, and a short history shows too little of it: the width grows by
that resemblance, and by days ahead over days known. Fewer than five complete days give no estimate.
`./dev bench forecast --bands` measures how often bands hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import Calendar, Period

MIN_DAYS = 5
WEEK = 7
WEEKDAY_HISTORY = 14
MAX_WEEKS = 4
MAX_HISTORY_DAYS = 56
SHOWN_DAYS = 30
"""Days of history that a list shows."""
BAND = 0.8
"""Probability with which the shown band holds."""
LIKELY = 0.6
"""Actual spend exceeds the lower end of a band of this probability four times in five."""
MAX_LOG_RATIO = 3.0
"""A band is at most twenty times (e^3) what is expected, and at least a twentieth."""
FEW_RATIOS = 3
"""With fewer past errors the band is the largest of them, and at least a tenth."""
DRIFT_WIDENING = 1.5
"""Times the lag-one autocorrelation of the errors of single days, and days ahead over days known."""


@dataclass(frozen=True, slots=True)
class SpendForecast:
    """Spend in micro-units at the end of today and of each following day: `middle`, the band `low`
    to `high`, `likely`.

    No sequence falls.
    """

    low: tuple[int, ...]
    middle: tuple[int, ...]
    high: tuple[int, ...]
    likely: tuple[int, ...]
    days_of_history: int

    @property
    def end(self) -> tuple[int, int, int, int]:
        """Where the paths end: low, middle, high and likely."""
        return self.low[-1], self.middle[-1], self.high[-1], self.likely[-1]


@dataclass(frozen=True, slots=True)
class OwnerSpend:
    """What an owner spent this month in one currency, in micro-units, and where the month ends.

    `forecast` None: `days` whole days are too few for one. `owner` "": nobody. `by_day`: each of
    the last whole days, None before the first charge.
    """

    owner: str
    currency: str
    spent_micro: int
    days: int
    forecast: SpendForecast | None
    by_day: tuple[int | None, ...] = ()

    @property
    def spent(self) -> Money:
        """What is spent so far."""
        return Money(self.spent_micro, self.currency)

    def end(self, path: str) -> Money | None:
        """Where a path of the forecast, `low`, `middle` or `high`, ends with the month."""
        if self.forecast is None:
            return None
        return Money(getattr(self.forecast, path)[-1], self.currency)


@dataclass(frozen=True, slots=True)
class BudgetExhaustion:
    """Days from today until the budget is spent (0: today); None: not before the period ends."""

    earliest: int | None
    middle: int | None
    latest: int | None


def whole_days_of_spend(
    calendar: Calendar, since_ms: int, known_ms: int, by_day: Mapping[int, int]
) -> list[int]:
    """Return the cost of each whole day since `since_ms` up to where the ledger is rated.

    History begins at the first charge, also one of nothing: zeros from before a project began would
    pull the forecast down, while a team that is charged nothing is known to pay nothing. A later
    day without a charge cost nothing.
    """
    first_ms = max(since_ms, min(by_day, default=known_ms))
    today_ms = calendar.day_of(known_ms).start_ms
    if first_ms >= today_ms:
        return []
    return [by_day.get(day.start_ms, 0) for day in calendar.days(Period(first_ms, today_ms))]


def forecast_period(
    calendar: Calendar, period: Period, known_ms: int, history: Sequence[int], spent: int
) -> SpendForecast | None:
    """Forecast the end of a period from `history`, the whole days before `known_ms`.

    `known_ms`: the ledger is rated up to here; the time after it is still to come. None when the
    period has ended or the history is too short.
    """
    today = calendar.day_of(known_ms)
    if today.start_ms >= period.end_ms:
        return None
    left_of_today = (today.end_ms - known_ms) / today.ms
    days_after = len(calendar.days(Period(today.start_ms, period.end_ms))) - 1
    return forecast_spend(history, spent, left_of_today, days_after)


def forecast_spend(
    history: Sequence[int], spent: int, left_of_today: float, days_after: int
) -> SpendForecast | None:
    """Forecast the spend of a period, None when the history is too short.

    `history`: micro-units of each complete day, oldest first, up to yesterday. `spent`: of the
    period up to now. `left_of_today`: the remaining fraction of today. `days_after`: days of the
    period after today.
    """
    past = [float(cost) for cost in history[-MAX_HISTORY_DAYS:]]
    if len(past) < MIN_DAYS:
        return None
    # Today counts in part only: what is spent of it already is in `spent`.
    today, *later = expected_days(past, days_after + 1)
    ahead = list(accumulate([today * left_of_today, *later]))
    by_horizon = past_ratios(past, days_after + 1)
    widening = DRIFT_WIDENING * autocorrelation(by_horizon[0]) / len(past)
    widths = [
        half_widths(ratios, 1 + widening * (day + 1)) for day, ratios in enumerate(by_horizon)
    ]

    def path(factors: Iterable[float]) -> tuple[int, ...]:
        # Spend never falls, so neither may a path, although the band of a later day may be
        # narrower.
        costs = (spent + cost * factor for cost, factor in zip(ahead, factors, strict=True))
        return tuple(round(value) for value in accumulate(costs, max))

    return SpendForecast(
        low=path(math.exp(-band) for band, _ in widths),
        middle=path(1.0 for _ in widths),
        high=path(math.exp(band) for band, _ in widths),
        likely=path(math.exp(-likely) for _, likely in widths),
        days_of_history=len(past),
    )


def expected_days(past: Sequence[float], days: int) -> list[float]:
    """Return the expected cost of each of the next days, by the rule above."""
    if len(past) < WEEKDAY_HISTORY:
        return [fmean(past[-WEEK:])] * days
    weeks = past[-(min(len(past) // WEEK, MAX_WEEKS)) * WEEK :]
    usual, lately = fmean(weeks), fmean(weeks[-WEEK:])
    # The square root goes half of the way (on a log scale) from the usual level to last week's.
    moved = math.sqrt(lately / usual) if usual > 0 else 1.0
    # The weeks end yesterday, so the first of the seven means belongs to today's weekday, and they
    # repeat.
    weekdays = [fmean(weeks[weekday::WEEK]) * moved for weekday in range(WEEK)]
    return [weekdays[day % WEEK] for day in range(days)]


def past_ratios(past: Sequence[float], days: int) -> list[list[float]]:
    """Return, for each number of days ahead, the ratios of actual to expected cost from every past
    day.

    Days before which the weekdays were not known yet are left out where later ones suffice: another
    rule was wrong there. Where the history is too short for that many days ahead, the ratios of the
    longest possible horizon are repeated.
    """
    by_horizon: list[list[float]] = []
    expected = {
        origin: list(accumulate(expected_days(past[:origin], days)))
        for origin in range(MIN_DAYS, len(past))
    }
    came = {origin: list(accumulate(past[origin : origin + days])) for origin in expected}
    for ahead in range(days):
        by_origin = {
            origin: came[origin][ahead] / expected[origin][ahead]
            for origin in expected
            if len(came[origin]) > ahead and expected[origin][ahead] > 0
        }
        ratios = list(by_origin.values())
        if len(past) >= WEEKDAY_HISTORY + WEEK:
            later = [ratio for origin, ratio in by_origin.items() if origin >= WEEKDAY_HISTORY]
            ratios = later if len(later) >= 2 else ratios
        by_horizon.append(by_horizon[-1] if len(ratios) < 2 and by_horizon else ratios)
    return by_horizon


def autocorrelation(ratios: Sequence[float]) -> float:
    """Return how much the log ratio of a day resembles that of the day before: 0 to 1."""
    errors = [math.log(ratio) if ratio > 0 else 0.0 for ratio in ratios]
    power = sum(error * error for error in errors)
    products = sum(error * after for error, after in pairwise(errors))
    return max(0.0, products / power) if power > 0 else 0.0


def half_widths(ratios: Sequence[float], widening: float) -> tuple[float, float]:
    """Return half widths, as logarithms, of the shown band and of the one whose lower end is likely
    exceeded.
    """
    # Logarithms: twice as much and half as much are equally wrong.
    off = sorted(abs(math.log(ratio)) for ratio in ratios if ratio > 0)
    if len(off) < FEW_RATIOS:
        widest = min(max([0.1, *off]) * widening, MAX_LOG_RATIO)
        return widest, widest * LIKELY / BAND
    # The finite-sample rank of split conformal prediction: one more than the errors, rounded up.
    band, likely = (
        off[min(math.ceil((len(off) + 1) * level), len(off)) - 1] for level in (BAND, LIKELY)
    )
    return min(band * widening, MAX_LOG_RATIO), min(likely * widening, MAX_LOG_RATIO)


def budget_exhaustion(forecast: SpendForecast, amount: int) -> BudgetExhaustion:
    """Return when the budget is spent: earliest by the high path, latest by the low one."""
    return BudgetExhaustion(
        *(_first_at(path, amount) for path in (forecast.high, forecast.middle, forecast.low))
    )


def _first_at(path: Sequence[int], amount: int) -> int | None:
    return next((day for day, value in enumerate(path) if value >= amount), None)

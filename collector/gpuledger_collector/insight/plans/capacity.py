"""Capacity of a pool for weeks to come: likely demand, capacity against wait by price, and how many GPUs to reserve.

Demand is forecast by the day, with the quantiles of `insight.forecast`, and spread over the hours as on the last days.
Every quantile stands for an equal part of what may come, so an expected cost is the mean over the quantiles. The low
and the high scenario follow one quantile on all days; reality changes from one to another, so totals are rarely so far
off. Estimates, never a bill: a rate that is not known leaves its cost unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.demand import COVERED
from gpuledger_collector.insight.forecast import forecast, quantile_loss
from gpuledger_collector.insight.recommendations.buying import LOST_HOURS, cost, newsvendor
from gpuledger_collector.insight.scaling.simulation import unmet
from gpuledger_collector.insight.series import Floats, Series
from gpuledger_common.plurals import plural

QUANTILES = tuple(number / 20 for number in range(1, 20))
LOW, LIKELY, HIGH = (QUANTILES.index(quantile) for quantile in (0.1, 0.5, 0.9))
MIN_DAYS = 24
"""Fewer known days give no band."""
LEARNED_PART = 3
"""A band is learned as far ahead as a third of the known days; beyond, it widens with the square root of time."""
MIN_PERIODS = 3
"""Periods as long as the plan, one after the other, that a back-test needs."""
SHAPE_DAYS = 28
GROWTH_DAYS = (7, 30, 90)
WEEK = 7
MIN_WEEK_DAYS = 4
CURVE_SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Shares of the hours in which a capacity of the cost curve suffices."""
DAY_HOURS = 24


class TooFewDays(Exception):
    """The past is too short for a plan; the message is a sentence."""


@dataclass(frozen=True)
class Judgment:
    """A back-test over past periods as long as the plan.

    `covered` is the share of days inside the band, `skill` is 1 - loss / loss of persistence; both None: unjudged.
    """

    days: int
    periods: int
    covered: float | None = None
    skill: float | None = None

    def sentence(self) -> str:
        """What the back-test says, in words."""
        length = f"{plural(self.periods, 'period')} of {plural(self.days, 'day')}"
        if self.covered is None:
            return f"unjudged: the past allows a back-test of {length}, and {MIN_PERIODS} are needed"
        skill = "" if self.skill is None else f"; {abs(self.skill):.0%} {'better' if self.skill >= 0 else 'worse'}"
        skill += " than no change" if skill else ""
        return f"judged on {length}: {self.covered:.0%} of the days were in the band (80 % is right){skill}"


@dataclass(frozen=True)
class Outlook:
    """Demand of each day of a plan: `levels[d, k]` is quantile QUANTILES[k] of the mean GPUs of day d."""

    series: str
    start_ms: int
    levels: Floats
    judgment: Judgment

    def gpu_hours(self, quantile: int) -> float:
        """GPU-hours of the plan if every day has this quantile."""
        return float(self.levels[:, quantile].sum() * DAY_HOURS)


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
    return Series(hours.name, start_ms, DAY_MS, np.where(known.mean(axis=1) >= COVERED, means, np.nan))


def hour_shapes(hours: Series) -> Floats:
    """Return demand of the hours relative to the mean of their day, for the last known days (days, 24)."""
    _, table = _by_day(hours)
    means = daily_means(hours).values
    usable = np.flatnonzero(np.isfinite(means) & (means > 0))[-SHAPE_DAYS:]
    if not len(usable):
        return np.ones((1, DAY_HOURS))
    return np.asarray(np.nan_to_num(table[usable] / means[usable, None], nan=1.0))


def outlook(days: Series, start_ms: int, end_ms: int) -> Outlook:
    """Forecast the days from `start_ms` on that begin before `end_ms`; those that are known already are left out.

    Raises TooFewDays.
    """
    if days.known < MIN_DAYS:
        raise TooFewDays(
            f"{days.name!r} has {plural(days.known, 'known day')} of demand: a plan needs {MIN_DAYS} at least"
        )
    first_ms = days.end_ms + DAY_MS
    horizon = -((first_ms - end_ms) // DAY_MS)
    levels = _levels(days, horizon)
    skipped = max(0, (start_ms - first_ms) // DAY_MS)
    return Outlook(days.name, first_ms + skipped * DAY_MS, levels[skipped:], judge(days, horizon))


def _levels(days: Series, horizon: int, method: str = "analog") -> Floats:
    """Quantiles (horizon, Q) of the days after the last one."""
    reach = min(horizon, days.known // LEARNED_PART)
    (result,) = forecast([days], reach, QUANTILES, method)
    middle = result.values[-1, LIKELY]
    factor = np.sqrt(np.arange(reach + 1, horizon + 1) / reach)
    beyond = middle + factor[:, None] * (result.values[-1] - middle)[None, :]
    return np.concatenate([result.values, np.maximum(beyond, 0.0)])


def judge(days: Series, horizon: int) -> Judgment:
    """Back-test the band on the last periods of `horizon` days, each forecast from the days before it alone."""
    inside, losses, periods = [], [], 0
    for origin in range(len(days.values) - horizon, max(horizon, MIN_DAYS) - 1, -horizon):
        past, actual = days.until(origin), days.values[origin : origin + horizon]
        known = np.isfinite(actual)
        if past.known < MIN_DAYS or not known.any():
            continue
        periods += 1
        levels = _levels(past, horizon)
        inside += list((levels[known, LOW] - 1e-9 <= actual[known]) & (actual[known] <= levels[known, HIGH] + 1e-9))
        pairs = (levels, _levels(past, horizon, "persistence"))
        losses.append([quantile_loss(actual, values, np.asarray(QUANTILES)) for values in pairs])
    if periods < MIN_PERIODS:
        return Judgment(horizon, periods)
    own, naive = np.sum(losses, axis=0)
    return Judgment(horizon, periods, float(np.mean(inside)), float(1 - own / naive) if naive > 0 else None)


def week_mean(days: Series, ago: int = 0) -> float | None:
    """Return mean GPUs of the seven days that ended `ago` days before the last; None where most are unknown."""
    end = len(days.values) - ago
    week = days.values[max(0, end - WEEK) : max(0, end)]
    known = week[np.isfinite(week)]
    return float(known.mean()) if len(known) >= MIN_WEEK_DAYS else None


def growth(days: Series, span: int) -> float | None:
    """Return growth of the last week over the week that ended `span` days earlier, as a ratio of that one.

    None where either is unknown, or where the earlier week had no demand.
    """
    last, before = week_mean(days), week_mean(days, span)
    return None if last is None or not before else last / before - 1


@dataclass(frozen=True)
class Scenarios:
    """Hourly demand by scenario: `gpus[i, k]` on days at quantile QUANTILES[k]; a row stands for `weight` hours."""

    gpus: Floats
    weight: float

    @property
    def hours(self) -> float:
        """Hours of the plan."""
        return len(self.gpus) * self.weight

    def total(self, gpus: Floats) -> float:
        """GPU-hours over the plan of values by row and scenario: the mean over the scenarios."""
        return float(gpus.sum() * self.weight / gpus.shape[1])


def scenarios(plan: Outlook, shapes: Floats) -> Scenarios:
    """Spread the days of a plan over the hours, by each of the shapes."""
    gpus = plan.levels[:, None, :] * shapes.reshape(-1)[None, :, None]
    return Scenarios(gpus.reshape(-1, plan.levels.shape[1]), 1 / len(shapes))


@dataclass(frozen=True)
class Rates:
    """Money per GPU-hour by way of buying, None where not known, and interruptions of a spot GPU a day."""

    on_demand: float | None
    reserved: float | None
    spot: float | None
    interruptions: float

    @property
    def spot_effort(self) -> float:
        """Spot GPU-hours for an hour of work: each interruption repeats what was lost."""
        return 1 + self.interruptions / DAY_HOURS * LOST_HOURS


@dataclass(frozen=True)
class CapacityCost:
    """What so many GPUs at most cost over the plan, and how many GPU-hours of demand wait (expected, low and high)."""

    gpus: int
    wait: float
    wait_low: float
    wait_high: float
    wait_spot: float
    on_demand: float | None
    reserved: float | None
    spot: float | None


def cost_curve(demand: Scenarios, rates: Rates) -> list[CapacityCost]:
    """Return cost and wait of rising capacities.

    Reserved GPUs are paid in every hour. On demand and on spot GPUs follow demand up to the capacity.
    """
    capacities = sorted(
        {int(np.ceil(value)) for value in np.quantile(demand.gpus, CURVE_SHARES, method="higher") if value > 0}
    )
    return [capacity_cost(demand, rates, capacity) for capacity in capacities]


def capacity_cost(demand: Scenarios, rates: Rates, capacity: int) -> CapacityCost:
    """Return cost and wait of one capacity."""

    def wait(gpus: Floats, available: float = capacity) -> float:
        return demand.total(unmet(gpus, np.asarray(available)))

    def money(rate: float | None, gpu_hours: float) -> float | None:
        return None if rate is None else rate * gpu_hours

    effort = rates.spot_effort
    return CapacityCost(
        gpus=capacity,
        wait=wait(demand.gpus),
        wait_low=wait(demand.gpus[:, [LOW]]),
        wait_high=wait(demand.gpus[:, [HIGH]]),
        wait_spot=wait(demand.gpus, capacity / effort),
        on_demand=money(rates.on_demand, demand.total(np.minimum(demand.gpus, capacity))),
        reserved=money(rates.reserved, capacity * demand.hours),
        spot=money(rates.spot, demand.total(np.minimum(demand.gpus * effort, capacity))),
    )


@dataclass(frozen=True)
class Reservation:
    """The count of least expected cost, with the rest on demand, and what it loses if demand is low or high.

    `low` and `high` are the best counts for these scenarios; a regret is the cost of `gpus` above that of the best.
    """

    gpus: int
    low: int
    high: int
    break_even: float
    cost: float
    on_demand_cost: float
    regret_low: float
    regret_high: float


def reservation(demand: Scenarios, rates: Rates) -> Reservation | None:
    """Return how many GPUs to reserve for the plan: the last one is wanted in enough hours to pay for all of them.

    None without both rates, or where time on demand costs nothing.
    """
    if rates.on_demand is None or rates.reserved is None or rates.on_demand <= 0:
        return None
    break_even, on_demand = rates.reserved / rates.on_demand, rates.on_demand

    def money(gpus: Floats, count: int) -> float:
        columns = 1 if gpus.ndim == 1 else gpus.shape[1]
        return cost(gpus.ravel(), count, break_even) * demand.weight / columns * on_demand

    def best_and_regret(quantile: int) -> tuple[int, float]:
        path = demand.gpus[:, quantile]
        count = newsvendor(path, break_even)
        return count, max(0.0, money(path, best) - money(path, count))

    best = newsvendor(demand.gpus.ravel(), break_even)
    (low, regret_low), (high, regret_high) = best_and_regret(LOW), best_and_regret(HIGH)
    return Reservation(
        gpus=best,
        low=low,
        high=high,
        break_even=break_even,
        cost=money(demand.gpus, best),
        on_demand_cost=money(demand.gpus, 0),
        regret_low=regret_low,
        regret_high=regret_high,
    )


@dataclass(frozen=True)
class TeamOutlook:
    """A team in the pool: GPUs held in the last week, growth by GROWTH_DAYS, and what it will hold if that is known."""

    team: str
    gpus: float | None
    growth: tuple[float | None, ...]
    outlook: Outlook | None


def team_outlooks(teams: Sequence[Series], start_ms: int, end_ms: int) -> list[TeamOutlook]:
    """Outlooks of teams from their hours, largest first; a team with too short a past has its growth alone."""
    rows = []
    for hours in teams:
        days = daily_means(hours)
        try:
            plan = outlook(days, start_ms, end_ms) if len(days.values) else None
        except TooFewDays:
            plan = None
        rows.append(TeamOutlook(hours.name, week_mean(days), tuple(growth(days, span) for span in GROWTH_DAYS), plan))
    return sorted(rows, key=lambda row: (-(row.gpus or 0.0), row.team))


@dataclass(frozen=True)
class CapacityPlan:
    """What planners ask of a pool, over the days from now to the end of a period."""

    outlook: Outlook
    growth: tuple[float | None, ...]
    teams: Sequence[TeamOutlook]
    rates: Rates
    curve: Sequence[CapacityCost]
    reservation: Reservation | None


def plan_capacity(hours: Series, teams: Sequence[Series], start_ms: int, end_ms: int, rates: Rates) -> CapacityPlan:
    """Plan the capacity of a pool from its hourly demand. Raises TooFewDays."""
    days = daily_means(hours)
    pool = outlook(days, start_ms, end_ms)
    demand = scenarios(pool, hour_shapes(hours))
    return CapacityPlan(
        pool,
        tuple(growth(days, span) for span in GROWTH_DAYS),
        team_outlooks(teams, start_ms, end_ms),
        rates,
        cost_curve(demand, rates),
        reservation(demand, rates),
    )

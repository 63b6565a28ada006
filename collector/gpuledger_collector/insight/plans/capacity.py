"""Capacity of a pool for weeks to come: likely demand, capacity against wait by price, and how many
GPUs to reserve.

Demand is forecast by the day (daily_demand.py), and spread over the hours as on the last days. Every
quantile stands for an equal part of what may come, so an expected cost is the mean over the
quantiles. The low and the high scenario follow one quantile on all days; reality changes from one
to another, so that totals are rarely so far off. Estimates, never a bill: a rate that is not known
leaves its cost unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.plans.daily_demand import (
    DAY_HOURS,
    HIGH,
    LIKELY,
    LOW,
    MIN_DAYS,
    Backtest,
    DaysAhead,
    daily_means,
    days_ahead,
    hour_shapes,
)
from gpuledger_collector.insight.recommendations.buying import LOST_HOURS, cost, newsvendor
from gpuledger_collector.insight.scaling.simulation import unmet
from gpuledger_collector.insight.series import Floats, Series
from gpuledger_common.plurals import plural

SPANS = (7, 30, 90)
"""Days over which growth is told, behind and ahead."""
WEEK = 7
MIN_WEEK_DAYS = 4
CURVE_SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Shares of the hours in which a capacity of the cost curve suffices."""
ENOUGH = 0.9
"""Share of the hours in which there have to be enough GPUs: what is there beyond is headroom."""


class TooFewDays(Exception):
    """The past is too short for a plan; the message is a sentence."""


@dataclass(frozen=True)
class Band:
    """The quantiles 0.1, 0.5 and 0.9."""

    low: float
    likely: float
    high: float


def band(quantiles: Floats) -> Band:
    """Pick the band from a value for each of QUANTILES."""
    return Band(*(float(quantiles[at]) for at in (LOW, LIKELY, HIGH)))


@dataclass(frozen=True)
class Horizon:
    """Demand over `days` to come, and growth over as many days; None where the past is too short to
    know.

    `grown` compares the last week with the week that ended so many days earlier, `growth` the last
    week ahead with it.
    """

    days: int
    grown: float | None
    growth: Band | None = None
    gpu_hours: Band | None = None
    backtest: Backtest | None = None


@dataclass(frozen=True)
class Outlook:
    """A pool, or a team in it: mean GPUs of the last week, and demand over the plan and the days of
    SPANS.
    """

    name: str
    gpus: float | None
    plan: Horizon
    next: Sequence[Horizon]


def week_mean(days: Series, ago: int = 0) -> float | None:
    """Return mean GPUs of the seven days that ended `ago` days before the last; None where most are
    unknown.
    """
    end = len(days.values) - ago
    week = days.values[max(0, end - WEEK) : max(0, end)]
    known = week[np.isfinite(week)]
    return float(known.mean()) if len(known) >= MIN_WEEK_DAYS else None


def horizon(days: Series, reach: int, skipped: int = 0, ahead: DaysAhead | None = None) -> Horizon:
    """Return demand over the next `reach` days without the first `skipped`; `ahead`: where these
    are forecast already.
    """
    now, before = week_mean(days), week_mean(days, reach)
    grown = None if now is None or not before else now / before - 1
    if days.known_count < MIN_DAYS:
        return Horizon(reach - skipped, grown)
    ahead = ahead or days_ahead(days, reach)
    levels = ahead.in_sum[skipped:]
    return Horizon(
        days=len(levels),
        grown=grown,
        growth=band(levels[-WEEK:].mean(axis=0) / now - 1) if now else None,
        gpu_hours=band(levels.sum(axis=0) * DAY_HOURS),
        backtest=ahead.backtest,
    )


def count_days(days: Series, start_ms: int, end_ms: int) -> tuple[int, int]:
    """Count the days after the last one that begin before `end_ms`, and those of them that begin
    before `start_ms`.
    """
    first_ms = days.end_ms + DAY_MS
    return -((first_ms - end_ms) // DAY_MS), max(0, (start_ms - first_ms) // DAY_MS)


def outlook(days: Series, start_ms: int, end_ms: int, ahead: DaysAhead | None = None) -> Outlook:
    """Return the outlook of a pool or a team; with too short a past it has its past growth alone."""
    plan = horizon(days, *count_days(days, start_ms, end_ms), ahead)
    return Outlook(days.name, week_mean(days), plan, [horizon(days, span) for span in SPANS])


@dataclass(frozen=True)
class Scenarios:
    """Hourly demand by scenario: `gpus[i, k]` on days at quantile QUANTILES[k]; a row stands for
    `weight` hours.
    """

    gpus: Floats
    weight: float

    @property
    def hours(self) -> float:
        """Hours of the plan."""
        return len(self.gpus) * self.weight

    def total(self, gpus: Floats) -> float:
        """GPU-hours over the plan of values by row and scenario: the mean over the scenarios."""
        return float(gpus.sum() * self.weight / gpus.shape[1])


def scenarios(levels: Floats, shapes: Floats) -> Scenarios:
    """Spread days (days, Q) over the hours, by each of the shapes."""
    gpus = levels[:, None, :] * shapes.reshape(-1)[None, :, None]
    return Scenarios(gpus.reshape(-1, levels.shape[1]), 1 / len(shapes))


@dataclass(frozen=True)
class Rates:
    """Money per GPU-hour by way of buying, None where not known, and interruptions of a spot GPU a
    day.
    """

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
    """What so many GPUs at most cost over the plan, and how many GPU-hours of demand wait
    (expected, low and high).
    """

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

    Reserved GPUs are paid in every hour. On demand and on spot GPUs follow demand up to the
    capacity.
    """
    capacities = sorted(
        {
            int(np.ceil(value))
            for value in np.quantile(demand.gpus, CURVE_SHARES, method="higher")
            if value > 0
        }
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
    """The count of least expected cost, with the rest on demand, and what it loses if demand is low
    or high.

    `low` and `high` are the best counts for these scenarios; a regret is the cost of `gpus` above
    that of the best.
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
    """Return how many GPUs to reserve for the plan: the last one is wanted in enough hours to pay
    for all of them.

    None without both rates, or where time on demand costs nothing.
    """
    if rates.on_demand is None or rates.reserved is None or rates.on_demand <= 0:
        return None
    break_even, on_demand = rates.reserved / rates.on_demand, rates.on_demand

    def money(gpus: Floats, count: int) -> float:
        return on_demand * cost(gpus.ravel(), count, break_even) * demand.weight / len(gpus[0])

    best = newsvendor(demand.gpus.ravel(), break_even)
    paths = [demand.gpus[:, [quantile]] for quantile in (LOW, HIGH)]
    low, high = counts = [newsvendor(path.ravel(), break_even) for path in paths]
    regrets = [
        max(0.0, money(path, best) - money(path, own))
        for path, own in zip(paths, counts, strict=True)
    ]
    return Reservation(
        best, low, high, break_even, money(demand.gpus, best), money(demand.gpus, 0), *regrets
    )


@dataclass(frozen=True)
class CapacityPlan:
    """What planners ask of a pool, or of a model in it, over the days from `start_ms` on; `days`
    has the mean GPUs of each, `enough_gpus` is what suffices in the share ENOUGH of the hours.
    """

    start_ms: int
    days: Sequence[Band]
    enough_gpus: float
    pool: Outlook
    teams: Sequence[Outlook]
    rates: Rates
    curve: Sequence[CapacityCost]
    reservation: Reservation | None


def enough_days(hours: Series) -> Series:
    """Return mean demand by day. Raises TooFewDays."""
    days = daily_means(hours)
    if days.known_count < MIN_DAYS:
        raise TooFewDays(
            f"{days.name!r} has {plural(days.known_count, 'known day')} of demand: a plan needs"
            f" {MIN_DAYS} at least"
        )
    return days


def plan_capacity(
    hours: Series, teams: Sequence[Series], start_ms: int, end_ms: int, rates: Rates
) -> CapacityPlan:
    """Plan the capacity of a pool from its hourly demand, and that of its teams, largest first.

    Days that are known already are left out. Raises TooFewDays.
    """
    days = enough_days(hours)
    reach, skipped = count_days(days, start_ms, end_ms)
    ahead = days_ahead(days, reach)
    levels = ahead.levels[skipped:]
    demand = scenarios(levels, hour_shapes(hours))
    outlooks = [outlook(daily_means(team), start_ms, end_ms) for team in teams]
    return CapacityPlan(
        days.end_ms + (1 + skipped) * DAY_MS,
        [band(day) for day in levels],
        float(np.quantile(demand.gpus, ENOUGH)),
        outlook(days, start_ms, end_ms, ahead),
        sorted(outlooks, key=lambda team: (-(team.gpus or 0.0), team.name)),
        rates,
        cost_curve(demand, rates),
        reservation(demand, rates),
    )

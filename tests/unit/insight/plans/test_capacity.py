"""Capacity for a quarter: the band and its back-test, growth, capacity against wait, and how many
to reserve.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.plans.capacity import (
    Band,
    Horizon,
    Rates,
    Scenarios,
    TooFewDays,
    capacity_cost,
    cost_curve,
    horizon,
    outlook,
    plan_capacity,
    reservation,
    scenarios,
    week_mean,
)
from gpuledger_collector.insight.plans.daily_demand import (
    HIGH,
    LIKELY,
    LOW,
    MOST_WIDENING,
    QUANTILES,
    Backtest,
    Period,
    daily_means,
    day_levels,
    days_ahead,
    hour_shapes,
    judge,
    past_periods,
    widen,
    widening,
)
from gpuledger_collector.insight.recommendations.buying import cost, newsvendor
from gpuledger_collector.insight.series import Series

RATES = Rates(on_demand=2.0, reserved=1.2, spot=0.8, interruptions=1.0)


def hourly(days, seed=0, level=40.0, start_ms=0):
    """A series by the hour that wanders, with an afternoon peak."""
    rng = np.random.default_rng(seed)
    base = np.maximum(level + np.cumsum(rng.normal(0, 1, days)), 0.0)
    peak = 1 + 0.5 * (np.arange(24) >= 12)
    return Series("train", start_ms, HOUR_MS, (base[:, None] * peak).ravel())


def days_of(values, name="train"):
    return Series(name, 0, DAY_MS, np.asarray(values, float))


demands = st.lists(
    st.lists(st.floats(0, 50), min_size=len(QUANTILES), max_size=len(QUANTILES)).map(sorted),
    min_size=1,
    max_size=30,
).map(lambda rows: Scenarios(np.asarray(rows), 1.0))
rates = st.builds(Rates, st.floats(0.01, 9), st.floats(0, 9), st.floats(0, 9), st.floats(0, 20))


def test_a_day_is_known_by_nine_tenths_of_its_hours():
    """Two unknown hours leave the mean of the others, three leave nothing; half days at both ends
    do not count.
    """
    values = np.full(6 + 72 + 5, 8.0)
    values[6:8] = values[30:33] = np.nan
    days = daily_means(Series("train", DAY_MS - 6 * HOUR_MS, HOUR_MS, values))
    assert (days.start_ms, days.step_ms) == (DAY_MS, DAY_MS)
    np.testing.assert_array_equal(days.values, [8.0, np.nan, 8.0])


def test_hours_keep_the_shape_of_their_days():
    """An afternoon peak stays one, days without demand have no shape, and the mean of a shape is
    one.
    """
    hours = hourly(5)
    shapes = hour_shapes(hours)
    np.testing.assert_allclose(shapes, np.tile((1 + 0.5 * (np.arange(24) >= 12)) / 1.25, (5, 1)))
    np.testing.assert_array_equal(
        hour_shapes(Series("train", 0, HOUR_MS, np.zeros(48))), np.ones((1, 24))
    )


def test_a_constant_past_gives_a_constant_plan():
    """Every quantile of every day is the level that was always held, as far ahead as it is asked."""
    days = days_of(np.full(60, 12.0))
    np.testing.assert_allclose(day_levels(days, 38), np.full((38, len(QUANTILES)), 12.0))
    ahead = horizon(days, 38)
    hours = pytest.approx(12 * 24 * 38)
    assert (ahead.gpu_hours, ahead.growth) == (Band(hours, hours, hours), Band(0, 0, 0))


def test_a_later_period_is_cut_from_the_same_forecast():
    """Days before the period are forecast and not counted; the day that the period ends in belongs
    to it.
    """
    pool = hourly(60)
    whole = plan_capacity(pool, [], 0, 80 * DAY_MS, RATES)
    later = plan_capacity(pool, [], 70 * DAY_MS, 79 * DAY_MS + HOUR_MS, RATES)
    assert (whole.start_ms, len(whole.days), later.start_ms) == (60 * DAY_MS, 20, 70 * DAY_MS)
    assert later.days == whole.days[10:]
    assert (later.pool.plan.days, later.pool.plan.backtest.days) == (10, 20)
    assert later.pool.plan.gpu_hours.likely == pytest.approx(
        sum(day.likely for day in later.days) * 24
    )


def test_the_band_widens_beyond_what_was_learned():
    """Beyond a third of the past each day's band is wider than the one before, never narrower than
    what was learned.
    """
    levels = day_levels(daily_means(hourly(30)), 30)
    width = levels[:, HIGH] - levels[:, LOW]
    assert (np.diff(width[9:]) > 0).all()
    assert (np.diff(levels, axis=1) >= 0).all()
    assert (levels >= 0).all()


def period_of(actual, low=8.0, likely=10.0, high=14.0, days=5):
    """A past period that was forecast with this band on each day, and what came."""
    levels = np.interp(QUANTILES, [0.1, 0.5, 0.9], [low, likely, high])
    levels = np.tile(levels, (days, 1))
    return Period(levels, levels, np.asarray(actual, float))


def test_a_band_that_missed_is_widened_and_one_that_held_by_far_is_narrowed():
    """By what four of five days needed: above the likely value in units of its upper half, below in
    those of the lower one; unknown days say nothing, and one period counts a third.
    """
    missed = period_of([18.0, 18.0, 18.0, np.nan, 18.0])
    np.testing.assert_allclose(missed.needed(), np.full(4, 2.0))
    np.testing.assert_allclose(missed.needed_in_sum(), [2.0])
    held = period_of([9.0, 9.0, 11.0, 11.0, 12.0])
    np.testing.assert_allclose(held.needed(), [0.5, 0.5, 0.25, 0.25, 0.5])
    # 52 where 50 were likely: a tenth of the 20 up to the high sum.
    np.testing.assert_allclose(held.needed_in_sum(), [0.1])
    assert widening([missed.needed()]) == pytest.approx(2 ** (1 / 3))
    assert widening([held.needed()] * 2) == pytest.approx(0.5 ** (2 / 4))
    assert widening([]) == 1.0


def test_one_period_widens_by_a_limited_factor():
    """Also a band without any width, which no factor makes right."""
    flat = period_of([60.0] * 5, 10.0, 10.0, 10.0)
    assert widening([flat.needed()] * 4) == pytest.approx(MOST_WIDENING ** (4 / 6))
    calm = period_of([10.0] * 5)
    assert widening([calm.needed()] * 4) == pytest.approx(MOST_WIDENING ** (-4 / 6))


def test_widening_leaves_the_likely_value_and_stays_above_zero():
    levels = period_of([]).levels
    wider = widen(levels, 6.0)
    np.testing.assert_array_equal(wider[:, LIKELY], levels[:, LIKELY])
    assert (wider[:, LOW], wider[:, HIGH]) == (
        pytest.approx(np.zeros(5)),
        pytest.approx(np.full(5, 34.0)),
    )
    assert (np.diff(wider, axis=1) >= 0).all()


def test_a_period_is_judged_by_the_width_that_earlier_ones_asked_for():
    """The first with its own band alone; a later one never helps an earlier one."""
    needed = [18.0, 18.0, 18.0, 18.0, 18.0]
    assert judge([period_of(needed)] * 3, 5).covered == 0.0
    near = [15.0] * 5
    # Needed 1.25 x: after one period 1.08, after two 1.12, after seven 1.19.
    assert judge([period_of(near)] * 8, 5).covered == 0.0
    late = [*[period_of(needed)] * 3, period_of(near)]
    assert judge(late, 5).covered == pytest.approx(1 / 4)
    assert judge(late[::-1], 5).covered == 0.0


def test_the_sum_over_days_has_a_width_of_its_own():
    """Days that are off in turns make a sum that is not: its band is narrower than that of a path
    of high days, and widens no day.
    """
    rng = np.random.default_rng(5)
    ahead = days_ahead(days_of(40 + rng.normal(0, 5, 200)), 7)
    total, path = (levels.sum(axis=0) for levels in (ahead.in_sum, ahead.levels))
    assert total[HIGH] - total[LOW] < 0.8 * (path[HIGH] - path[LOW])


def test_too_short_a_past_is_one_sentence():
    """A pool has no plan; a team has the growth that is known."""
    short = hourly(23)
    with pytest.raises(
        TooFewDays, match="'train' has 23 known days of demand: a plan needs 24 at least"
    ):
        plan_capacity(short, [], 23 * DAY_MS, 50 * DAY_MS, RATES)
    team = outlook(daily_means(short), 23 * DAY_MS, 50 * DAY_MS)
    assert team.next[0] == Horizon(7, team.next[0].grown)
    assert team.next[0].grown is not None
    assert team.plan == Horizon(27, None)


def test_a_band_is_judged_on_three_periods_of_its_length_and_else_called_unjudged():
    """Each period is forecast from the days before it; a band that is always right says so, a short
    past says why.
    """
    constant = days_of(np.full(160, 5.0))
    assert days_ahead(constant, 40).backtest == Backtest(40, 3, 1.0, None)
    short = days_ahead(constant.known_before(159), 40).backtest
    assert short == Backtest(40, 2)
    assert (
        short.sentence()
        == "unjudged: the past allows a back-test of 2 periods of 40 days, and 3 are needed"
    )
    step = days_of(np.concatenate([np.full(120, 5.0), np.full(40, 50.0)]))
    judged = days_ahead(step, 40).backtest
    assert judged.covered == pytest.approx(2 / 3)
    assert "67 % of the days" in judged.sentence() or "67% of the days" in judged.sentence()


def test_unknown_days_are_not_judged():
    """A period without a known day is no period."""
    values = np.full(160, 5.0)
    values[120:] = np.nan
    assert len(past_periods(days_of(values), 40)) == 2


def test_of_a_long_past_the_last_periods_are_judged():
    """Twelve at most: what a pool was years ago says little, and nobody waits for it."""
    assert len(past_periods(days_of(np.full(400, 5.0)), 7)) == 12


def test_growth_compares_weeks_and_unknown_is_never_zero():
    """A past that is too short, an unknown week and a week without demand give no growth."""
    days = days_of(np.concatenate([np.full(90, 10.0), np.full(7, 15.0)]))
    assert [horizon(days, span).grown for span in (7, 30, 90)] == pytest.approx([0.5, 0.5, 0.5])
    assert horizon(days.known_before(96), 90).grown == pytest.approx(0.428571, abs=1e-5)
    assert horizon(days.known_before(92), 90).grown is None
    assert horizon(days_of([0.0] * 7 + [3.0] * 7), 7).grown is None
    assert horizon(days_of([3.0] * 40 + [0.0] * 7), 7).growth is None
    gap = days.values.copy()
    gap[-5:-1] = np.nan
    assert week_mean(days_of(gap)) is None
    assert horizon(days_of(gap), 7).growth is None


def test_growth_ahead_is_that_of_the_last_week_ahead():
    """Over the last week known, with the band of that week, and judged like the forecast that it is
    of.
    """
    days = daily_means(hourly(200))
    levels = days_ahead(days, 30).in_sum
    ahead = horizon(days, 30)
    assert ahead.growth.low == pytest.approx(levels[-7:, LOW].mean() / week_mean(days) - 1)
    assert ahead.growth.low < ahead.growth.likely < ahead.growth.high
    assert ahead.backtest == days_ahead(days, 30).backtest


@given(demands, rates, st.integers(0, 60))
def test_more_capacity_waits_less_and_costs_no_less(demand, rates, gpus):
    """And nothing waits at the peak; the expected wait lies between nothing and all demand."""
    less, more = (capacity_cost(demand, rates, count) for count in (gpus, gpus + 1))
    for name in ("wait", "wait_low", "wait_high", "wait_spot"):
        assert getattr(more, name) <= getattr(less, name) + 1e-9
    for name in ("on_demand", "reserved", "spot"):
        assert getattr(more, name) >= getattr(less, name) - 1e-9
    assert less.wait_spot >= less.wait - 1e-9
    assert less.wait_low <= less.wait_high + 1e-9
    assert capacity_cost(demand, rates, 51).wait == 0


@given(demands, rates)
def test_demand_is_served_or_waits(demand, rates):
    """Capacity that follows demand serves what does not wait; without interruptions spot serves the
    same.
    """
    calm = Rates(1.0, rates.reserved, 1.0, 0.0)
    for point in cost_curve(demand, calm):
        assert point.on_demand + point.wait == pytest.approx(demand.total(demand.gpus))
        assert point.spot == pytest.approx(point.on_demand)
        assert point.wait_spot == pytest.approx(point.wait)


@given(demands, rates)
def test_no_count_costs_less_than_the_one_to_reserve(demand, rates):
    """In expectation; its regret is that of the low and of the high scenario, and never negative."""
    advice = reservation(demand, rates)
    every = [
        cost(demand.gpus.ravel(), count, advice.break_even) / len(QUANTILES) * rates.on_demand
        for count in range(52)
    ]
    assert advice.cost == pytest.approx(min(every), abs=1e-6)
    assert advice.on_demand_cost == pytest.approx(every[0])
    assert min(advice.regret_low, advice.regret_high) >= 0
    assert advice.low <= advice.high
    if rates.reserved >= rates.on_demand:
        assert advice.gpus == 0


@given(demands, st.floats(0.001, 1))
def test_reserving_more_than_is_ever_wanted_never_costs_less(demand, break_even):
    gpus = demand.gpus.ravel()
    peak = int(np.ceil(gpus.max()))
    costs = [cost(gpus, count, break_even) for count in range(peak, peak + 5)]
    assert all(later > earlier for earlier, later in pairwise(costs))
    assert newsvendor(gpus, break_even) <= peak


def test_an_unknown_rate_leaves_its_cost_unknown():
    """Not zero: neither in the curve, nor in what to reserve."""
    demand = scenarios(np.full((3, len(QUANTILES)), 4.0), np.ones((1, 24)))
    (point,) = cost_curve(demand, Rates(None, 1.2, None, 1.0))
    assert (point.on_demand, point.spot, point.reserved) == (
        None,
        None,
        pytest.approx(4 * 72 * 1.2),
    )
    assert reservation(demand, Rates(None, 1.2, None, 1.0)) is None
    assert reservation(demand, Rates(2.0, None, None, 1.0)) is None


def test_a_plan_of_a_steady_pool_reserves_its_base():
    """GPUs that are always wanted are reserved; those of the afternoon are not, when half the time
    does not pay.
    """
    base = np.where(np.arange(24) >= 12, 24.0, 16.0)
    pool = Series("train", 0, HOUR_MS, np.tile(base, 60))
    plan = plan_capacity(pool, [pool], 60 * DAY_MS, 98 * DAY_MS, RATES)
    advice = plan.reservation
    assert (advice.gpus, advice.low, advice.high, advice.regret_low, advice.regret_high) == (
        16,
        16,
        16,
        0,
        0,
    )
    assert advice.cost == pytest.approx(38 * 24 * 16 * 1.2 + 38 * 12 * 8 * 2.0)
    assert advice.on_demand_cost == pytest.approx(38 * 24 * 20 * 2.0)
    assert [point.gpus for point in plan.curve] == [16, 24]
    assert plan.curve[0].wait == pytest.approx(38 * 12 * 8)
    assert [ahead.grown for ahead in plan.teams[0].next] == [0.0, 0.0, None]
    assert plan.teams[0] == plan.pool

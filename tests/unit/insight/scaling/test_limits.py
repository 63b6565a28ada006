"""Limits of a pool, what its money pays for, what came of a decision, and the promise never to do
harm.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.insight.backtest import ScalingScenario, backtest_scaling
from gpuledger_collector.insight.pool_backtest import backtest_pool
from gpuledger_collector.insight.rates import GpuHourRate, money_micro
from gpuledger_collector.insight.scaling import ScalingLimits, advise
from gpuledger_collector.insight.scaling.advice import PastTarget
from gpuledger_collector.insight.scaling.choice import SelectionRules, daily_totals, select
from gpuledger_collector.insight.scaling.pools import (
    ACT,
    ADVICE,
    ScalingTerms,
    decide,
    inputs_hash,
    judge_decision,
)
from gpuledger_collector.insight.series import Series

STEP = 1_800_000
PER_DAY = 48
MINUTE = 60_000
FLAT = Series("new", 0, STEP, np.full(PER_DAY, 20.0))  # young: 22 GPUs are wanted
NOW = FLAT.end_ms
DOLLARS = GpuHourRate(Decimal("2.50"), "USD")


def desired(limits, *past, at=NOW):
    got = advise(FLAT, STEP, at, limits, past=past)
    assert got is not None
    return got.desired_gpus, got.reason


@pytest.mark.parametrize(
    ("limits", "past", "gpus", "said"),
    [
        (ScalingLimits(warm_gpus=8), (), 28, "the warm pool"),
        (ScalingLimits(headroom=0.5), (), 30, "the headroom"),
        (
            ScalingLimits(stabilization_ms=10 * MINUTE),
            (PastTarget(NOW - 90 * MINUTE, 40, 40),),
            40,
            "the stabilization window",
        ),
        (
            ScalingLimits(stabilization_ms=10 * MINUTE),
            (PastTarget(NOW - 90 * MINUTE, 40, 40), PastTarget(NOW - 9 * MINUTE, 40, 22)),
            40,
            "the stabilization window",
        ),
        (
            ScalingLimits(stabilization_ms=9 * MINUTE),
            (PastTarget(NOW - 90 * MINUTE, 40, 40), PastTarget(NOW - 9 * MINUTE, 40, 22)),
            22,
            "",
        ),
        (
            ScalingLimits(cooldown_ms=10 * MINUTE),
            (PastTarget(NOW - 9 * MINUTE, 40),),
            40,
            "the cool-down",
        ),
        (
            ScalingLimits(cooldown_ms=10 * MINUTE),
            (PastTarget(NOW - 11 * MINUTE, 40), PastTarget(NOW - MINUTE, 40)),
            22,
            "",
        ),
        (ScalingLimits(cooldown_ms=10 * MINUTE), (PastTarget(NOW - MINUTE, 21),), 22, ""),
        (
            ScalingLimits(step_down_gpus=4),
            (PastTarget(NOW - MINUTE, 40),),
            36,
            "the step limit down",
        ),
        (ScalingLimits(step_up_gpus=1), (PastTarget(NOW - MINUTE, 12),), 20, "the step limit up"),
        (ScalingLimits(money_gpus=12.5), (), 12, "the money limit"),
        (ScalingLimits(ceiling_gpus=12, node_gpus=8), (), 8, "the ceiling"),
        (ScalingLimits(ceiling_gpus=24, node_gpus=8), (), 24, ""),
    ],
)
def test_each_limit_decides_where_it_binds_and_is_named(limits, past, gpus, said):
    """The demand of now beats a step; ceiling and money beat everything, in whole nodes."""
    got, reason = desired(limits, *past)
    assert got == gpus
    assert (f"{said} of the pool decides" in reason) if said else ("decides" not in reason)


@examples(30)
@given(
    floor=st.integers(0, 30),
    room=st.integers(0, 60),
    node=st.sampled_from([1.0, 4.0, 8.0]),
    warm=st.integers(0, 40),
    before=st.lists(st.integers(0, 80), max_size=3),
    calm=st.integers(0, 60),
)
def test_a_decision_lies_within_floor_and_ceiling(floor, room, node, warm, before, calm):
    """Whatever the other limits and the past say: never above the ceiling, above the floor as far
    as nodes allow.
    """
    ceiling = floor + room
    limits = ScalingLimits(
        floor_gpus=floor,
        ceiling_gpus=ceiling,
        node_gpus=node,
        warm_gpus=warm,
        cooldown_ms=calm * MINUTE,
        stabilization_ms=calm * MINUTE,
    )
    past = [
        PastTarget(NOW - (len(before) - at) * 5 * MINUTE, gpus, gpus)
        for at, gpus in enumerate(before)
    ]
    got, _ = desired(limits, *past)
    assert got <= ceiling
    assert got >= min(floor, ceiling // node * node)


def test_money_buys_what_the_rate_says_and_a_missing_rate_stops_acting():
    """30 USD an hour at 2.50 are twelve GPUs; without a rate, or in another currency, nobody acts,
    and it is said.
    """
    terms = ScalingTerms("new", ScalingLimits(), STEP, ACT, Decimal(30), "USD", "hook")
    acting = decide(FLAT, terms, NOW, DOLLARS)
    assert acting is not None
    assert (acting.advice.desired_gpus, acting.mode, acting.webhook) == (12.0, ACT, "hook")
    for rate in (None, GpuHourRate(Decimal(2), "EUR")):
        doubtful = decide(FLAT, terms, NOW, rate)
        assert doubtful is not None
        assert (doubtful.mode, doubtful.webhook) == (ADVICE, "")
        assert "no single rate in USD" in doubtful.advice.reason


def test_only_a_change_of_target_is_told():
    """The same target again is no news; nor is a change of a pool that does not act."""
    terms = ScalingTerms("new", ScalingLimits(), STEP, ACT, webhook="hook")
    same = decide(FLAT, terms, NOW, past=[PastTarget(NOW - MINUTE, 22.0)])
    other = decide(FLAT, terms, NOW, past=[PastTarget(NOW - MINUTE, 23.0)])
    advice = decide(FLAT, replace(terms, mode=ADVICE), NOW, past=[PastTarget(NOW - MINUTE, 23.0)])
    assert [one.webhook for one in (same, other, advice) if one] == ["", "hook", ""]


def test_the_hash_names_what_was_looked_at():
    """One value more, other terms or another rate are other inputs; the same again is the same."""
    terms = ScalingTerms("new")
    longer = Series("new", 0, STEP, np.full(PER_DAY + 1, 20.0))
    made = [
        inputs_hash(FLAT, terms, None),
        inputs_hash(longer, terms, None),
        inputs_hash(FLAT, terms, DOLLARS),
        inputs_hash(FLAT, replace(terms, lead_ms=1), None),
    ]
    assert len(set(made)) == 4
    assert inputs_hash(FLAT, ScalingTerms("new"), None) == made[0]


@given(
    values=st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=1, max_size=20),
    start=st.integers(0, 20),
    length=st.integers(1, 40),
    gpus=st.integers(0, 50),
)
def test_what_came_adds_up(values, start, length, gpus):
    """Over the known time: demand + waste = desired + wait, in GPU-seconds, whatever is missing."""
    series = Series(
        "pool", 0, STEP, np.array([np.nan if one is None else one for one in values], float)
    )
    begin = start * STEP // 2
    came = judge_decision(series, begin, begin + length * STEP // 4, gpus, gpus)
    assert came.known_ms <= length * STEP // 4
    held = gpus * came.known_ms / 1000
    assert came.demand_gpu_s + came.waste_gpu_s == pytest.approx(held + came.wait_gpu_s)
    assert came.wait_gpu_s == came.reactive_wait_gpu_s


def test_money_of_gpu_seconds():
    """An hour of one GPU is its rate; without a rate there is no amount, not zero."""
    assert money_micro(3600, DOLLARS) == 2_500_000
    assert money_micro(3600, None) is None


def wild(seed, days=24):
    """A daily rhythm that is foreseeable, a level that wanders, and bursts that are not."""
    rng = np.random.default_rng(seed)
    at = np.arange(days * PER_DAY)
    rhythm = rng.uniform(0, 30) * (1 + np.sin(2 * np.pi * at / PER_DAY))
    level = 40 + np.cumsum(rng.normal(0, rng.uniform(0, 2), len(at)))
    bursts = np.convolve(rng.random(len(at)) < 0.02, np.ones(6), "same") * rng.integers(5, 40)
    return np.maximum(np.round(rhythm + level + bursts), 0)


@examples(5)
@given(seed=st.integers(0, 10_000), cap=st.sampled_from([1.1, 1.25]), delay=st.sampled_from([1, 2]))
def test_ours_spends_no_more_than_was_asked(seed, cap, delay):
    """On any demand ours costs at most the cap and a step of busy GPUs, and 2 % more than the tuned
    reactive setting.

    Where demand collapses, what was lent at first stays spent: seven days at 2 % of the history's
    level.
    """
    demand = wild(seed)
    done = backtest_scaling(Series("pool", 0, STEP, demand), ScalingScenario(delay * STEP, cap))
    found = {result.policy: result.outcome for result in done.results}
    ours, tuned = found["gpuledger"], found["reactive-tuned"]
    lent = 0.02 * 7 * 24 * demand[: 10 * PER_DAY].mean()
    assert ours.capacity <= cap * ours.demand + lent + demand.max() * STEP / 3_600_000
    assert ours.capacity <= 1.02 * tuned.capacity + lent


@pytest.mark.parametrize(
    ("level", "moves", "chosen"),
    [(9.5, 0, 1), (9.0, 0, 0), (11.0, 0, 0), (9.5, 1, 0)],
    ids=["waited less", "waited as much", "cost too much", "changed too often"],
)
def test_a_forecast_must_have_waited_less_within_the_budget(level, moves, chosen):
    """Equal wait, more than 2 % over the reference's cost, or more changes than a quarter over its:
    the reference.
    """
    days, steps = 8, 4
    demand = np.full(days * steps, 10.0)
    capacity = np.stack([np.full(len(demand), 9.4), np.full(len(demand), level)], axis=1)
    if level == 9.0:
        capacity[:, 0] = 9.0
    capacity[::2, 1] += 0.01 * moves
    totals = daily_totals(demand, capacity, np.ones(len(demand), dtype=bool), steps)
    assert select(totals, 0, np.array([False, True]), 2.0, SelectionRules()) == chosen


def test_a_month_is_the_last_28_days_in_money():
    """Of fifty days ten are history and 28 are judged; cost is capacity at the rate; no front
    setting beats another.
    """
    values = 20 + np.round(8 * np.sin(2 * np.pi * np.arange(50 * 24) / 24))
    made = backtest_pool(
        Series("pool", 0, 3_600_000, values), ScalingTerms("pool"), DOLLARS, with_front=True
    )
    assert made.facts()["judged_days"] == 28
    for policy in made.policies():
        assert policy.cost == pytest.approx(2.5 * policy.capacity, abs=0.01)
    spent, waited = zip(*made.front, strict=True)
    assert list(spent) == sorted(spent)
    assert list(waited) == sorted(waited, reverse=True)
    assert (
        backtest_pool(
            Series("pool", 0, 3_600_000, values[:100]), ScalingTerms("pool"), None
        ).backtest
        is None
    )

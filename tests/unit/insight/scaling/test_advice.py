"""Advice for a pool: never below what is wanted now, inside the limits, and silent when stale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.insight.scaling import ScalingLimits, advise
from gpuledger_collector.insight.scaling.choice import SelectionRules
from gpuledger_collector.insight.scaling.replay import CandidateReplay
from gpuledger_collector.insight.series import Series

STEP = 1_800_000
PER_DAY = 48


def pool(days=16, level=40, seed=0):
    at = np.arange(days * PER_DAY + 13)
    noise = np.random.default_rng(seed).normal(0, 1, len(at))
    return Series(
        "pool",
        0,
        STEP,
        np.maximum(np.round(level + 24 * np.sin(2 * np.pi * at / PER_DAY) + noise), 0),
    )


def test_advice_is_a_number_with_a_sentence():
    """A pool with history gets GPUs, nodes, the demand ahead in order, and one sentence."""
    series = pool()
    got = advise(series, STEP, series.end_ms, ScalingLimits(node_gpus=8))
    assert got is not None
    assert got.desired_gpus >= got.demand_now
    assert got.desired_gpus == got.desired_nodes * 8
    assert list(got.demand_ahead.values()) == sorted(got.demand_ahead.values())
    assert got.valid_until_ms == series.end_ms + STEP
    assert "GPUs" in got.reason


@examples(8)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 4 * PER_DAY))
def test_never_below_the_demand_of_now(seed, cut):
    """Whatever the history and however much of it, the advice covers what is wanted now."""
    series = pool(seed=seed)
    series = series.known_before(len(series.values) - cut)
    got = advise(series, STEP, series.end_ms)
    assert got is not None
    assert got.desired_gpus >= got.demand_now


def test_stale_demand_gives_no_number():
    """Older than three steps, or never known: no advice."""
    series = pool()
    assert advise(series, STEP, series.end_ms + 3 * STEP) is not None
    assert advise(series, STEP, series.end_ms + 3 * STEP + 1) is None
    assert advise(Series("new", 0, STEP, np.array([np.nan, np.nan])), STEP, STEP) is None


def test_a_young_pool_gets_plain_headroom_and_is_told_so():
    """With less than ten days nothing is chosen: a tenth more than now, and the sentence says why."""
    series = Series("new", 0, STEP, np.full(PER_DAY, 20.0))
    got = advise(series, STEP, series.end_ms)
    assert got is not None
    assert (got.mode, got.desired_gpus) == ("young", 22.0)
    assert "less than 10 days" in got.reason


@pytest.mark.parametrize(
    ("limits", "held", "gpus", "said"),
    [
        (ScalingLimits(floor_gpus=64), None, 64, "the floor"),
        (ScalingLimits(ceiling_gpus=10), None, 10, "the ceiling"),
        (ScalingLimits(step_down_gpus=4), 100, 96, "the step limit down"),
        (ScalingLimits(step_up_gpus=1), 20, 21, "the step limit up"),
    ],
)
def test_the_limits_of_the_pool_decide_and_are_named(limits, held, gpus, said):
    """A floor, a ceiling or a step limit that changed the wish is named in the sentence."""
    series = Series("new", 0, STEP, np.full(PER_DAY, 20.0))
    got = advise(series, STEP, series.end_ms, limits, held)
    assert got is not None
    assert got.desired_gpus == gpus
    assert said in got.reason


@pytest.mark.parametrize("now_gpus", [0.0, 30.0, 400.0])
def test_what_is_known_since_the_last_step_is_covered_too(now_gpus):
    """A queue that was read since counts as demand of now; less than the last step does not lower
    it.
    """
    series = pool()
    got = advise(series, STEP, series.end_ms, now_gpus=now_gpus)
    assert got is not None
    assert got.demand_now == max(series.values[-1], now_gpus)
    assert got.desired_gpus >= got.demand_now


def test_the_setting_stands_for_a_day():
    """Two steps of a day run the same setting, chosen by the days before it; the next day's may be
    another.
    """
    series = pool(seed=3)
    chosen = [
        advise(one, STEP, one.end_ms)
        for one in (series, series.known_before(len(series.values) - 5))
    ]
    assert chosen[0] is not None
    assert chosen[1] is not None
    assert chosen[0].setting == chosen[1].setting


@pytest.mark.parametrize("steps_today", [1, 13, PER_DAY])
def test_advice_is_the_last_step_of_a_replay(steps_today):
    """The same days, replayed at once, end with the capacity that is advised, ours and the tuned
    reactive one's.
    """
    series = pool(18, seed=4).known_before(17 * PER_DAY + steps_today)
    got = advise(series, 2 * STEP, series.end_ms, ScalingLimits(cost_cap=1.1))
    rules = SelectionRules()
    replay = CandidateReplay(
        series.values, np.isfinite(series.values), STEP, 2, 1.0, 1.1, tuned_days=17
    )
    chosen = replay.schedule(replay.predictive, rules)
    _, state = replay.run([chosen], rules)
    assert got is not None
    assert got.mode == "predictive"
    assert got.setting == replay.candidates.settings[chosen[-1]]
    assert got.wanted_gpus == pytest.approx(state.coming[0])
    assert got.reactive_gpus == pytest.approx(max(state.reference_coming, series.values[-1]))


@pytest.mark.parametrize(
    "limits", [ScalingLimits(cost_cap=1.1), ScalingLimits(cost_cap=1.1, predict=False)]
)
def test_where_nothing_is_to_be_won_the_advice_is_the_tuned_reactive_setting(limits):
    """Jumps that nothing announces, or prediction turned off: the tuned reactive setting's number,
    named as such.
    """
    rng = np.random.default_rng(5)
    values = np.repeat(rng.integers(10, 60, 18 * 8), PER_DAY // 8).astype(float)
    values = values if not limits.predict else np.full(len(values), 20.0)
    series = Series("pool", 0, STEP, values)
    got = advise(series, STEP, series.end_ms, limits)
    replay = CandidateReplay(
        values[: 17 * PER_DAY], np.ones(17 * PER_DAY, dtype=bool), STEP, 1, 1.0, 1.1, tuned_days=17
    )
    assert got is not None
    assert got.mode == "reactive"
    assert got.setting == replay.candidates.settings[replay.anchor]
    assert max(got.wanted_gpus, got.demand_now) == got.reactive_gpus
    assert "the tuned reactive setting" in got.reason

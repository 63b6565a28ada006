"""The benchmark of capacity never lets a family into the choice of the constants that it is scored
with.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench.scaling import (
    CHOICES,
    SHIPPED,
    Case,
    Score,
    choose,
    cut,
    every_setting,
    judge_left_out,
    scores,
)

from gpuledger_collector.insight.scaling.choice import SelectionRules
from gpuledger_collector.insight.scaling.policies import LOT_UNITS

SETTINGS = every_setting()
WAITED = Score(50.0, 100.0, 80.0, 110.0, 109.0, 100.0, 10.0, 10.0, 20, 20)


def preferring(family, window_days, gain=50.0):
    """A case where a setting waits the less, the nearer its window is to this one."""
    places = CHOICES["window_days"]
    far = [abs(places.index(each["window_days"]) - places.index(window_days)) for each in SETTINGS]
    return {
        Case(f"{family}/pool", 10, 1.1): [
            replace(WAITED, wait=50.0 + gain * each / 10) for each in far
        ]
    }


def test_a_planted_family_does_not_change_its_own_choice():
    """A family that wants another window by far moves the choice of the others, and not its own."""
    table = preferring("a", 7, 5.0) | preferring("b", 7, 5.0)
    planted = table | preferring("planted", 28)
    assert choose(SETTINGS, table, None)["window_days"] == 7
    assert choose(SETTINGS, planted, "planted")["window_days"] == 7
    assert choose(SETTINGS, planted, "a")["window_days"] == 28
    assert choose(SETTINGS, planted, None)["window_days"] == 28


def test_what_a_left_out_family_holds_is_not_read():
    """Not-a-number would spread through every mean that it enters, and harm would rule a setting
    out.
    """
    table = preferring("a", 7) | preferring("b", 14)
    bad = [replace(WAITED, wait=np.nan, capacity=999.0) for _ in SETTINGS]
    planted = table | {Case("planted/pool", 10, 1.1): bad}
    assert choose(SETTINGS, planted, "planted") == choose(SETTINGS, table, None)


def test_a_setting_that_harms_is_not_chosen():
    """However much it cuts, a setting that costs over 1.02 x the tuned one on a pool is passed
    over.
    """
    table = preferring("a", 7)
    (case,) = table
    table[case] = [
        replace(score, capacity=1.03 * score.tuned_capacity) if each["window_days"] == 7 else score
        for each, score in zip(SETTINGS, table[case], strict=True)
    ]
    assert choose(SETTINGS, table, None)["window_days"] != 7


def test_each_case_is_scored_by_the_constants_of_the_others():
    """The scores shown are those of the setting that was chosen without the case's family."""
    table = preferring("a", 7) | preferring("b", 14) | preferring("c", 28)
    results, chosen = judge_left_out(SETTINGS, table)
    for case, score in results.items():
        assert score == table[case][SETTINGS.index(chosen[case.family])]
    assert chosen["a"] != chosen["c"]


def test_what_ships_is_one_of_the_settings_and_the_code_has_it():
    """The constants that the report calls shipped are the defaults of the rules."""
    rules = SelectionRules()
    assert SHIPPED in SETTINGS
    assert {
        "window_days": rules.window_days,
        "lent_days": rules.lent_days,
        "least_lot": min(LOT_UNITS),
    } == SHIPPED


def test_a_score_compares_with_the_tuned_setting():
    """A pool that rises each morning waits less by a forecast, and settings that let it compete
    differ from none.
    """
    at = np.arange(14 * 288)
    demand = np.ceil(
        40 + 30 * np.sin(2 * np.pi * at / 288) + np.random.default_rng(1).normal(0, 1, len(at))
    )
    (ours,) = scores(demand, 10, 1.1, [SHIPPED])
    assert ours.wait < ours.tuned_wait
    assert ours.cut == pytest.approx(100 * (1 - ours.wait / ours.tuned_wait))
    assert ours.demand == pytest.approx(demand[2880:].sum() / 12)
    assert not ours.harmful
    assert replace(ours, wait=ours.tuned_wait + 0.01).harmful


def test_no_wait_on_either_side_is_no_cut():
    """Less than a tenth of a GPU-hour is none; waiting where the rival did not is a loss."""
    assert cut(0.05, 0.01) is None
    assert cut(5.0, 0.0) == -100.0
    assert replace(WAITED, wait=0.0, tuned_wait=0.0).cut == 0.0

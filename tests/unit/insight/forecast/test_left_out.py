"""The benchmark of forecasts never lets a family into the choice of the constants that it is scored
with.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from bench.forecast import (
    CHOICES,
    Case,
    Judge,
    choose,
    draw_settings,
    left_out,
    log_ratios,
    quantile_loss,
)

from gpuledger_collector.insight.forecast.analogs import Similarity
from gpuledger_collector.insight.series import Series

HOUR = 3_600_000
SETTINGS = draw_settings(60)


def preferring(place):
    """Ratios of one series that are the better, the nearer the width of the level is to a place of
    CHOICES.
    """
    return np.array(
        [[abs(CHOICES["level"].index(each.level) - place)] for each in SETTINGS], dtype=float
    )


def test_a_planted_family_does_not_change_its_own_choice():
    """A family that wants another width by far moves the choice of the others, and not its own."""
    ratios = {"a": preferring(0), "b": preferring(0), "planted": 10 * preferring(5)}
    assert choose(SETTINGS, ratios, "planted").level == CHOICES["level"][0]
    assert choose(SETTINGS, ratios, "a").level == CHOICES["level"][5]
    assert choose(SETTINGS, ratios, None).level == CHOICES["level"][5]


def test_what_a_left_out_family_holds_is_not_read():
    """Not-a-number would spread through every mean that it enters."""
    ratios = {"a": preferring(0), "b": preferring(2), "planted": preferring(5)}
    poisoned = ratios | {"planted": np.full((len(SETTINGS), 1), np.nan)}
    assert choose(SETTINGS, poisoned, "planted") == choose(SETTINGS, ratios, "planted")


def cases_of(seeds):
    """Two origins of one series for each family, from a seed."""
    out = []
    for family, seed in seeds.items():
        rng = np.random.default_rng(seed)
        values = np.maximum(
            40 + np.cumsum(rng.integers(-6, 7, 400) * (rng.random(400) < 0.3)), 0
        ).astype(float)
        out += [
            Case(f"{family}/s", Series("s", 0, HOUR, values[:cut]), values[cut : cut + 6])
            for cut in (350, 380)
        ]
    return out


def run_loop(seeds):
    cases = cases_of(seeds)
    judge = Judge(cases, None)
    reference = np.array(
        [quantile_loss(case.actual, np.full((6, 3), case.past.values[-1])) for case in cases]
    )
    ratios = log_ratios(cases, judge.of_settings(SETTINGS)[:, :, 0], reference)
    rows, chosen = left_out(judge, SETTINGS, ratios)
    return judge, rows, chosen


def test_the_loop_scores_each_family_by_constants_of_the_others():
    """Other data of a family changes what the others get and leaves its own constants; each is
    scored with its own.
    """
    judge, rows, chosen = run_loop({"a": 1, "b": 2, "c": 3})
    _, _, other = run_loop({"a": 1, "b": 2, "c": 9})
    assert other["c"] == chosen["c"]
    assert other["a"] != chosen["a"] or other["b"] != chosen["b"]
    for place, case in enumerate(judge.cases):
        np.testing.assert_array_equal(
            rows[place], judge.of_settings([chosen[case.family]])[0, place]
        )


def test_every_choice_is_one_of_the_declared():
    """A median of declared values is a declared value, and the draw is the same in every run."""
    _, _, chosen = run_loop({"a": 1, "b": 2, "c": 3})
    for similarity in chosen.values():
        constants = asdict(similarity)
        # Judged a day ahead, where nothing is widened.
        assert constants.pop("widening") == Similarity().widening
        assert all(value in CHOICES[name] for name, value in constants.items())
    assert draw_settings(60) == SETTINGS


def test_losses_are_summed_before_series_are_compared():
    """A series weighs once, however many origins it has, and an origin where nothing moved does not
    decide.
    """
    cases = cases_of({"a": 1, "b": 2})
    losses = np.array([[0.0, 4.0, 1.0, 1.0]])
    ratios = log_ratios(cases, losses, np.array([2.0, 2.0, 2.0, 2.0]))
    assert np.exp(ratios["a"][0, 0]) == pytest.approx(1.0)
    assert np.exp(ratios["b"][0, 0]) == pytest.approx(0.5)

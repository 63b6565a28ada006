"""Forecasts keep their laws whatever the series, and see nothing after its end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.insight.forecast import forecast, methods, quantile_loss
from gpuledger_collector.insight.forecast.analogs import (
    PERSISTENCE,
    Analogs,
    Similarity,
    distances,
    history_of,
    rhythm_of,
    similarity_weights,
)
from gpuledger_collector.insight.series import Series, series_of

HOUR = 3_600_000


def hourly(values, name="pool", start=0):
    return Series(name, start, HOUR, np.asarray(values, dtype=float))


def steps(seed, count=300, level=40):
    rng = np.random.default_rng(seed)
    moves = rng.integers(-6, 7, count) * (rng.random(count) < 0.3)
    return np.maximum(level + np.cumsum(moves), 0).astype(float)


plausible = st.lists(
    st.one_of(st.integers(0, 400).map(float), st.just(float("nan"))), min_size=1, max_size=160
)


@examples(20)
@given(values=plausible, horizon=st.integers(1, 30))
def test_quantiles_are_ordered_and_never_below_zero(values, horizon):
    """Any known history gives finite quantiles in order, none below zero, at the instants after the
    series' end.
    """
    series = hourly(values, start=7 * HOUR)
    if not series.known_count:
        with pytest.raises(ValueError, match="no known value"):
            forecast([series], horizon)
        return
    made = forecast([series], horizon)[0]
    assert np.isfinite(made.values).all()
    assert np.isfinite(made.mean).all()
    assert (np.diff(made.values, axis=1) >= 0).all()
    assert (made.values >= 0).all()
    assert (made.mean >= 0).all()
    assert made.at_ms.tolist() == [series.end_ms + HOUR * k for k in range(1, horizon + 1)]


@examples(10)
@given(seed=st.integers(0, 10_000))
def test_the_past_of_a_forecast_does_not_change_with_the_future(seed):
    """Appending values and cutting them off again gives the same forecast: nothing after the end is
    looked at.
    """
    values = steps(seed)
    whole = hourly(values)
    assert np.array_equal(
        forecast([whole.known_before(200)], 12)[0].values,
        forecast([hourly(values[:200].copy())], 12)[0].values,
    )


def test_an_earlier_origin_uses_only_what_was_known_then():
    """The answer at an earlier instant is the same with the later values replaced."""
    values = steps(3)
    changed = values.copy()
    changed[200:] = 7.0
    answers = [
        Analogs(history_of(source, 0, HOUR).first_steps(200), np.arange(1, 13)).predict(
            Similarity(), np.array([0.1, 0.9])
        )[0]
        for source in (values, changed)
    ]
    assert np.array_equal(*answers)


def test_persistence_gives_the_empirical_quantiles_of_past_changes():
    """The method that finds every instant alike is the plain distribution of changes over that many
    steps.
    """
    values = np.arange(101, dtype=float) ** 1.5
    levels, mean = Analogs(history_of(values, 0, HOUR), np.array([3])).predict(
        PERSISTENCE, np.array([0.5])
    )
    expected = values[3:] - values[:-3]
    assert levels[0, 0] == pytest.approx(values[-1] + np.median(expected), rel=1e-6)
    assert mean[0] == pytest.approx(values[-1] + expected.mean())


def weights_of(values, similarity):
    history = history_of(np.asarray(values, dtype=float), 0, HOUR)
    return similarity_weights(distances(history), history.known, similarity)


ONLY_LEVEL = Similarity(0.15, None, None, None, None, None, 0.0, 1)


def test_the_same_level_weighs_more_than_another():
    """Of two levels visited equally often, the present one has nearly all the weight, and the other
    one still some.
    """
    values = np.tile([10.0] * 12 + [50.0] * 12, 20)
    weight = weights_of(values, ONLY_LEVEL)
    other = weight[values == 10].sum()
    assert 0.01 < other < 0.1


def test_a_level_of_one_day_counts_less_than_one_of_many():
    """A level that was reached a few hours ago is no evidence; one that comes back every day is."""
    guarded = Similarity(0.15, None, None, None, None, None, 5.0, 1)
    daily = np.tile([10.0] * 12 + [50.0] * 12, 20)
    moved = np.concatenate([np.tile([10.0, 12.0] * 12, 19), np.full(24, 50.0)])
    for values, low, high in ((daily, 0.9, 1.0), (moved, 0.0, 0.1)):
        present = weights_of(values, guarded)[values == 50].sum()
        assert low < present <= high
    assert weights_of(moved, ONLY_LEVEL)[moved == 50].sum() > 0.3


def test_each_distance_prefers_what_resembles_now():
    """Age of the plateau, hour, movement, departure and memory each put more weight on the more
    similar instant.
    """
    nothing = PERSISTENCE.__dict__
    wave = 50 + 30 * np.sin(2 * np.pi * np.arange(24 * 20) / 24)
    now = len(wave) - 1
    for name, width, like, unlike in (
        ("hour", 3.0, now - 24, now - 12),
        ("movement", 0.4, now - 24, now - 12),
        ("departure", 0.5, now - 24, now - 6),
        ("memory_days", 7.0, now - 1, now - 200),
    ):
        weight = weights_of(wave, Similarity(**{**nothing, name: width}))
        assert weight[like] > 1.5 * weight[unlike], name
    stairs = np.repeat([1.0, 2.0, 3.0, 4.0], 50)
    weight = weights_of(stairs, Similarity(**{**nothing, "age": 0.7}))
    assert weight[149] > 2 * weight[151]


def test_what_is_far_ahead_of_a_short_past_is_no_zero():
    """Leads beyond the longest past change get the last band that there is, never the level 0."""
    made = forecast([hourly(np.full(100, 8.0) + np.arange(100) % 2)], 168)[0]
    assert made.note is None
    assert (made.values >= 7).all()


def test_values_with_gaps_between_all_of_them_still_have_a_forecast():
    """Where every other hour is unknown, odd leads have no change of their own and lie between
    their neighbors.
    """
    values = np.where(np.arange(200) % 2, np.nan, 40.0 + np.arange(200) % 3)
    made = forecast([hourly(values)], 6)[0]
    assert np.isfinite(made.values).all()
    assert (made.values > 30).all()


def test_a_forecast_does_not_depend_on_its_neighbors():
    """A series has the same forecast alone, among others, and asked again."""
    series = [hourly(steps(seed), f"s{seed}") for seed in range(4)]
    together = forecast(series, 24)
    assert np.array_equal(together[2].values, forecast([series[2]], 24)[0].values)
    assert np.array_equal(together[2].values, forecast(series, 24)[2].values)


@pytest.mark.parametrize("method", [*methods.OWN, pytest.param("boosted", marks=pytest.mark.slow)])
def test_every_method_gives_ordered_quantiles(method):
    """Each method by its name gives finite quantiles in order; persistence is its own baseline."""
    made = forecast([hourly(steps(1))], 12, method=method)[0]
    assert np.isfinite(made.values).all()
    assert (np.diff(made.values, axis=1) >= 0).all()
    assert made.weights == {method: 1.0}
    assert (method == "persistence") == np.array_equal(made.values, made.naive)


def test_boosted_trees_learn_a_daily_shape():
    """The method that uses scikit-learn beats persistence where tomorrow is like today, and knows
    no gap as zero.
    """
    values = 50 + 20 * np.sin(np.arange(24 * 14) * 2 * np.pi / 24)
    values[100:110] = np.nan
    made = forecast([hourly(values)], 24, method="boosted")[0]
    assert made.skill is not None
    assert made.skill > 0.5


@pytest.mark.slow
def test_boosted_trees_need_no_week_of_history():
    """In five days the value of a week ago is unknown at every instant; the other features remain."""
    values = 50 + 20 * np.sin(np.arange(24 * 5) * 2 * np.pi / 24)
    assert np.isfinite(forecast([hourly(values)], 24, method="boosted")[0].values).all()


class Told:
    """An installed method: a function in the place of an entry point."""

    def __init__(self, name, function):
        self.name, self.value, self.function = name, f"package:{name}", function

    def load(self):
        if isinstance(self.function, Exception):
            raise self.function
        return self.function


@pytest.fixture
def installed(monkeypatch):
    """Installs a method of another package."""
    monkeypatch.setattr(methods, "_installed_methods", lambda: {told.name: told for told in known})
    methods.load.cache_clear()
    known = []
    yield lambda name, function: known.append(Told(name, function))
    methods.load.cache_clear()


def test_an_added_method_is_used_and_weighed_by_its_past(installed):
    """A method that knows the future of a ramp takes nearly all of the weight; a bad one nearly
    none.
    """

    def ramp(values, step_ms, leads, quantiles):
        assert (step_ms, np.isnan(values).sum()) == (HOUR, 0)
        return values[-1] + leads[:, None] * 0.5 + (quantiles - 0.5)

    installed("ramp", ramp)
    installed(
        "zero", lambda values, step_ms, leads, quantiles: np.zeros((len(leads), len(quantiles)))
    )
    series = [hourly(np.arange(400) * 0.5)]
    alone = forecast(series, 12, method="ramp")[0]
    assert alone.values[:, 1] == pytest.approx(199.5 + 0.5 * np.arange(1, 13))
    both = forecast(series, 12, method="ramp,zero,analog")[0]
    assert sum(both.weights.values()) == pytest.approx(1)
    assert both.weights["zero"] < 0.01
    assert both.weights["ramp"] > 0.1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (ImportError("no torch"), "cannot be loaded: no torch"),
        (lambda values, step_ms, leads, quantiles: 1 / 0, "failed: division by zero"),
        (lambda values, step_ms, leads, quantiles: np.zeros(3), "gave (3,) values"),
        (
            lambda values, step_ms, leads, quantiles: np.full((len(leads), len(quantiles)), np.nan),
            "or unknown ones",
        ),
    ],
)
def test_a_method_that_fails_is_named(installed, function, words):
    """Whatever another package does ends in a sentence that names it."""
    installed("theirs", function)
    with pytest.raises(methods.ForecasterFailed) as failed:
        forecast([hourly(steps(1))], 12, method="theirs")
    assert "method 'theirs' (package:theirs)" in str(failed.value)
    assert words in str(failed.value)


def test_an_unknown_method_is_refused():
    """There is no method of that name."""
    with pytest.raises(KeyError):
        forecast([hourly(steps(1))], 12, method="oracle")


def test_a_daily_rhythm_is_followed():
    """On a clean daily shape the median follows the shape, and the forecast beats its naive twin by
    far.
    """
    hours = np.arange(24 * 21)
    values = (
        50 + 30 * np.sin(2 * np.pi * hours / 24) + np.random.default_rng(0).normal(0, 1, len(hours))
    )
    made = forecast([hourly(values[:-24])], 24)[0]
    assert np.abs(made.values[:, 1] - values[-24:]).mean() < 3
    assert made.skill is not None
    assert made.skill > 0.5


def test_a_weekly_rhythm_with_a_gap_is_followed():
    """Five busy days and two calm ones: the weekend is forecast as one, also where last week has a
    hole.
    """
    hours = np.arange(24 * 36)
    busy = (hours // 24) % 7 < 5
    values = (
        20
        + busy * (40 + 30 * np.sin(2 * np.pi * hours / 24))
        + np.random.default_rng(0).normal(0, 1, len(hours))
    )
    cut = 24 * 33
    known = values[:cut].copy()
    known[cut - 24 * 7 : cut - 24 * 7 + 6] = np.nan
    made = forecast([hourly(known)], 24 * 3)[0]
    assert np.abs(made.values[:, 1] - values[cut:]).mean() < 3
    assert (made.naive != made.values).any()


def test_a_rhythm_needs_three_repetitions():
    """Two days are no rhythm yet, whatever they look like; a random walk has none."""
    shape = 50 + 30 * np.sin(2 * np.pi * np.arange(24 * 3) / 24)
    assert not rhythm_of(history_of(shape[:60], 0, HOUR)).is_clear
    assert rhythm_of(history_of(shape, 0, HOUR)).is_clear
    assert rhythm_of(history_of(steps(5), 0, HOUR)).ratio > 1


def test_a_plateau_is_forecast_as_a_plateau():
    """A series that never moved is forecast without a band."""
    made = forecast([hourly(np.full(200, 8.0))], 24)[0]
    assert np.allclose(made.values, 8.0)


def test_bands_hold_what_they_promise_on_random_walks():
    """Over many random walks about nine tenths of what came lay under the 0.9 quantile."""
    walks = [steps(seed, 260) + 200 for seed in range(60)]
    made = forecast([hourly(walk[:-24], f"s{i}") for i, walk in enumerate(walks)], 24)
    covered = np.mean(
        [
            walk[-24:] <= one.values[:, list(one.quantiles).index(0.9)] + 1e-9
            for walk, one in zip(walks, made, strict=True)
        ]
    )
    assert 0.82 <= covered <= 0.97


def test_short_histories_say_so():
    """A handful of values gives the last value with a widening band, and a note that says so."""
    made = forecast([hourly([3.0, 5.0, 4.0, 6.0, 5.0])], 24)[0]
    assert made.note is not None
    assert "only 5 known values" in made.note
    assert (made.values[:, 1] == 5.0).all()
    width = made.values[:, 2] - made.values[:, 0]
    assert width[-1] > width[0] > 0


def test_a_gap_at_the_end_is_reached_over():
    """Instants without a value at the end push the horizon on: it starts after the last instant,
    not the last value.
    """
    values = np.concatenate([steps(1), [np.nan] * 5])
    made = forecast([hourly(values)], 6)[0]
    assert made.at_ms[0] == len(values) * HOUR
    assert np.isfinite(made.values).all()


def test_gaps_are_not_zero():
    """A hole in the middle of a steady series does not pull the forecast down."""
    values = np.full(300, 40.0)
    values[100:160] = np.nan
    assert np.allclose(forecast([hourly(values)], 24)[0].values, 40.0)


@pytest.mark.parametrize(
    ("horizon", "quantiles"), [(0, (0.5,)), (3, ()), (3, (0.0, 0.5)), (3, (0.5, 1.0))]
)
def test_impossible_questions_are_refused(horizon, quantiles):
    """No step, no quantile, or a quantile that is none, is a ValueError."""
    with pytest.raises(ValueError, match="at least one step"):
        forecast([hourly(steps(1))], horizon, quantiles)


def test_pinball_is_the_quantile_loss():
    """Ten GPUs too few cost 0.9 each at the 0.9 quantile, ten too many 0.1 each; unknown instants
    cost nothing.
    """
    nine = np.array([0.9])
    assert quantile_loss(np.array([20.0]), np.array([[10.0]]), nine) == pytest.approx(9.0)
    assert quantile_loss(
        np.array([10.0, np.nan]), np.array([[20.0], [5.0]]), nine
    ) == pytest.approx(1.0)


def test_series_are_placed_on_their_grid_with_gaps_unknown():
    """Rows in any order become one evenly spaced series; a missing instant is NaN."""
    at = np.array([3 * HOUR, 0, HOUR, 4 * HOUR])
    made, faults = series_of(["a"], np.zeros(4, dtype=int), at, np.array([4.0, 1.0, 2.0, 5.0]))
    assert not faults
    assert made[0].step_ms == HOUR
    assert np.array_equal(made[0].values, [1.0, 2.0, np.nan, 4.0, 5.0], equal_nan=True)


def test_rows_off_the_grid_or_twice_are_faults_with_their_row():
    """An instant off the step and an instant given twice are named by row, and the series is left
    out.
    """
    at = np.array([0, HOUR, 2 * HOUR, 2 * HOUR, 3 * HOUR + 5])
    made, faults = series_of(["a"], np.zeros(5, dtype=int), at, np.ones(5))
    assert not made
    assert [(fault.row, "twice" in fault.message) for fault in faults] == [(3, True), (4, False)]


def test_beyond_a_day_the_band_widens_the_more_the_fewer_days_are_known():
    """Changes over a week overlap: three weeks have three of them. Up to a day ahead, and of the
    naive baseline, the band is that of the past changes.
    """
    leads = np.array([1, 24, 48, 168])
    levels = np.array([0.1, 0.5, 0.9])

    def widths(days, similarity):
        values = steps(5, 24 * days)
        predicted, _ = Analogs(history_of(values, 0, HOUR), leads).predict(similarity, levels)
        return predicted[:, 2] - predicted[:, 0], predicted[:, 1]

    narrow = replace(Similarity(), widening=0.0)
    gains = []
    for days in (21, 42):
        (wide, middle), (plain, same) = widths(days, Similarity()), widths(days, narrow)
        np.testing.assert_array_equal(middle, same)
        np.testing.assert_array_equal(wide[:2], plain[:2])
        gains.append(wide[2:] / plain[2:])
        assert 1 < gains[-1][0] < gains[-1][1] < 2
    assert (gains[0] > gains[1]).all()
    assert PERSISTENCE.widening == 0


def test_a_forecast_without_its_back_test_is_the_same_without_skill():
    """And a mix of methods is judged in any case: it is weighed by what each lost."""
    series = [hourly(steps(2))]
    (judged,), (bare,) = forecast(series, 24), forecast(series, 24, judged=False)
    np.testing.assert_array_equal(judged.values, bare.values)
    assert (judged.skill is None, bare.skill) == (False, None)
    assert forecast(series, 24, method="analog,persistence", judged=False)[0].skill is not None

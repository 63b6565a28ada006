"""Models that look at more than the series: boosted trees over all of them, and the workloads behind one."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger_collector.insight.forecast import MODELS, STILL_RUNNING, Workloads, forecast, settings_for
from gpuledger_collector.insight.forecast.analogs import history_of
from gpuledger_collector.insight.forecast.boosted import FEATURES, ForecastTask, TreeSettings, _features, predict_all
from gpuledger_collector.insight.forecast.workloads import Lifetimes, predict
from gpuledger_collector.insight.series import Series

HOUR = 3_600_000
DAY = 24 * HOUR
Q = np.array([0.1, 0.5, 0.9, 0.95])
T0 = 19_000 * DAY


def batches(days, length_hours=6, gpus=2.0, at_hour=9, count=8):
    """Every day at one hour some workloads begin, and each lasts as long."""
    start = np.array([T0 + day * DAY + at_hour * HOUR for day in range(days) for _ in range(count)], dtype=np.int64)
    return Workloads(
        start, start + length_hours * HOUR, np.full(len(start), gpus), np.zeros(len(start), np.int64), STILL_RUNNING
    )


def held(workloads, hours):
    """The series of hourly means that these workloads make."""
    at = T0 + HOUR * np.arange(hours)
    inside = np.minimum(workloads.end_ms[:, None], at + HOUR) - np.maximum(workloads.start_ms[:, None], at)
    return (np.clip(inside, 0, None) / HOUR * workloads.gpus[:, None]).sum(axis=0)


def test_lives_are_those_of_kaplan_and_meier():
    """Four lives of 1, 2, 2 and 4 hours of which the second of two hours goes on: 3/4, then 1/2, then nobody."""
    curve = Lifetimes(np.array([1, 2, 2, 4]), np.array([True, True, False, True])).curve(np.ones(4))
    assert curve.at(np.array([0.5, 1.0, 2.0, 3.9, 4.0])) == pytest.approx([1.0, 0.75, 0.5, 0.5, 0.0])
    assert curve.length(np.array([0.9, 0.6, 0.1])).tolist() == [1, 2, 4]
    open_end = Lifetimes(np.array([1, 5]), np.array([True, False])).curve(np.ones(2))
    assert open_end.length(np.array([0.2])).tolist() == [np.inf]


def test_a_young_batch_is_known_to_end():
    """Workloads that always last six hours and began an hour ago are held for five more, and gone in the sixth."""
    workloads = batches(20)
    values = held(workloads, 19 * 24 + 10)
    assert values[-1] == 16.0
    made = predict(workloads, history_of(values, T0, HOUR), np.arange(1, 13), Q)
    assert made is not None
    levels, mean = made
    np.testing.assert_allclose(levels[:5], 16.0)
    np.testing.assert_allclose(levels[5:], 0.0)
    np.testing.assert_allclose(mean[:5], 16.0)


def test_what_comes_every_morning_is_expected_every_morning():
    """At midnight nothing runs; by nine the daily batch is expected, because it came on every day before."""
    workloads = batches(20)
    values = held(workloads, 19 * 24)
    made = predict(workloads, history_of(values, T0, HOUR), np.arange(1, 25), Q)
    assert made is not None
    np.testing.assert_allclose(made[0][:, 1], held(batches(20), 20 * 24)[-24:])


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(24 * 12, 24 * 18))
def test_workloads_see_nothing_after_the_instant(cut):
    """What begins or ends later changes no answer: the same with everything later cut away."""
    workloads = batches(20)
    past = history_of(held(workloads, 480)[:cut], T0, HOUR)
    now = T0 + cut * HOUR
    begun = workloads.start_ms < now
    known = Workloads(
        workloads.start_ms[begun],
        np.where(workloads.end_ms[begun] <= now, workloads.end_ms[begun], STILL_RUNNING),
        workloads.gpus[begun],
        workloads.owner[begun],
        STILL_RUNNING,
    )
    first, second = (predict(one, past, np.arange(1, 25), Q) for one in (workloads, known))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first[0], second[0])


def test_waiting_workloads_count_as_demand_of_now():
    """Four GPUs more that wait are four more in the hours to come, for as long as such workloads last."""
    workloads = batches(20)
    values = held(workloads, 19 * 24 + 10)
    values[-1] += 4  # what is forecast is held and queued
    waits = replace(workloads, until_ms=T0 + len(values) * HOUR, waiting=((0, 4.0),))
    made = predict(waits, history_of(values, T0, HOUR), np.arange(1, 13), Q)
    assert made is not None
    np.testing.assert_allclose(made[0][:5, 1], 20.0)
    np.testing.assert_allclose(made[0][7:, 1], 0.0)


def test_deployments_that_stay_have_no_lifetimes():
    """Where hardly anything ends there is no answer, and the forecast is that of the series alone."""
    start = T0 + np.arange(200, dtype=np.int64) * HOUR
    placement = Workloads(start, np.full(200, STILL_RUNNING), np.ones(200), np.zeros(200, np.int64), STILL_RUNNING)
    values = held(placement, 300)
    assert predict(placement, history_of(values, T0, HOUR), np.arange(1, 25), Q) is None
    series = Series("p", T0, HOUR, values)
    with_them = forecast([series], 24, workloads={"p": placement})[0]
    assert np.array_equal(with_them.values, forecast([series], 24)[0].values)


def test_the_mix_takes_workloads_where_they_were_right():
    """Two owners whose batches last two and twenty hours: only the workloads tell which of them runs, and count."""
    rng = np.random.default_rng(5)
    start = T0 + np.sort(rng.integers(0, 42 * 24, 120)).repeat(6) * HOUR
    owner = rng.integers(0, 2, 120).repeat(6)
    length = np.where(owner == 1, 20, 2) * HOUR
    workloads = Workloads(start, start + length, np.full(len(start), 2.0), owner, STILL_RUNNING)
    values = held(workloads, 42 * 24)
    losses = {"with": 0.0, "without": 0.0}
    for origin in range(30 * 24 + 5, 40 * 24, 17):
        series = Series("p", T0, HOUR, values[:origin])
        for name, lives in (("with", {"p": workloads}), ("without", None)):
            made = forecast([series], 6, workloads=lives)[0]
            error = values[origin : origin + 6, None] - made.values
            losses[name] += float(np.maximum(Q * error, (Q - 1) * error).sum())
    assert losses["with"] < 0.9 * losses["without"]


def walks(count, hours, seed=0):
    """Series with a common daily shape and steps of their own."""
    rng = np.random.default_rng(seed)
    shape = 10 * np.sin(2 * np.pi * np.arange(hours) / 24)
    return [np.maximum(40 + shape + np.cumsum(rng.normal(0, 0.5, hours)), 0) for _ in range(count)]


def test_trees_know_nothing_after_the_instants_they_are_asked_at():
    """With everything after the earliest origin replaced, the answer at that origin stays."""
    leads = np.arange(1, 25)
    found = []
    for values in (walks(3, 400), [np.concatenate([one[:300], np.full(100, 7.0)]) for one in walks(3, 400)]):
        plans = [ForecastTask(history_of(one, T0, HOUR), (300, 400), (leads, leads)) for one in values]
        found.append(predict_all(plans, Q, TreeSettings(rows=2_000, rounds=5))[0][300][0])
    np.testing.assert_array_equal(*found)


def test_a_day_is_known_by_its_place_in_the_calendar():
    """A target on New Year's Day is a holiday, the day after is none; months begin at 1."""
    start = (dt.date(2026, 12, 30) - dt.date(1970, 1, 1)).days * DAY
    history = history_of(np.arange(24 * 20, dtype=float), start - 19 * DAY, HOUR)
    features = _features(history, np.full(4, 19 * 24), np.array([12, 36, 60, 84]), 1.0)
    assert features.shape[1] == FEATURES
    assert features[:, -3].tolist() == [0.0, 1.0, 1.0, 0.0]
    assert features[:, -2].tolist() == [30.0, 31.0, 1.0, 2.0]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_can_be_asked_alone(model):
    """One model by its name gives ordered, finite quantiles; one without an answer falls back to persistence."""
    series = [Series(f"s{place}", T0, HOUR, one) for place, one in enumerate(walks(2, 400))]
    made = forecast(series, 12, settings=settings_for(model))
    assert all(np.isfinite(one.values).all() and (np.diff(one.values, axis=1) >= 0).all() for one in made)
    assert set(made[0].weights) == {"persistence" if model == "workloads" else model}


def test_an_unknown_model_is_refused():
    """There is no model of that name."""
    with pytest.raises(KeyError):
        settings_for("oracle")

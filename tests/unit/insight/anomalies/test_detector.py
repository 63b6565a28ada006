"""Judging a series: no look ahead, no savings from silence, no opinion about units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.insight.anomalies import (
    detect,
    group_episodes,
    limits,
    next_limit,
    price_rises,
)
from gpuledger_collector.insight.anomalies.alarms import AlarmRule, find_alarms
from gpuledger_collector.insight.series import Series

HOUR = 3_600_000
DAY = 24


def hourly(values, step=HOUR):
    return Series("team", 0, step, np.asarray(values, dtype=float))


def calm(days=30, level=40.0, seed=0):
    rng = np.random.default_rng(seed)
    rhythm = 0.2 * level * np.sin(2 * np.pi * np.arange(days * DAY) / DAY)
    return level + rhythm + rng.normal(0, 0.03 * level, days * DAY)


values = st.lists(
    st.one_of(st.integers(0, 50).map(float), st.just(float("nan"))), min_size=1, max_size=24 * 25
)


@examples(20)
@given(values=values, cut=st.floats(0, 1), seed=st.integers(0, 100))
def test_the_future_changes_nothing_in_the_past(values, cut, seed):
    """Judged with the rest cut off, an instant has the same score, band and flag."""
    whole = np.concatenate([calm(20, seed=seed), values])
    count = 1 + int(cut * (len(whole) - 1))
    rate = np.where(np.arange(len(whole)) < len(whole) // 2, 2.0, 2.5)
    long = detect(hourly(whole), price_rises(rate, HOUR))
    short = detect(hourly(whole[:count]), price_rises(rate[:count], HOUR))
    for name in ("expected", "lower", "upper", "score", "flag", "price"):
        np.testing.assert_array_equal(
            getattr(long, name)[:count], getattr(short, name), err_msg=name
        )


@examples(15)
@given(values=values, factor=st.sampled_from([1 / 1024, 0.25, 4.0, 65536.0]))
def test_units_do_not_matter(values, factor):
    """Cents or dollars, GPUs or GPU-seconds: the same scores and flags, and a band in the new unit."""
    whole = np.concatenate([calm(20), values])
    one, other = detect(hourly(whole)), detect(hourly(whole * factor))
    np.testing.assert_allclose(one.score, other.score, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.upper * factor, other.upper, rtol=1e-9)


@examples(15)
@given(start=st.integers(14 * DAY, 28 * DAY), hours=st.integers(1, 72), seed=st.integers(0, 50))
def test_silence_is_no_saving_and_no_alarm(start, hours, seed):
    """Hours without a value are not judged, and do not make an anomaly of the hours after them."""
    spend = calm(seed=seed)
    silent = spend.copy()
    silent[start : start + hours] = np.nan
    judged = detect(hourly(silent))
    assert not judged.flag[start : start + hours].any()
    assert np.isnan(judged.score[start : start + hours]).all()
    assert judged.flag.sum() <= detect(hourly(spend)).flag.sum()


@pytest.mark.parametrize(("added", "hours"), [(0.6, 6), (1.0, 2), (3.0, 0)])
def test_a_runaway_is_one_episode_and_soon_seen(added, hours):
    """A job of a good part of the usual spend, on top of it, is seen the sooner the larger it is,
    as one alarm.
    """
    spend = calm()
    spend[500:540] += added * 40
    (found,) = group_episodes(detect(hourly(spend)))
    assert 500 <= found.first <= 500 + hours
    assert found.excess > 0.7 * added * 40 * (found.last - 500 if found.last < 540 else 40)


def test_a_leak_is_found_by_its_length():
    """Five percent of the level more each day is above no usual hour at first, but is found within
    a week.
    """
    spend = calm(28)
    leak = spend.copy()
    leak[480:] += 0.05 * 40 * np.arange(len(leak) - 480) / DAY
    assert not detect(hourly(spend)).flag.any()
    assert 480 < group_episodes(detect(hourly(leak)))[0].first < 480 + 7 * DAY


def test_a_weekly_batch_is_normal_and_twice_of_it_on_another_day_is_not():
    """What came back in both weeks before is expected; more than ever at an hour when nothing did
    is not.
    """
    spend = calm(28)
    for week in range(4):
        spend[week * 168 + 6 : week * 168 + 12] += 40
    assert not detect(hourly(spend)).flag[14 * DAY :].any()
    spend[17 * DAY + 6 : 17 * DAY + 12] += 80
    assert detect(hourly(spend)).flag[17 * DAY + 6 : 17 * DAY + 12].any()


def test_a_dearer_rate_is_named_as_price():
    """A rate that rises is an alarm by itself, at the first instant of usage, and usage is not
    blamed for it.
    """
    rate = np.where(np.arange(30 * DAY) < 500, 2.0, 2.3)
    judged = detect(hourly(calm()), price_rises(rate, HOUR))
    assert judged.price[500]
    assert not judged.price[:500].any()
    assert not (judged.flag & ~judged.price).any()


def test_three_days_are_the_least_to_judge_from():
    """A new team is not judged in its first day, and is judged after three."""
    judged = detect(hourly(calm(10)))
    assert np.isnan(judged.score[:DAY]).all()
    assert np.isfinite(judged.score[3 * DAY :]).all()


@pytest.mark.parametrize("step", [HOUR // 12, HOUR, 24 * HOUR])
def test_steps_of_minutes_hours_and_days(step):
    """The same spend at other steps: a tripled last part is found, a calm one is not."""
    count = 30 * 24 * HOUR // step
    hours = np.arange(count) * step / HOUR
    spend = 40 + (6 * np.sin(2 * np.pi * hours / 24) if step < 24 * HOUR else np.zeros(count))
    assert not detect(hourly(spend, step)).flag.any()
    spend[-max(2, 36 * HOUR // step) :] *= 3
    assert detect(hourly(spend, step)).flag[-1]


def test_the_ceiling_of_the_next_hour_is_that_of_its_past():
    """What must be exceeded to stand out at once is known before the hour, and no hour after it
    changes it.
    """
    spend = calm(seed=3)
    whole = limits(hourly(spend))
    for hour in (15 * DAY, 20 * DAY + 5):
        limit = next_limit(hourly(spend[:hour]))
        assert limit is not None
        assert limit.stands_out == whole[hour] > limit.expected
    assert next_limit(hourly(spend[: 7 * DAY])) is None
    assert next_limit(hourly(np.zeros(20 * DAY))) is None


def alarms_of(score, fatigue):
    rule = AlarmRule(threshold=1.0, persistence_hours=2, far=3.0, fatigue=fatigue)
    score = np.asarray(score, dtype=float)
    price = np.zeros(len(score), dtype=bool)
    return find_alarms(score, np.zeros(len(score)), price, rule, HOUR)


def test_alarms_of_the_weeks_before_tire():
    """A score that leaps as high each third day is reported less often the oftener it was, and the
    first one as ever.
    """
    score = np.zeros(30 * DAY)
    for day in range(0, 30, 3):
        score[day * DAY : day * DAY + 5] = 1.6
    assert alarms_of(score, 0.0).max() == 10
    tired = alarms_of(score, 0.5)
    assert (tired[:6] == [0, 1, 1, 1, 1, 0]).all()
    assert 1 < tired.max() < 8


def test_fatigue_is_forgotten():
    """After ten quiet weeks what was tiring is an alarm again."""
    score = np.zeros(80 * DAY)
    for day in (0, 1, 2, 79):
        score[day * DAY : day * DAY + 5] = 1.6
    alarm = alarms_of(score, 1.0)
    assert not alarm[DAY : 3 * DAY].any()
    assert alarm[-DAY:].any()


def test_a_leap_within_a_slow_alarm_is_an_alarm_of_its_own():
    """A leak that is reported does not swallow a runaway that begins days later."""
    spend = calm(30)
    spend[360:] += np.minimum(30.0, 0.4 * np.arange(len(spend) - 360))
    whole = group_episodes(detect(hourly(spend)))
    begin = whole[0].first + 60
    assert begin < whole[0].last
    spend[begin : begin + 30] += 150
    first, second = group_episodes(detect(hourly(spend)))[:2]
    assert first.first == whole[0].first
    assert first.last < begin <= second.first <= begin + 2


def test_a_dearer_rate_within_an_alarm_is_an_alarm_of_its_own():
    """A rate that rises while spending is high anyway is still reported."""
    spend = calm(30)
    spend[400:520] += np.linspace(30, 300, 120)
    rate = np.where(np.arange(len(spend)) < 450, 2.0, 2.3)
    starts = [one.first for one in group_episodes(detect(hourly(spend), price_rises(rate, HOUR)))]
    assert 450 in starts
    assert min(starts) < 450


def test_what_has_run_for_long_is_judged_beside_the_whole():
    """A runaway below the usual bursts of a team shows among its workloads that have run for long."""
    rng = np.random.default_rng(3)
    short = 30 * rng.pareto(2.0, 30 * DAY)
    lasting = np.full(len(short), 10.0)
    lasting[512:560] += 25
    whole = short + lasting
    assert not detect(hourly(whole)).flag[512:560].any()
    judged = detect(hourly(whole), long_running=lasting)
    assert judged.flag[512:516].any()
    assert judged.long_running[judged.flag].all()
    assert group_episodes(judged)[0].excess > 25 * 20


def test_what_has_run_for_long_is_no_alarm_where_it_is_little():
    """Long-running work of a hundredth of a team's spending may double."""
    spend = calm(30)
    lasting = np.full(len(spend), 0.4)
    lasting[500:] = 0.8
    assert not detect(hourly(spend), long_running=lasting).flag.any()

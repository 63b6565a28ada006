"""What a minute was: exactly one state, from the past alone, and no flag for what only looks idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.insight.idle.episodes import idle_episodes
from gpuledger_collector.insight.idle.minutes import Minutes, carry_samples
from gpuledger_collector.insight.idle.states import State, classify
from gpuledger_collector.insight.idle.survival import estimate_survival

GIB = 2.0**30
MONDAY_NOON = 1_760_961_600_000
"""2025-10-20T12:00:00Z"""


def fleet(utilization, holder=1, **other):
    """Accelerators that are held by `holder` and seen every minute, unless `other` says something
    else.
    """
    util = np.atleast_2d(np.asarray(utilization, dtype=float))
    rows, columns = util.shape
    card = {
        "memory_total": 80 * GIB,
        "memory_floor": 0.6 * GIB,
        "idle_watts": 70.0,
        "limit_watts": 700.0,
    }
    minute = {
        "sm_active": np.nan,
        "zero_ratio": (util <= 0).astype(float),
        "dram_active": np.nan,
        "memory_copy": np.nan,
        "memory_bytes": 60 * GIB,
        "power_watts": np.nan,
        "clock_hertz": np.nan,
        "slowed_ratio": np.nan,
        "processes": 1.0,
        "host_busy": np.nan,
        "bytes_per_second": np.nan,
        "utilization": util,
    }
    flags = {"seen": np.isfinite(util), "faulty": False, "serving": False, "interactive": False}
    made = {}
    for name, value in {**card, **minute, **flags, "holder": holder, **other}.items():
        if name == "start_ms":
            continue
        kind = bool if name in flags else np.int64 if name == "holder" else float
        shape = (rows,) if name in card else (rows, columns)
        made[name] = np.broadcast_to(np.asarray(value, dtype=kind), shape).copy()
    return Minutes(start_ms=other.get("start_ms", MONDAY_NOON), **made)


def states_of(minutes):
    return classify(minutes).state


def flagged(minutes, state):
    return [one for one in idle_episodes(minutes, classify(minutes)) if one.state is state]


readings = st.lists(
    st.sampled_from([0.0, 0.0, 0.0, 0.005, 0.03, 0.5, 1.0, float("nan")]).flatmap(
        lambda value: st.integers(1, 120).map(lambda count: [value] * count)
    ),
    min_size=1,
    max_size=8,
).map(lambda parts: [value for part in parts for value in part])


@st.composite
def anything(draw):
    """A few accelerators with runs of every kind of reading and holder."""
    rows = [draw(readings) for _ in range(draw(st.integers(1, 3)))]
    columns = max(len(row) for row in rows)
    util = np.full((len(rows), columns), np.nan)
    for number, row in enumerate(rows):
        util[number, : len(row)] = row
    holder = np.repeat(draw(st.lists(st.integers(-1, 2), min_size=1, max_size=6)), 60)
    return fleet(
        util,
        holder=np.resize(holder, (len(rows), columns)),
        faulty=draw(st.booleans()),
        serving=draw(st.booleans()),
        interactive=draw(st.booleans()),
        processes=draw(st.sampled_from([0.0, 1.0, float("nan")])),
        memory_bytes=draw(st.sampled_from([0.5, 20.0, float("nan")])) * GIB,
        sm_active=draw(st.sampled_from([np.nan, 0.0, 0.1])),
    )


@examples(25)
@given(minutes=anything())
def test_every_minute_has_exactly_one_state(minutes):
    """A state of the eleven for each minute; unknown minutes are `no_data`, and only they; factors
    are parts.
    """
    made = classify(minutes)
    assert set(np.unique(made.state)) <= set(State)
    np.testing.assert_array_equal(made.state == State.NO_DATA, ~minutes.seen)
    assert ((made.factor >= 0) & (made.factor <= 1)).all()
    assert (made.factor[~minutes.seen] == 0).all()
    assert (made.since <= np.arange(minutes.shape[1])).all()


@examples(25)
@given(minutes=anything(), part=st.floats(0.05, 1))
def test_the_future_changes_nothing_in_the_past(minutes, part):
    """With the later minutes cut off, the earlier ones keep their states, beginnings and factors."""
    count = max(1, int(part * minutes.shape[1]))
    whole, cut = classify(minutes), classify(minutes.known_before(count))
    for name in ("state", "since", "factor"):
        np.testing.assert_array_equal(
            getattr(whole, name)[:, :count], getattr(cut, name), err_msg=name
        )


@examples(20)
@given(minutes=anything())
def test_episodes_are_disjoint_and_inside(minutes):
    """No two flagged usage intervals of an accelerator overlap; each begins before its flag and
    wastes known minutes only.
    """
    last = {}
    for one in idle_episodes(minutes, classify(minutes)):
        assert one.since <= one.flagged < one.end <= minutes.shape[1]
        assert one.flagged >= last.get(one.row, 0)
        last[one.row] = one.end
        assert len(one.permille) == one.end - one.since
        wasted = np.array(one.permille)
        assert (wasted[~minutes.seen[one.row, one.since : one.end]] == 0).all()


def work(count, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 0.95, count)


def test_gone_idle_is_flagged_after_its_window_and_counted_from_its_first_minute():
    """Two hours of nothing after work: flagged at 90 minutes, since the first idle minute."""
    (found,) = flagged(fleet(np.r_[work(120), np.zeros(120)]), State.GONE_IDLE)
    assert (found.since, found.end, found.ongoing) == (120, 240, True)
    assert 120 + 85 <= found.flagged < 120 + 90
    assert 0.98 <= found.confidence <= 0.99
    assert set(found.permille) == {1000}


def test_one_probe_does_not_reset_the_window_and_one_busy_minute_does_not_end_it():
    """A busy minute in a hundred leaves it idle; five of ten end it."""
    util = np.r_[work(60), np.zeros(180), work(30)]
    util[[130, 200]] = 0.4
    states = states_of(fleet(util))[0]
    assert (states[155:240] == State.GONE_IDLE).all()
    assert (states[245:] == State.ACTIVE).all()


@pytest.mark.parametrize("gap", [5, 12, 20])
def test_no_gap_up_to_twenty_minutes_is_ever_flagged(gap):
    """Request gaps and evaluation pauses stay active."""
    util = np.tile(np.r_[work(10), np.zeros(gap)], 20)
    assert (states_of(fleet(util)) == State.ACTIVE).all()


def test_pauses_that_come_back_with_a_period_are_held_back():
    """Work that starts every three hours is not idle in between; when it stays away for two periods
    it is.
    """
    regular = np.tile(np.r_[work(20), np.zeros(160)], 6)
    states = states_of(fleet(np.r_[regular, np.zeros(400)]))[0]
    assert (states[3 * 180 : 6 * 180] == State.ACTIVE).all()
    assert states[-1] == State.GONE_IDLE


def test_traffic_of_the_holder_is_work():
    """A checkpoint that writes for two hours keeps its accelerators."""
    util = np.r_[work(60), np.zeros(150)]
    assert (states_of(fleet(util, bytes_per_second=2e8)) == State.ACTIVE).all()


def test_warm_replicas_are_never_idle_jobs():
    """An inference service without requests is there on purpose."""
    assert (states_of(fleet(np.zeros(600), serving=True)) == State.ACTIVE).all()


def test_a_member_whose_peers_work_is_no_idle_job():
    """One of two accelerators of a job rests while the other works: not idle; when both rest, both
    are.
    """
    util = np.stack([np.r_[work(150), np.zeros(150)], np.zeros(300)])
    states = states_of(fleet(util))
    assert (states[1, :150] == State.ACTIVE).all()
    assert states[0, -1] == states[1, -1] == State.GONE_IDLE


def test_notebooks_get_four_hours_by_day_and_one_at_night():
    """A person may think for longer than a batch job may rest."""
    day = fleet(np.r_[work(60), np.zeros(200)], interactive=True)
    assert not flagged(day, State.GONE_IDLE)
    night = fleet(
        np.r_[work(60), np.zeros(200)], interactive=True, start_ms=MONDAY_NOON + 10 * 3_600_000
    )
    assert 60 + 55 <= flagged(night, State.GONE_IDLE)[0].flagged < 60 + 60


def test_never_used():
    """Held for over an hour, no process, nothing in memory: never used, since the allocation."""
    (found,) = flagged(fleet(np.zeros(200), processes=0, memory_bytes=0.6 * GIB), State.NEVER_USED)
    assert (found.since, found.flagged) == (0, 60)


def test_unallocated_and_left_behind():
    """Nobody holds it: unallocated after 15 minutes; with gigabytes still in memory it is a zombie
    after ten.
    """
    util = np.zeros(120)
    free = fleet(util, holder=-1, processes=0, memory_bytes=0.6 * GIB)
    (found,) = flagged(free, State.UNALLOCATED)
    assert (found.since, found.flagged, found.holder) == (0, 14, -1)
    (left,) = flagged(fleet(util, holder=-1), State.ZOMBIE)
    assert (left.since, left.flagged) == (0, 9)


def test_a_stuck_counter_is_no_work():
    """100 % and no process, at the power of rest: the counter hangs."""
    stuck = fleet(np.ones(60), processes=0, power_watts=72)
    assert (states_of(stuck)[0, 10:] == State.ZOMBIE).all()
    assert (states_of(fleet(np.ones(60), processes=1, power_watts=400)) == State.ACTIVE).all()


def test_hollow_starved_throttled_underused():
    """Busy and not working, waiting for data, slowed by heat, too large for its work: each by its
    own evidence.
    """
    full = np.ones(300)
    assert states_of(fleet(full, sm_active=0.06))[0, -1] == State.HOLLOW
    assert states_of(fleet(full, sm_active=0.6))[0, -1] == State.ACTIVE
    saw = np.full(300, 0.35)
    assert states_of(fleet(saw, zero_ratio=0.5, dram_active=0.05))[0, -1] == State.DATA_STARVED
    assert states_of(fleet(saw, zero_ratio=0.5))[0, -1] == State.ACTIVE
    clock = np.r_[np.full(100, 1.98e9), np.full(200, 1.2e9)]
    slowed = np.r_[np.zeros(100), np.ones(200)]
    assert states_of(fleet(full, clock_hertz=clock, slowed_ratio=slowed))[0, -1] == State.THROTTLED
    small = fleet(np.full(300, 0.1), zero_ratio=0.0, memory_bytes=8 * GIB)
    assert states_of(small)[0, -1] == State.UNDERUSED


def test_what_nobody_saw_is_never_idle_and_costs_nothing():
    """Silence in the middle of idleness is counted apart; a short one does not make two episodes of
    it.
    """
    util = np.r_[work(30), np.zeros(300)]
    util[200:212] = np.nan
    (found,) = flagged(fleet(util), State.GONE_IDLE)
    assert (found.since, found.end) == (30, 330)
    assert found.permille[170:182] == (0,) * 12
    assert sum(found.permille) == 1000 * (300 - 12)


def test_a_slow_sampler_is_carried_for_three_intervals():
    """Samples every five minutes hold for fifteen; the first minute without any is unknown; the
    past is not touched.
    """
    sampled = np.zeros((1, 100), dtype=bool)
    sampled[0, 10:60:5] = True
    seen, column = carry_samples(sampled)
    assert not seen[0, :10].any()
    assert seen[0, 10:13].all()
    assert seen[0, 15:70].all()
    assert not seen[0, 70:].any()
    assert column[0, 57] == 55


def survival(flagged, length, ended):
    return estimate_survival(
        np.asarray(flagged, float), np.asarray(length, float), np.asarray(ended, bool)
    )


def test_confidence_is_counted_and_leans_on_the_open_trace():
    """Episodes that always end say so when there are many of them; without any the open trace
    stands, by how long an episode has lasted.
    """
    nothing = survival([], [], [])
    assert [nothing.probability_at(length) for length in (60, 90, 119, 120, 900)] == pytest.approx(
        [0.64, 0.78, 0.78, 0.99, 0.99]
    )
    ending = survival(np.full(2000, 90), np.full(2000, 100), np.full(2000, True))
    assert ending.probability_at(95) < 0.06
    assert ending.probability_at(200) == pytest.approx(0.99)
    lasting = survival(np.full(2000, 90), np.full(2000, 200), np.full(2000, False))
    assert min(lasting.probability_at(100), lasting.probability_at(120)) > 0.98


def test_what_was_not_watched_counts_for_nothing():
    """Two hours that had passed before the flag are no evidence that two hours are outlasted."""
    late = survival(np.full(500, 130), np.full(500, 160), np.full(500, False))
    assert (late.probability_at(100), late.probability_at(130) > 0.99) == (
        pytest.approx(0.78),
        True,
    )


def test_an_episode_that_nobody_saw_end_does_not_count_as_ended():
    """Pauses that end after 100 minutes lower the confidence; lost data at the same minute does
    not.
    """
    pause = np.r_[work(60), np.zeros(100)]
    seen = fleet([np.r_[pause, work(60)]] * 40)
    lost = fleet([np.r_[pause, np.full(60, np.nan)]] * 40)
    (ended, *_), (unknown, *_) = (flagged(minutes, State.GONE_IDLE) for minutes in (seen, lost))
    assert ended.end == unknown.end
    assert ended.confidence < 0.5
    assert unknown.confidence > 0.78


def test_work_at_the_end_of_a_long_pause_is_not_idle():
    """A notebook idle for 236 minutes and busy since: its window is idle enough at 240, and it
    works.
    """
    minutes = fleet([[0.0] * 236 + [0.9] * 10], interactive=True)
    assert not (states_of(minutes) == State.GONE_IDLE).any()

"""The meter and the clock: seconds are neither invented nor lost."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger_agent.clock import MAX_AHEAD_MS, STEP_TOLERANCE_MS, Clock
from gpuledger_common.batches import BatchMaker
from gpuledger_common.meter import MAX_METERED_RANGES, Meter
from gpuledger_common.readings import HOUR_MS, Accelerator, Health, Holder, Sample, Workload

START = 1_790_812_800_000
GPU = Accelerator("GPU-a", "GPU-a", 0, "NVIDIA L4")
JOB, OTHER = Holder(Workload("1", "slurm")), Holder(Workload("2", "slurm"), 2)


def sample(activity=None, *, health="ok", **values):
    if activity is not None:
        values["gpu_utilization_ratio"] = activity
    return Sample("GPU-a", 0, values, {}, (), Health(health))


def run(meter, ticks):
    """Ticks as (milliseconds since START, sample, holders); returns the spans."""
    for at, seen, holders in ticks:
        meter.tick(seen, START + at, holders)
    return meter.take()


@st.composite
def histories(draw):
    """Ticks at any cadence below the gap, with states that change as they like."""
    at, ticks = 0, []
    for _ in range(draw(st.integers(2, 40))):
        holders = draw(st.sampled_from([(), (JOB,), (JOB, OTHER), (OTHER,)]))
        activity = draw(st.sampled_from([None, 0.0, 0.5]))
        health = draw(st.sampled_from(["ok", "ok", "ok", "failed"]))
        ticks.append((at, sample(activity, health=health, gpu_power_watts=100.0), holders))
        at += draw(st.integers(1, 30 * 60_000))
    return ticks


@given(histories(), st.lists(st.integers(0, 39), max_size=4))
def test_what_was_seen_is_measured_to_the_millisecond(ticks, flushes):
    """Spans abut, cover exactly the time between first and last tick, and cross no hour, however
    often taken.
    """
    meter, spans = Meter(gap_ms=40 * 60_000), []
    for number, (at, seen, holders) in enumerate(ticks):
        meter.tick(seen, START + at, holders)
        if number in flushes:
            spans += meter.take()
    spans += meter.take()
    assert spans[0].start_ms == START + ticks[0][0]
    assert spans[-1].end_ms == START + ticks[-1][0]
    assert all(before.end_ms == after.start_ms for before, after in pairwise(spans))
    for span in spans:
        assert span.start_ms // HOUR_MS == (span.end_ms - 1) // HOUR_MS
        length = span.end_ms - span.start_ms if span.state == "held" else 0
        assert span.busy_ms + span.idle_ms + span.unknown_ms == length
    assert sum(span.energy_mj for span in spans) == pytest.approx(
        100 * (ticks[-1][0] - ticks[0][0]), abs=len(ticks)
    )


@given(histories())
def test_holders_share_a_span_without_remainder(ticks):
    """On the wire the holders' parts of a span add up to it, by weight, and their activities to the
    parts.
    """
    spans = run(Meter(gap_ms=40 * 60_000), ticks)
    usage_intervals = BatchMaker([GPU], "", {}).usage_intervals(spans)
    parts = {}
    for usage_interval in usage_intervals:
        assert (
            usage_interval.busy_ms + usage_interval.idle_ms + usage_interval.unknown_ms
            == usage_interval.held_ms
        )
        if usage_interval.state == "held":
            parts.setdefault((usage_interval.start_ms, usage_interval.end_ms), []).append(
                usage_interval.held_ms
            )
    for (start, end), held in parts.items():
        assert sum(held) == end - start
        if len(held) == 2:
            assert abs(held[0] - Fraction(end - start, 3)) < 1


@given(st.lists(st.integers(1, 100_000), min_size=2, max_size=50))
def test_the_cadence_changes_no_sum(steps):
    """The same hour of a busy job is the same hour, sampled evenly or not."""
    at, uneven = 0, []
    for step in steps:
        uneven.append((at, sample(0.9), (JOB,)))
        at += step
    uneven.append((at, sample(0.9), (JOB,)))
    ends = [(0, sample(0.9), (JOB,)), (at, sample(0.9), (JOB,))]
    first = sum(span.busy_ms for span in run(Meter(gap_ms=10**9), uneven))
    second = sum(span.busy_ms for span in run(Meter(gap_ms=10**9), ends))
    assert first == second == at


def test_a_gap_is_not_filled():
    """After more than the longest gap the span ends at the last evidence, and a new one begins at
    the next.
    """
    spans = run(
        Meter(gap_ms=30_000), [(at, sample(0.9), (JOB,)) for at in (0, 10_000, 50_000, 60_000)]
    )
    assert [(span.start_ms - START, span.end_ms - START) for span in spans] == [
        (0, 10_000),
        (50_000, 60_000),
    ]


def test_states_follow_health_and_holders():
    """Failed is unavailable even when held; nobody's is unallocated; a silent GPU that nobody holds
    shows nothing.
    """
    silent = Sample("GPU-a", 0, {}, {}, (), Health("unknown"))
    spans = run(
        Meter(gap_ms=30_000),
        [
            (0, sample(0.0), ()),
            (10_000, sample(0.0), ()),
            (20_000, sample(health="failed"), (JOB,)),
            (30_000, silent, (JOB,)),
            (40_000, silent, ()),
            (50_000, sample(0.0), ()),
        ],
    )
    assert [(span.state, span.end_ms - span.start_ms) for span in spans] == [
        ("unallocated", 10_000),
        ("unavailable", 10_000),
        ("held", 10_000),
    ]
    assert spans[2].unknown_ms == 10_000


def test_the_best_witness_of_activity_counts():
    """SM activity before utilization: a kernel that is resident and idle is idle."""
    meter = Meter(gap_ms=30_000)
    seen = sample(1.0, gpu_sm_active_ratio=0.0)
    (span,) = run(meter, [(0, seen, (JOB,)), (10_000, seen, (JOB,))])
    assert (span.idle_ms, span.busy_ms) == (10_000, 0)


def test_a_counter_that_starts_again_is_bridged_by_power():
    """Energy comes from the counter's difference; a driver reload (the counter falls) from power x
    time.
    """
    readings = [(0, 1000.0), (10_000, 1500.0), (20_000, 2.0), (30_000, 502.0)]
    ticks = [
        (at, sample(0.5, gpu_energy_joules_total=joules, gpu_power_watts=40.0), (JOB,))
        for at, joules in readings
    ]
    (span,) = run(Meter(gap_ms=30_000), ticks)
    assert span.energy_mj == 500_000 + 400_000 + 500_000


def test_spans_that_could_not_be_stored_wait():
    """What a full disk refused comes again with the next batch, once."""
    meter = Meter(gap_ms=30_000)
    first = run(meter, [(0, sample(0.9), (JOB,)), (10_000, sample(0.9), (JOB,))])
    meter.put_back(first)
    later = run(meter, [(20_000, sample(0.9), (JOB,))])
    assert [(span.start_ms - START, span.end_ms - START) for span in later] == [
        (0, 10_000),
        (10_000, 20_000),
    ]
    assert meter.take() == []


STEPS = st.lists(
    st.tuples(
        st.integers(1, 30_000),  # ms to the next tick
        st.just(0)
        | st.integers(-600_000, 600_000)
        | st.integers(-(10**10), 10**10)
        | st.sampled_from([-(10**13)]),
    ),
    min_size=1,
    max_size=60,
)


def lived(steps):
    """A held accelerator through ticks between which the wall clock is stepped; spans, meter,
    clock, time at jumps.
    """
    clock, meter = Clock(START, 0), Meter(gap_ms=30_000)
    monotonic_ms, wall, at_jumps, spans = 0, START, 0, []
    meter.tick(sample(0.9), clock.at_ms(0), (JOB,))
    for number, (elapsed_ms, wall_step) in enumerate(steps):
        monotonic_ms += elapsed_ms
        wall = max(wall + elapsed_ms + wall_step, 0)
        if clock.check(wall, monotonic_ms * 10**6):
            meter.clock_set()
            at_jumps += elapsed_ms
        meter.tick(sample(0.9), clock.at_ms(monotonic_ms * 10**6), (JOB,))
        if number % 7 == 0:
            spans += meter.take()
    return spans + meter.take(), meter, clock, at_jumps


@given(STEPS)
@settings(deadline=None)
def test_no_instant_is_told_twice_whatever_is_done_to_the_clock(steps):
    """Steps in both directions, seconds to centuries: no overlap, nothing invented, every
    millisecond accounted.
    """
    spans, meter, clock, at_jumps = lived(steps)
    in_order = sorted(spans, key=lambda span: span.start_ms)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(in_order))
    held_ms = sum(span.end_ms - span.start_ms for span in spans)
    elapsed_ms = sum(elapsed for elapsed, _ in steps)
    assert held_ms + meter.discarded_after_clock_step_ms + at_jumps == elapsed_ms
    assert -MAX_AHEAD_MS <= clock.skew_ms <= STEP_TOLERANCE_MS
    assert lived(steps)[0] == spans


@given(STEPS)
def test_a_step_that_is_not_followed_costs_nothing(steps):
    """While the wall clock stays within the tolerances, every millisecond is held, once."""
    small, sum_ms = [], 0
    for elapsed, step in steps:
        step = max(-MAX_AHEAD_MS - sum_ms, min(STEP_TOLERANCE_MS - sum_ms, step))
        sum_ms += step
        small.append((elapsed, step))
    spans, meter, clock, at_jumps = lived(small)
    assert (clock.jumps, at_jumps, meter.discarded_after_clock_step_ms) == (0, 0, 0)
    assert sum(span.end_ms - span.start_ms for span in spans) == sum(
        elapsed for elapsed, _ in steps
    )


def test_a_clock_set_back_by_an_hour_bills_no_hour_twice():
    """What was told of the hour stays; living through it again counts nothing, and after it all
    goes on as before.
    """
    minute = [(30_000, 0), (30_000, 0)]
    spans, meter, _, at_jumps = lived(minute * 120 + [(30_000, -3_600_000)] + minute * 90)
    held = sum(span.end_ms - span.start_ms for span in spans)
    assert at_jumps == 30_000
    assert meter.discarded_after_clock_step_ms == pytest.approx(3_600_000, abs=30_000)
    assert held == 210 * 60_000 - meter.discarded_after_clock_step_ms
    assert max(span.end_ms for span in spans) == START + 210 * 60_000 + 30_000 - 3_600_000


def test_a_clock_that_was_years_ahead_at_boot_costs_one_gap():
    """Only instants that were told are closed: after the correction the true time is counted at
    once.
    """
    years = 3 * 365 * 86_400_000
    spans, meter, _, at_jumps = lived([(10_000, 0)] * 6 + [(10_000, -years)] + [(10_000, 0)] * 60)
    assert (meter.discarded_after_clock_step_ms, at_jumps) == (0, 10_000)
    assert sum(span.end_ms - span.start_ms for span in spans) == 660_000


def test_what_is_remembered_as_told_is_bounded():
    """A clock that is thrown about for ever costs no memory, and still nothing is told twice."""
    spans, meter, clock, _ = lived(
        [(10_000, 0), (10_000, -(10**8)), (10_000, 0), (10_000, 3 * 10**8)] * 100
    )
    in_order = sorted(spans, key=lambda span: span.start_ms)
    assert clock.jumps == 200
    assert len(meter._metered_ranges) <= MAX_METERED_RANGES
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(in_order))

"""Demand from the ledger: what was held, hour by hour, and unknown where nobody looked."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.demand import (
    QUEUE_EXPIRED_MS,
    QUEUE_VALID_MS,
    CapacitySpan,
    GroupUsage,
    QueueReadings,
    hourly_demand,
    with_queue,
)
from gpuledger_collector.insight.series import Series

T0 = 490_000 * HOUR_MS


def hour(number):
    return T0 + number * HOUR_MS


def held(number, gpus, seen):
    return GroupUsage("train", hour(number), gpus * HOUR_MS, seen * HOUR_MS)


def test_hours_without_enough_evidence_are_unknown():
    """Of four GPUs, all seen: known.

    Two seen: nobody knows how many were held. None seen: a gap, never zero.
    """
    capacity = [CapacitySpan("train", 1.0, hour(0), hour(4))] * 4
    (series,) = hourly_demand(
        hour(0), hour(4), [held(0, 3, 4), held(1, 2, 2), held(3, 0, 4)], capacity, []
    )
    assert series.start_ms == hour(0)
    np.testing.assert_array_equal(series.values, [3.0, np.nan, np.nan, 0.0])


def test_a_series_begins_with_its_pool():
    """A pool that was bought in the third hour has no hours before it; one that left has none
    after.
    """
    capacity = [CapacitySpan("train", 2.0, hour(2), hour(4))]
    (series,) = hourly_demand(hour(0), hour(8), [held(2, 1, 2), held(3, 2, 2)], capacity, [])
    assert (series.start_ms, len(series.values)) == (hour(2), 2)


def test_counts_are_known_from_first_to_last_and_never_added_to_observed_pools():
    """Imported usage is a series of its own pool; in a pool with observed accelerators it is left
    out.
    """
    counted = [
        CapacitySpan("slurm", 8.0, hour(1), hour(3)),
        CapacitySpan("train", 5.0, hour(0), hour(4)),
    ]
    series = hourly_demand(
        hour(0), hour(4), [held(0, 1, 1)], [CapacitySpan("train", 1.0, hour(0), hour(1))], counted
    )
    assert [one.name for one in series] == ["slurm", "train"]
    np.testing.assert_array_equal(series[0].values, [8.0, 8.0])
    np.testing.assert_array_equal(series[1].values, [1.0])


@given(
    st.lists(
        st.tuples(st.integers(-5 * HOUR_MS, 30 * HOUR_MS), st.integers(1, 9 * HOUR_MS)),
        min_size=1,
        max_size=8,
    )
)
def test_hours_add_up_to_the_spans(spans):
    """Partial hours count in part: the series' GPU-hours are those of the spans inside the period."""
    made = hourly_demand(
        hour(0),
        hour(24),
        [],
        [],
        [CapacitySpan("p", 2.0, T0 + start, T0 + start + length) for start, length in spans],
    )
    inside = sum(
        max(0, min(start + length, 24 * HOUR_MS) - max(start, 0)) for start, length in spans
    )
    total = sum(one.values.sum() for one in made)
    assert abs(total - 2.0 * inside / HOUR_MS) < 1e-6


def queued(readings, hours=8, now=None):
    """Eight hours of ten held GPUs with these readings (hour, GPUs of `train`) of one source."""
    series = Series("train", T0, HOUR_MS, np.full(hours, 10.0))
    at_ms = np.array([hour(0) + round(at * HOUR_MS) for at, _ in readings])
    told = QueueReadings(
        "slurm", at_ms, {"train": np.array([gpus or np.nan for _, gpus in readings])}
    )
    (made,) = with_queue([series], [told], hour(hours) if now is None else now)
    return made.values


def test_what_waits_is_added_from_its_first_reading_on():
    """Mean of the readings in an hour; a reading is kept for an hour; an empty queue is zero and no
    gap.
    """
    np.testing.assert_array_equal(
        queued([(2.0, 4), (2.5, 6), (3.2, 0), (4.1, 2), (5.1, 2), (6.1, 2), (7.1, 2)]),
        [10, 10, 15, 10, 12, 12, 12, 12],
    )


def test_a_queue_that_is_not_read_makes_demand_unknown():
    """Between two readings far apart nobody knows what waited: gaps, and neither zero nor the last
    value.
    """
    np.testing.assert_array_equal(
        queued([(0.5, 4), (6.5, 4), (7.5, 4)]), [14, *[np.nan] * 5, 14, 14]
    )


def test_a_reader_that_was_taken_away_counts_no_more():
    """After a day of silence demand is what is held again, from the last reading on."""
    np.testing.assert_array_equal(queued([(0.5, 4), (1.5, 4)], now=hour(40)), [14, 14, *[10] * 6])


def test_a_queue_of_others_changes_nothing():
    """A pool that no reading names has no queue, and no gaps when that source is silent."""
    series = Series("infer", T0, HOUR_MS, np.full(4, 3.0))
    (made,) = with_queue(
        [series], [QueueReadings("slurm", np.array([hour(1)]), {"train": np.array([5.0])})], hour(4)
    )
    np.testing.assert_array_equal(made.values, series.values)


def plainly(series, readings, now_ms):
    """With what waited, a step and a source after the other: mean of a step's readings, else the
    last one's for an hour (or a step), else nobody knows; nothing before the first, nor after the
    last of a source gone for a day.
    """
    values = []
    for place, held in enumerate(series.values):
        begin = series.start_ms + place * series.step_ms
        end = begin + series.step_ms
        for source in sorted(
            {one for one, at_ms, gpus in readings if at_ms < now_ms and series.name in gpus}
        ):
            mine = sorted(
                (at_ms, gpus.get(series.name, 0))
                for one, at_ms, gpus in readings
                if one == source and at_ms < now_ms
            )
            inside = [gpus for at_ms, gpus in mine if begin <= at_ms < end]
            before = [one for one in mine if one[0] < begin]
            if end <= mine[0][0] or (
                now_ms - mine[-1][0] > QUEUE_EXPIRED_MS and begin > mine[-1][0]
            ):
                continue
            if inside:
                held += sum(inside) / len(inside)
            elif before and end - before[-1][0] <= max(QUEUE_VALID_MS, series.step_ms):
                held += before[-1][1]
            else:
                held = np.nan
        values.append(held)
    return values


@given(
    readings=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-40, 400).map(lambda quarter: T0 + quarter * HOUR_MS // 4 + 1),
            st.dictionaries(st.sampled_from(["train", "infer"]), st.integers(0, 100)),
        ),
        max_size=60,
        unique_by=lambda one: one[:2],
    ),
    now=st.sampled_from([1, 12, 24, 30, 100]),
    step=st.sampled_from([HOUR_MS, HOUR_MS // 12]),
)
def test_what_waits_is_what_each_reading_says(readings, now, step):
    """Whole numbers, so that sums are exact in any order but for the division."""
    series = Series("train", T0, step, np.full(24 * HOUR_MS // step, 3.0))
    told = []
    for source in sorted({one for one, _, _ in readings}):
        mine = sorted((at_ms, gpus) for one, at_ms, gpus in readings if one == source)
        names = {name for _, gpus in mine for name in gpus}
        columns = {name: np.array([gpus.get(name, np.nan) for _, gpus in mine]) for name in names}
        told.append(QueueReadings(source, np.array([at_ms for at_ms, _ in mine]), columns))
    (made,) = with_queue([series], told, hour(now))
    np.testing.assert_allclose(made.values, plainly(series, readings, hour(now)), rtol=1e-12)

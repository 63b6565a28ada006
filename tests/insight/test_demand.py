"""Demand from the ledger: what was held, hour by hour, and unknown where nobody looked."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.insight.demand import HOUR_MS, HeldHour, QueueReading, Span, hourly, with_queue
from gpuledger_collector.insight.series import Series

T0 = 490_000 * HOUR_MS


def hour(number):
    return T0 + number * HOUR_MS


def held(number, gpus, seen):
    return HeldHour("train", hour(number), gpus * HOUR_MS, seen * HOUR_MS)


def test_hours_without_enough_evidence_are_unknown():
    """Of four GPUs, all seen: known. Two seen: nobody knows how many were held. None seen: a gap, never zero."""
    capacity = [Span("train", 1.0, hour(0), hour(4))] * 4
    (series,) = hourly(hour(0), hour(4), [held(0, 3, 4), held(1, 2, 2), held(3, 0, 4)], capacity, [])
    assert series.start_ms == hour(0)
    np.testing.assert_array_equal(series.values, [3.0, np.nan, np.nan, 0.0])


def test_a_series_begins_with_its_pool():
    """A pool that was bought in the third hour has no hours before it; one that left has none after."""
    capacity = [Span("train", 2.0, hour(2), hour(4))]
    (series,) = hourly(hour(0), hour(8), [held(2, 1, 2), held(3, 2, 2)], capacity, [])
    assert (series.start_ms, len(series.values)) == (hour(2), 2)


def test_counts_are_known_from_first_to_last_and_never_added_to_observed_pools():
    """Imported usage is a series of its own pool; in a pool with observed accelerators it is left out."""
    counted = [Span("slurm", 8.0, hour(1), hour(3)), Span("train", 5.0, hour(0), hour(4))]
    series = hourly(hour(0), hour(4), [held(0, 1, 1)], [Span("train", 1.0, hour(0), hour(1))], counted)
    assert [one.name for one in series] == ["slurm", "train"]
    np.testing.assert_array_equal(series[0].values, [8.0, 8.0])
    np.testing.assert_array_equal(series[1].values, [1.0])


@given(
    st.lists(st.tuples(st.integers(-5 * HOUR_MS, 30 * HOUR_MS), st.integers(1, 9 * HOUR_MS)), min_size=1, max_size=8)
)
def test_hours_add_up_to_the_spans(spans):
    """Partial hours count in part: the series' GPU-hours are those of the spans inside the period."""
    made = hourly(
        hour(0), hour(24), [], [], [Span("p", 2.0, T0 + start, T0 + start + length) for start, length in spans]
    )
    inside = sum(max(0, min(start + length, 24 * HOUR_MS) - max(start, 0)) for start, length in spans)
    total = sum(one.values.sum() for one in made)
    assert abs(total - 2.0 * inside / HOUR_MS) < 1e-6


def queued(readings, hours=8, now=None):
    """Eight hours of ten held GPUs with these readings (hour, GPUs of `train`) of one source."""
    series = Series("train", T0, HOUR_MS, np.full(hours, 10.0))
    told = [
        QueueReading("slurm", hour(0) + round(at * HOUR_MS), {"train": gpus} if gpus else {}) for at, gpus in readings
    ]
    (made,) = with_queue([series], told, hour(hours) if now is None else now)
    return made.values


def test_what_waits_is_added_from_its_first_reading_on():
    """Mean of the readings in an hour; a reading is kept for an hour; an empty queue is zero and no gap."""
    np.testing.assert_array_equal(queued([(2.0, 4), (2.5, 6), (3.2, 0), (4.1, 2), (5.1, 2), (6.1, 2), (7.1, 2)]),
                                  [10, 10, 15, 10, 12, 12, 12, 12])  # fmt: skip


def test_a_queue_that_is_not_read_makes_demand_unknown():
    """Between two readings far apart nobody knows what waited: gaps, and neither zero nor the last value."""
    np.testing.assert_array_equal(queued([(0.5, 4), (6.5, 4), (7.5, 4)]), [14, *[np.nan] * 5, 14, 14])


def test_a_reader_that_was_taken_away_counts_no_more():
    """After a day of silence demand is what is held again, from the last reading on."""
    np.testing.assert_array_equal(queued([(0.5, 4), (1.5, 4)], now=hour(40)), [14, 14, *[10] * 6])


def test_a_queue_of_others_changes_nothing():
    """A pool that no reading names has no queue, and no gaps when that source is silent."""
    series = Series("infer", T0, HOUR_MS, np.full(4, 3.0))
    (made,) = with_queue([series], [QueueReading("slurm", hour(1), {"train": 5.0})], hour(4))
    np.testing.assert_array_equal(made.values, series.values)

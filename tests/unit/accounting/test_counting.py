"""Laws of counting: increases only between two readings of one life, never from what is not known."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.counters import (
    ENDPOINT_GAP_MS,
    CounterReading,
    HourCount,
    hourly,
)
from gpuledger_collector.accounting.period import HOUR_MS

MINUTE = 60_000


def at(minute, value, started=None):
    return CounterReading(minute * MINUTE, value, started)


def count(*readings):
    return hourly(readings, ENDPOINT_GAP_MS)


def test_the_first_reading_counts_nothing():
    """What a counter showed when it was first seen was counted before anybody looked."""
    assert count(at(0, 5_000)) == []


def test_a_pair_counts_its_increase_and_covers_its_time():
    """Also an increase of nothing: that is known to be zero."""
    assert count(at(0, 10), at(1, 25), at(2, 25)) == [HourCount(0, 15, 2 * MINUTE, 0)]


def test_a_pair_over_the_hour_is_split_by_time_without_rest():
    """Ten units over 2:1 minutes are 7 and 3."""
    assert count(at(58, 0), at(61, 10)) == [
        HourCount(0, 7, 2 * MINUTE, 0),
        HourCount(HOUR_MS, 3, MINUTE, 0),
    ]


def test_a_fall_ends_a_life_and_counts_nothing_in_between():
    """What was lost with the process, and what the new one did before it was seen, are not known."""
    assert count(at(0, 100), at(1, 110), at(2, 4), at(3, 9)) == [HourCount(0, 15, 2 * MINUTE, 1)]


def test_another_start_ends_a_life_although_the_value_rose():
    """A new process can be past the old one's value before anybody looks."""
    assert count(at(0, 100, 1_000), at(1, 150, 90_000), at(2, 160, 90_001)) == [
        HourCount(0, 10, MINUTE, 1)
    ]


def test_a_long_pause_is_not_known():
    """Neither its units nor its time; readings on both sides count."""
    assert count(at(0, 0), at(1, 6), at(30, 100), at(31, 107)) == [HourCount(0, 13, 2 * MINUTE, 0)]


@given(
    st.lists(st.integers(0, 1_000), min_size=2, max_size=60),
    st.integers(1, ENDPOINT_GAP_MS),
    st.randoms(),
)
def test_hours_add_up_to_the_whole_in_any_order(steps, every_ms, chance: random.Random):
    """Without a restart the hours add up to last minus first, and cover all the time between."""
    readings, value = [], 0
    for number, step in enumerate(steps):
        value += step
        readings.append(CounterReading(number * every_ms, value))
    expected = hourly(readings, ENDPOINT_GAP_MS)
    assert sum(one.units for one in expected) == readings[-1].value - readings[0].value
    assert sum(one.covered_ms for one in expected) == readings[-1].at_ms
    assert all(0 <= one.covered_ms <= HOUR_MS for one in expected)
    chance.shuffle(readings)
    assert hourly(readings, ENDPOINT_GAP_MS) == expected

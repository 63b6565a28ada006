"""What counters of a gateway's page count: by the reading before, and by what is known of the
process that answered.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.token_counters import (
    GAP_MS,
    Increase,
    PageReading,
    SeriesReading,
    list_increases,
)

MINUTE = 60_000
OLD = -(10**9)
"""A process that began long before the page was first read."""


def counted(pages, readings):
    """Increases of a series; pages are (minute, start), readings (minute, value, start)."""
    return list_increases(
        [PageReading(minute * MINUTE, started) for minute, started in pages],
        [SeriesReading(minute * MINUTE, value, started) for minute, value, started in readings],
    )


def units(pages, readings):
    return sum(increase.units for increase in counted(pages, readings))


def test_a_reset_of_a_series_without_a_restart_of_the_process():
    """The value fell, the process is the same: it began at zero since the page was read."""
    pages = [(0, OLD), (1, OLD), (2, OLD)]
    assert counted(pages, [(0, 500, OLD), (1, 510, OLD), (2, 7, OLD)]) == [
        Increase(0, MINUTE, 10),
        Increase(MINUTE, 2 * MINUTE, 7),
    ]


def test_a_series_that_expires_and_comes_back_from_zero():
    """An hour on no page, and then back: what it has since counts, from the page before it."""
    pages = [(minute, OLD) for minute in range(70)]
    assert counted(pages, [(0, 500, OLD), (69, 7, OLD)]) == [Increase(68 * MINUTE, 69 * MINUTE, 7)]


def test_a_new_series_on_a_page_that_was_read_before_in_the_same_process():
    """It counts from zero."""
    assert counted([(0, OLD), (1, OLD)], [(1, 20, OLD)]) == [Increase(0, MINUTE, 20)]


@pytest.mark.parametrize(
    ("pages", "started"),
    [
        ([(1, OLD)], OLD),  # never read before
        ([(0, None), (1, None)], None),  # no process start on the page
        ([(0, None), (1, OLD)], OLD),  # the page before does not say
        ([(0, OLD), (30, OLD)], OLD),  # read long ago
    ],
)
def test_any_other_first_reading_counts_nothing(pages, started):
    """What is not known to have begun at zero is not counted."""
    last = pages[-1][0]
    assert counted(pages, [(last, 20, started)]) == []


def test_without_a_process_start_only_differences_count():
    """A value that fell may be another process behind the same address: it proves nothing."""
    pages = [(0, None), (1, None), (2, None), (3, None)]
    readings = [(0, 500, None), (1, 510, None), (2, 7, None), (3, 9, None)]
    assert units(pages, readings) == 12


def test_a_restart_counts_what_came_since():
    """The new process began after the page was read: all that it has counts, from its start."""
    start = MINUTE + MINUTE // 2
    assert counted([(1, OLD), (2, start)], [(1, 500, OLD), (2, 600, start)]) == [
        Increase(start, 2 * MINUTE, 600)
    ]


def test_a_process_that_just_began_counts_from_its_start_on_a_page_never_read():
    assert counted([(1, MINUTE // 2)], [(1, 9, MINUTE // 2)]) == [Increase(MINUTE // 2, MINUTE, 9)]
    long_ago = MINUTE - GAP_MS - 1
    assert counted([(1, long_ago)], [(1, 9, long_ago)]) == []


def test_two_replicas_behind_one_address_are_never_added_up():
    """Two processes that answer in turn: counting each of their values anew would bill all of it
    again and again.
    """
    other = OLD + 10 * MINUTE
    pages = [(minute, OLD if minute % 2 else other) for minute in range(10)]
    readings = [
        (minute, 1_000_000 + minute if minute % 2 else 5_000 + minute, start)
        for minute, start in pages
    ]
    assert units(pages, readings) == 0


def test_an_ha_pair_of_prometheus_counts_once():
    """Two readers of one page, at different seconds: their readings are those of one counter."""
    instants = sorted([*range(0, 60, 2), *range(1, 60, 2)])
    pages = [(minute / 4, OLD) for minute in instants]
    readings = [(minute / 4, 3 * minute, OLD) for minute in instants]
    assert units(pages, readings) == 3 * instants[-1]


def test_readers_of_one_page_in_the_wrong_order_count_once():
    """The later reader's clock is behind: its value is smaller, and nothing began anew."""
    pages = [(minute, OLD) for minute in (0, 1, 1.01, 2)]
    values = (1_000_000, 1_000_105, 1_000_100, 1_000_200)
    for start in (OLD, None):
        read = [(minute, value, start) for (minute, _), value in zip(pages, values, strict=True)]
        increases = counted([(minute, start) for minute, _ in pages], read)
        assert [increase.units for increase in increases] == [105, 95]


def test_a_series_that_began_anew_between_two_readers_counts_at_the_next_reading():
    pages = [(minute, OLD) for minute in (0, 0.01, 1, 1.01, 2)]
    values = (1_000_000, 5, 300, 301, 340)
    read = [(minute, value, OLD) for (minute, _), value in zip(pages, values, strict=True)]
    assert units(pages, read) == 340


def test_replicas_that_begin_in_one_second_are_two_processes():
    starts = (OLD, OLD + 900)
    pages = [(minute, starts[minute % 2]) for minute in range(10)]
    read = [(minute, (1_000, 900_000)[minute % 2] + minute, start) for minute, start in pages]
    assert units(pages, read) == 0


def test_a_replica_that_just_began_counts_from_zero_once():
    """It is read again after another one answered, within the time that clocks may differ."""
    start = MINUTE - 500
    pages = [(0, OLD), (1, start), (1.005, OLD), (1.01, start)]
    read = [(minute, 9 if begun == start else 700, begun) for minute, begun in pages]
    assert units(pages, read) == 9


def test_processes_at_one_address_without_a_start_are_each_compared_with_themselves():
    """Only the first change from the one to the other cannot be known."""
    values = [value + 10 * turn for turn in range(5) for value in (1_000, 40_000, 900_000)]
    pages = [(minute, None) for minute in range(len(values))]
    read = [(minute, value, None) for minute, value in enumerate(values)]
    assert units(pages, read) == 899_000 + 4 * (10 + 10)


@given(
    steps=st.lists(
        st.tuples(st.integers(6, 60), st.integers(0, 1000), st.integers(0, 9)), max_size=30
    ),
    delays=st.tuples(st.integers(0, 4_900), st.integers(0, 4_900), st.integers(0, 4_900)),
)
def test_readers_with_any_delay_count_each_token_once(steps, delays):
    """A series that begins anew once in a while, read by three readers whose instants are late by up
    to the time in which readings may be in the wrong order: never more than was asked, and all of
    it where nothing began anew.
    """
    second, value, total, began = 0, 0, 0, False
    read = [(delay, 0) for delay in delays]
    for length, tokens, event in steps:
        second += length
        if event == 0:
            began, value = True, 0
        value, total = value + tokens, total + tokens
        # The first readers read at the beginning of the step, the last one within it.
        read += [(1000 * second + delay, value) for delay in delays[:2]]
        half = value + tokens // 2
        read.append((1000 * second + 10 + delays[2], half))
        total, value = total + tokens // 2, half
    read.sort()
    instants = sorted({at_ms for at_ms, _ in read})
    values = {}
    for at_ms, each in read:
        values[at_ms] = max(each, values.get(at_ms, 0))
    increases = list_increases(
        [PageReading(at_ms, OLD) for at_ms in instants],
        [SeriesReading(at_ms, values[at_ms], OLD) for at_ms in instants],
    )
    # The first reading of all counts nothing, and is zero.
    counted = sum(increase.units for increase in increases)
    assert counted <= total
    assert began or counted == total


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 2, 5, 30]),
            st.integers(0, 1000),
            st.sampled_from(["runs", "runs", "runs", "restarts", "expires", "not read"]),
        ),
        max_size=40,
    )
)
def test_never_more_is_counted_than_was_asked(steps):
    """Whatever restarts, expires and is missed: each increase is within what the tenant asked for
    in its time, and no two of them overlap.
    """
    minute, value, total, start = 0, 0, 0, OLD
    pages, readings, asked = [], [], [(0, 0)]
    for length, tokens, event in steps:
        if event == "restarts":
            start = minute * MINUTE + MINUTE // 2
        minute += length
        if event in {"restarts", "expires"}:
            value = 0
        value, total = value + tokens, total + tokens
        asked.append((minute * MINUTE, total))
        if event != "not read":
            pages.append((minute, start))
            if value:
                readings.append((minute, value, start))
    increases = counted(pages, readings)
    # A process that is known to have begun at zero at OLD, and was first read later, is not
    # counted at all: what was asked before the first page is not in any increase.
    assert sum(increase.units for increase in increases) <= total
    ends = [increase.end_ms for increase in increases]
    assert ends == sorted(set(ends))
    for before, after in pairwise(increases):
        assert before.end_ms <= after.start_ms
    known = dict(asked)
    for increase in increases:
        most = known[increase.end_ms] - max(
            amount for at_ms, amount in asked if at_ms <= increase.start_ms
        )
        assert increase.units <= most

"""Periods: half-open, in UTC, and a clear sentence for what is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    Period,
    date_range,
    day_of,
    format_instant,
    month,
    months_of,
    parse_instant,
    parse_period,
)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z"),
        ("2026-10-01T02:00:00+02:00", "2026-10-01T00:00:00Z"),
        ("2026-10-01 00:00:00.250Z", "2026-10-01T00:00:00.250Z"),
        ("1790812800", "2026-10-01T00:00:00Z"),
        ("1790812800.5", "2026-10-01T00:00:00.500Z"),
        (" 1.7908128e9 ", "2026-10-01T00:00:00Z"),
        ("-1", "1969-12-31T23:59:59Z"),
    ],
)
def test_instants_are_rfc_3339_with_zone_or_unix_seconds(text, instant):
    """Both forms name the same instants, to the millisecond."""
    assert format_instant(parse_instant(text)) == instant


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-10-01T00:00:00", "has no zone"),
        ("yesterday", "is not an instant"),
        ("", "is not an instant"),
        ("1e99", "1900 to 2200"),
        ("2026-13-01T00:00:00Z", "is not an instant"),
        ("NaN", "is not an instant"),
        ("99999999999", "1900 to 2200"),
    ],
)
def test_what_is_no_instant_is_refused_with_the_reason(text, words):
    """A missing zone, milliseconds taken for seconds, a word: each has its sentence."""
    with pytest.raises(ValueError, match=words):
        parse_instant(text)


def test_months_and_ranges():
    """A month has its days; a range includes its first day and not its last."""
    assert len(month("2026-02").days()) == 28
    assert len(month("2028-02").days()) == 29
    assert month("2026-12").end_ms == month("2027-01").start_ms
    assert date_range("2026-10-01", "2026-11-01") == month("2026-10")
    for bad in ("2026-00", "2026-13", "2026-1", "10-2026", "x"):
        with pytest.raises(ValueError, match="is not a month"):
            month(bad)
    with pytest.raises(ValueError, match="is empty"):
        date_range("2026-10-02", "2026-10-02")
    with pytest.raises(ValueError, match="is not a date"):
        date_range("2026-10-32", "2026-11-01")
    for far in (("0001-01-01", "2026-11-01"), ("2026-10-01", "9999-12-31")):
        with pytest.raises(ValueError, match="lies outside the years 1900 to 2200"):
            date_range(*far)


@pytest.mark.parametrize("text", ["2026-Q4", "2026-q4", "2026Q4", "2026/Q4", "Q4 2026", "q4-2026", "Q4/2026"])
def test_quarters_as_people_type_them(text):
    """Each is October to December."""
    assert parse_period(text) == Period(month("2026-10").start_ms, month("2026-12").end_ms)
    assert months_of(parse_period(text)) == ["2026-10", "2026-11", "2026-12"]


def test_a_year_has_twelve_months():
    """January is the first and December the last."""
    months = months_of(parse_period("2026"))
    assert (len(months), months[0], months[-1]) == (12, "2026-01", "2026-12")


@pytest.mark.parametrize("text", ["2026-Q5", "Q4", "2026-10-01", "٢٠٢٦", "October", ""])
def test_what_is_no_period(text):
    """It is refused with the three forms."""
    with pytest.raises(ValueError, match="is not a period; write it as 2026-10, 2026-Q3 or 2026"):
        parse_period(text)


@given(st.integers(-(10**12), 10**13), st.integers(0, 40 * DAY_MS))
def test_hours_and_days_part_a_period_without_loss(start, length):
    """The parts abut, cover the period, and none crosses an hour or a day."""
    period = Period(start, start + length)
    for parts, size in ((period.hours(), HOUR_MS), (period.days(), DAY_MS)):
        assert sum(part.ms for part in parts) == period.ms
        assert all(before.end_ms == after.start_ms for before, after in pairwise(parts))
        assert all(part.start_ms // size == (part.end_ms - 1) // size for part in parts)


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 10**12), st.integers(0, 10**6))
def test_clipping_is_the_common_part(start, length, other_start, other_length):
    """What two periods have in common lies in both, and is the same from either side."""
    one, two = Period(start, start + length), Period(other_start, other_start + other_length)
    common = one.clip(two)
    assert common == two.clip(one)
    if common is not None:
        assert common.ms > 0
        assert one.start_ms <= common.start_ms
        assert common.end_ms <= two.end_ms


def test_a_day_holds_its_instants():
    """The first millisecond belongs to the day, the first of the next does not."""
    day = day_of(parse_instant("2026-10-31T23:59:59.999Z"))
    assert format_instant(day.start_ms) == "2026-10-31T00:00:00Z"
    assert day.ms == DAY_MS

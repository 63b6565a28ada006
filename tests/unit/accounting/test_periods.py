"""Periods: half-open, in UTC, and a clear sentence for what is none."""

import datetime as dt
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    Calendar,
    Period,
    Zone,
    begins_days_at_hours,
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


@given(
    st.sampled_from(
        [
            *("UTC", "Europe/Berlin", "America/New_York", "Africa/Casablanca", "Asia/Kolkata"),
            *("Asia/Kathmandu", "Australia/Lord_Howe", "Australia/Adelaide", "America/St_Johns"),
        ]
    ),
    st.integers(2000, 2100),
)
def test_a_zone_has_whole_hours_where_all_its_days_begin_at_one(name, year):
    zone = Calendar((Zone(name, ZoneInfo(name)),))
    starts = [
        zone.start_of(dt.date(year, 1, 1) + dt.timedelta(days=number)) for number in range(365)
    ]
    is_whole = all(start % HOUR_MS == 0 for start in starts)
    assert begins_days_at_hours(ZoneInfo(name), year) == is_whole


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


@pytest.mark.parametrize(
    "text", ["2026-Q4", "2026-q4", "2026Q4", "2026/Q4", "Q4 2026", "q4-2026", "Q4/2026"]
)
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
    """It is refused with the forms that there are."""
    with pytest.raises(
        ValueError, match="is not a period; write it as 2026-10, 2026-Q3, 2026 or FY2027"
    ):
        parse_period(text)


@pytest.mark.parametrize(
    ("text", "begins", "first", "last"),
    [
        ("FY2027", 7, "2026-07", "2027-06"),
        ("fy2027", 10, "2026-10", "2027-09"),
        ("FY 2027", 1, "2027-01", "2027-12"),
        ("FY2027", 2, "2026-02", "2027-01"),
        ("FY2027", 12, "2026-12", "2027-11"),
        ("FY2027-Q1", 7, "2026-07", "2026-09"),
        ("FY2027Q4", 7, "2027-04", "2027-06"),
        ("fy2027 q2", 12, "2027-03", "2027-05"),
    ],
)
def test_fiscal_years_are_named_after_the_year_in_which_they_end(text, begins, first, last):
    """A year that begins in July 2026 is FY2027; where it begins in January, it is the calendar
    year.
    """
    assert parse_period(text, begins) == Period(month(first).start_ms, month(last).end_ms)


@given(st.integers(1901, 2198), st.integers(1, 12))
def test_fiscal_years_and_their_quarters_abut(year, begins):
    """Four quarters make a year, and the next one begins where it ends."""
    whole = parse_period(f"FY{year}", begins)
    quarters = [parse_period(f"FY{year}-Q{quarter}", begins) for quarter in (1, 2, 3, 4)]
    assert [(before.end_ms, len(months_of(before))) for before in quarters] == [
        *((after.start_ms, 3) for after in quarters[1:]),
        (whole.end_ms, 3),
    ]
    assert quarters[0].start_ms == whole.start_ms
    assert parse_period(f"FY{year + 1}", begins).start_ms == whole.end_ms


def test_a_fiscal_year_that_is_not_declared_is_refused():
    """It is not taken for the calendar year."""
    with pytest.raises(ValueError, match="no fiscal year is declared"):
        parse_period("FY2027")
    with pytest.raises(ValueError, match="is not a period"):
        parse_period("FY2027-Q5", 7)
    with pytest.raises(ValueError, match="1901 to 2199"):
        parse_period("FY0001", 7)


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

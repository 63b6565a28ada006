"""What pages of spend say at the axis, and of the last day against the one before."""

from zoneinfo import ZoneInfo

import pytest

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import DAY_MS, UTC_DAYS, Calendar, Zone
from gpuledger_collector.accounting.spend_over_time import CurrencySpend, SpendOverTime
from gpuledger_collector.accounting.spend_series import (
    BILLED,
    DAY,
    NOBODY,
    Series,
    SpendRow,
    cut_range,
    make_steps,
)
from gpuledger_collector.export.spend import axis_label, say_latest_change


@pytest.mark.parametrize("name", ["Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "UTC"])
def test_hours_begin_with_the_day_of_the_zone(name):
    """In zones of half and quarter hours, too, on both days; the clocks of the last but one move by
    half an hour.
    """
    calendar = Calendar((Zone(name, ZoneInfo(name)),))
    period = calendar.date_range("2026-04-04", "2026-04-06")
    hours = cut_range(calendar, period, "hour")
    assert {day.start_ms for day in calendar.days(period)} <= {hour.start_ms for hour in hours}
    assert (hours[0].start_ms, hours[-1].end_ms) == (period.start_ms, period.end_ms)
    labels = [label for hour in hours if (label := axis_label(hour, "hour", calendar))]
    assert labels.count("00:00") == 2
    assert len(labels) >= 6


def spend_of_days(*days, rated_days=3):
    """A range of days with what vision and speech paid, and what nobody did, of each."""
    period = UTC_DAYS.date_range("2026-11-01", f"2026-11-{len(days) + 1:02}")
    buckets = cut_range(UTC_DAYS, period, DAY)
    names = [("vision", BILLED), ("speech", BILLED), ("unallocated", NOBODY)]
    series = [
        Series(name, kind, tuple(day[at] * 1_000_000 for day in days))
        for at, (name, kind) in enumerate(names)
    ]
    largest = {at: ("vision", day[0] * 1_000_000) for at, day in enumerate(days)}
    rows = [
        SpendRow(each.name, each.kind, "", 0, Money(each.total_micro, "USD")) for each in series
    ]
    spend = CurrencySpend(
        "USD", rows, series, make_steps(series, rows, largest, "USD", len(days)), None, (), None
    )
    found = SpendOverTime(
        period=period,
        by="team",
        step=DAY,
        calendar=UTC_DAYS,
        buckets=buckets,
        is_known=[True] * len(days),
        rated_ms=period.start_ms + int(rated_days * DAY_MS),
        currencies=[spend],
        unpriced_ns=0,
        has_inventory=True,
        notes=(),
        team_numbers={},
    )
    return found, spend


def test_the_last_whole_day_is_compared_with_the_one_before():
    """What is rated in part says nothing of a day, and what nobody pays is no change of owners."""
    days = (10, 20, 5), (30, 15, 9), (2, 1, 0)
    assert say_latest_change(*spend_of_days(*days, rated_days=2.5)) == (
        "On 2 Nov owners paid 45.00 USD, +15.00 against 1 Nov: vision +20.00, speech -5.00."
    )
    assert say_latest_change(*spend_of_days(*days)).startswith("On 3 Nov owners paid 3.00 USD, -42")
    assert say_latest_change(*spend_of_days(*days, rated_days=1.5)) == ""


def test_two_equal_days_are_no_change():
    """Nobody is named for it; of nothing, nothing is said."""
    assert say_latest_change(*spend_of_days((10, 20, 5), (10, 20, 9), rated_days=2)) == (
        "On 2 Nov owners paid 30.00 USD, as on 1 Nov."
    )
    assert say_latest_change(*spend_of_days((0, 0, 5), (0, 0, 9), rated_days=2)) == ""

"""What pages of spend say at the axis and of rows that nobody pays."""

from zoneinfo import ZoneInfo

import pytest

from gpuledger_collector.accounting.period import Calendar, Zone
from gpuledger_collector.accounting.spend_series import cut_range
from gpuledger_collector.export.spend import axis_label


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

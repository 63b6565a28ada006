"""Instants are milliseconds inside; what converts them rounds in one way."""

import datetime as dt
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_common.instants import to_datetime, to_ms

YEARS = st.integers(-2_208_988_800_000, 7_258_118_400_000)


@given(YEARS)
def test_an_instant_comes_back_as_it_went(at_ms):
    """A column of type timestamptz keeps microseconds, so that no millisecond is lost in it."""
    at = to_datetime(at_ms)
    assert at.tzinfo is dt.UTC
    assert to_ms(at) == at_ms


@given(YEARS, st.integers(0, 999))
def test_what_is_finer_is_rounded_down(at_ms, microseconds):
    """No instant moves into the future, before 1970 either."""
    assert to_ms(to_datetime(at_ms) + dt.timedelta(microseconds=microseconds)) == at_ms


def test_the_zone_of_an_instant_does_not_matter():
    """An hour that comes twice is told apart by its fold."""
    zone = ZoneInfo("Europe/Berlin")
    first = dt.datetime(2026, 10, 25, 2, 30, tzinfo=zone)
    assert to_ms(first) == to_ms(dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC))
    assert to_ms(first.replace(fold=1)) == to_ms(first) + 3_600_000

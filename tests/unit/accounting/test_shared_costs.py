"""Laws of shared costs, of carbon and of the days of a zone."""

import datetime as dt
from decimal import Decimal
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.carbon import Intensity, intensity_of, micrograms
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    UTC_DAYS,
    Calendar,
    Period,
    Zone,
    month,
    parse_date,
)
from gpuledger_collector.accounting.shared_costs import AMOUNT, KEYS, SharedCost, month_part, share

TEAMS = ("a", "b", "c", "")
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "America/Santiago",
    "Pacific/Apia",
    "Asia/Beirut",
    "Europe/London",
)


def keys(team: str, pool: str) -> tuple[str, ...]:
    return ("acme", team, "", "", "", "", pool)


lines = st.lists(
    st.builds(
        ChargedLine,
        st.builds(keys, st.sampled_from(TEAMS), st.sampled_from(["eu", "us"])),
        st.sampled_from(["held", "held", "held", "unallocated", "unobserved"]),
        st.sampled_from(["USD", "USD", "EUR"]),
        gpu_ns=st.integers(1, 10**16),
        cost_micro=st.integers(0, 10**12),
    ),
    max_size=30,
)
costs = st.builds(
    SharedCost,
    st.just("x"),
    st.sampled_from([AMOUNT, "unallocated", "unobserved"]),
    st.just(1),
    st.just("USD"),
    st.sampled_from(["", "eu"]),
    st.sampled_from(KEYS),
    st.sampled_from(["team", "org"]),
    st.dictionaries(st.sampled_from([*TEAMS, "acme"]), st.integers(0, 100)),
    st.sampled_from([{}, {"team": "a"}, {"org": "acme"}]),
)


@given(costs, lines, st.integers(0, 10**13))
def test_shares_add_up_to_what_is_shared(cost, given_lines, amount) -> None:
    """An amount is shared whole or stands unshared; a moved cost adds up to nothing; nobody's
    direct cost changes.
    """
    made = share(cost, given_lines, amount)
    if cost.source == AMOUNT:
        assert sum(one.micro for one in made) == amount
        assert {one.currency for one in made} <= {"USD"}
        return
    for currency in ("USD", "EUR"):
        mine = [one for one in made if one.currency == currency]
        assert sum(one.micro for one in mine) == 0
        assert all(one.micro >= 0 for one in mine if one.line.state == "held")
        assert all(-one.micro == one.line.cost_micro for one in mine if one.micro < 0)


@given(lines, st.permutations(range(4)))
def test_the_order_of_lines_changes_no_owners_share(given_lines, order) -> None:
    """What a team bears depends on what the teams had, not on how the lines came."""
    cost = SharedCost("x", AMOUNT, 1, "USD", "", "cost", "team")

    def by_team(found: list[ChargedLine]) -> dict[str, int]:
        sums: dict[str, int] = {}
        for one in share(cost, found, 1_000_003):
            team = "" if one.line is None else one.line.keys[1]
            sums[team] = sums.get(team, 0) + one.micro
        return sums

    mixed = [line for at in order for line in given_lines[at::4]]
    assert by_team(given_lines) == by_team(mixed)


@given(st.integers(0, 10**12), st.integers(1, 10**10), st.lists(st.integers(0, 10**10), max_size=8))
def test_parts_of_a_month_add_up(amount, length, cuts) -> None:
    """However a month is cut, the parts of its amount add up to it."""
    edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
    assert sum(month_part(amount, length, *pair) for pair in pairwise(edges)) == amount


def test_grams_are_energy_by_pue_by_intensity() -> None:
    """4 kWh at 300 g and a PUE of 1.25 are 1500 g; the intensity that names the pool, and began
    last, holds.
    """
    eu = Intensity("north", "eu", Decimal(300), Decimal("1.25"), dt.date(2026, 1, 1))
    newer, plain = (
        Intensity("north", "eu", Decimal(200), from_on=dt.date(2026, 6, 1)),
        Intensity("", "", Decimal(500)),
    )
    assert micrograms(4 * 3_600_000_000, eu) == 1500 * 10**6
    assert intensity_of([eu, plain, newer], "eu") == newer
    assert intensity_of([eu, plain], "us") == plain
    assert intensity_of([eu], "us") is None
    assert not newer.holds_on(dt.date(2026, 5, 31))


@pytest.mark.parametrize("name", ZONES)
def test_days_and_months_of_a_zone_leave_no_gap(name) -> None:
    """Months are whole days, days adjoin, and every day has the date that its first and its last
    instant have.
    """
    calendar = Calendar((Zone(name, ZoneInfo(name)),))
    for year in (2011, 2026):
        at_ms = calendar.start_of(dt.date(year, 1, 1))
        for number in range(1, 13):
            period = calendar.month(f"{year}-{number:02d}")
            assert period.start_ms == at_ms
            days = calendar.days(period)
            assert [day.start_ms for day in days[1:]] == [day.end_ms for day in days[:-1]]
            assert all(20 * HOUR_MS <= day.ms <= 28 * HOUR_MS for day in days)
            for day in days:
                assert calendar.day_of(day.start_ms) == calendar.day_of(day.end_ms - 1) == day
                assert calendar.date_of(day.start_ms) == calendar.date_of(day.end_ms - 1)
            at_ms = period.end_ms


@given(
    st.sampled_from(ZONES), st.sampled_from(ZONES), st.integers(1, 12), st.integers(0, 400 * DAY_MS)
)
def test_a_change_of_zone_loses_no_instant(one, other, number, after_ms) -> None:
    """Every instant has one day before, at and after the change; months adjoin over it."""
    before = Calendar((Zone(one, ZoneInfo(one)),))
    change_ms = before.month(f"2026-{number:02d}").start_ms
    calendar = Calendar(
        (*before.zones, Zone(other, ZoneInfo(other), change_ms, before.date_of(change_ms)))
    )
    at_ms = change_ms - 100 * DAY_MS + after_ms
    day = calendar.day_of(at_ms)
    assert day.start_ms <= at_ms < day.end_ms
    assert calendar.day_of(day.end_ms).start_ms == day.end_ms
    assert calendar.day_of(change_ms).start_ms == change_ms
    month_of = calendar.month(calendar.month_of(at_ms))
    assert month_of.start_ms <= at_ms < month_of.end_ms


@given(st.integers(0, 5_000_000_000_000))
def test_the_days_of_utc_are_as_they_were(at_ms) -> None:
    """With no zone declared every answer is that of plain UTC arithmetic."""
    assert UTC_DAYS.day_of(at_ms) == Period(at_ms - at_ms % DAY_MS, at_ms - at_ms % DAY_MS + DAY_MS)
    assert UTC_DAYS.month(UTC_DAYS.month_of(at_ms)) == month(UTC_DAYS.month_of(at_ms))
    span = Period(at_ms, at_ms + 3 * DAY_MS + 1)
    assert UTC_DAYS.days(span) == span.days()


def test_new_york_has_743_hours_in_march_and_721_in_november() -> None:
    """The figures of the FinOps reference; a half-hour midnight cuts an hour, a whole one does not."""
    york = Calendar((Zone("America/New_York", ZoneInfo("America/New_York")),))
    assert (york.month("2026-03").ms, york.month("2026-11").ms) == (743 * HOUR_MS, 721 * HOUR_MS)
    span = Period(parse_date("2026-03-01"), parse_date("2026-03-03"))
    assert york.cuts(span) == []
    india = Calendar((Zone("Asia/Kolkata", ZoneInfo("Asia/Kolkata")),))
    assert [at % DAY_MS / HOUR_MS for at in india.cuts(span)] == [18.5, 18.5]

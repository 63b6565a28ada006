"""Days of the boards are the ledger's: in every zone, on every day of a year, to the millisecond."""

import datetime as dt

import psycopg
import pytest

from dashboards import sql
from fakes.grafana import Range, expanded
from fakes.postgres import fresh_database
from gpuledger_collector.accounting.period import Calendar, Zone
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.server import migrate

YEAR = 2024
NAMES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Havana",
    "Africa/Cairo",
    "America/Santiago",
    "Asia/Beirut",
    "Asia/Kathmandu",
)


@pytest.fixture(scope="module")
def connection(postgres):
    with fresh_database(postgres) as dsn:
        migrate.upgrade(dsn)
        with psycopg.connect(dsn, autocommit=True) as opened:
            yield opened


@pytest.fixture(params=NAMES)
def calendar(connection, request):
    """The calendar of a zone that is the billing zone meanwhile."""
    connection.execute("DELETE FROM billing_zone")
    connection.execute(
        "INSERT INTO billing_zone (zone, from_ms, recorded_at) VALUES (%s, 0, now())",
        (request.param,),
    )
    return Calendar((Zone(request.param, zones.zone_of(request.param)),))


def test_days_begin_and_end_as_in_the_ledger(connection, calendar):
    """Their first instants, their dates, and when their proof is whole: not a millisecond sooner."""
    days = [dt.date(YEAR, 1, 1) + dt.timedelta(days=at) for at in range(366)]
    starts = [calendar.start_of(day) for day in (*days, days[-1] + dt.timedelta(days=1))]
    found = connection.execute(
        f"SELECT day, {sql.local('day::timestamp')} FROM unnest(%s::date[]) day ORDER BY 1", (days,)
    ).fetchall()
    assert found == list(zip(days, starts, strict=False))
    rows = connection.execute(
        f"SELECT {sql.date('p.day_ms')}, {sql.whole('p')}, early.whole FROM unnest(%s::bigint[],"
        f" %s::bigint[]) p (day_ms, until_ms), LATERAL (SELECT {sql.whole('e')} AS whole FROM"
        " (SELECT p.day_ms, p.until_ms - 1) e (day_ms, until_ms)) early ORDER BY p.day_ms",
        (starts[:-1], starts[1:]),
    ).fetchall()
    assert rows == [(day, True, False) for day in days]


def test_a_range_of_dates_is_those_days(connection, calendar):
    """From the 1st to the 1st of each month on the board's clock: every day of the month, and no
    other.
    """
    for month in range(1, 13):
        first, last = (
            dt.datetime(YEAR + at // 12, at % 12 + 1, 1, tzinfo=dt.UTC) for at in (month - 1, month)
        )
        wanted = calendar.month(f"{YEAR}-{month:02}")
        days = [day.start_ms for day in calendar.days(wanted)]
        near = [calendar.days_before(days[0], 1), *days, wanted.end_ms]
        query = expanded(
            f"SELECT day_ms FROM unnest(%s::bigint[]) l (day_ms) WHERE {sql.DAYS}",
            Range(first, last),
            60,
        )
        assert [row[0] for row in connection.execute(query, (near,))] == days

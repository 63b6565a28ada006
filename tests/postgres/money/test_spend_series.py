"""Spend over time: every bar adds up to its row, and the rows to the chargeback of the same range."""

from collections import defaultdict
from datetime import date, timedelta
from decimal import Decimal

import psycopg
import pytest

from fakes.fleet import NOW_MS
from fakes.rich_ledger import CLOSED, OPEN, rich
from fakes.surfaces import MONTHS, ledger
from gpuledger_collector.accounting import spend_series
from gpuledger_collector.accounting.chargeback import cost_by_payer
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.spend_series import GROUPINGS
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.budget_status import statuses
from gpuledger_collector.services.chargeback import read_chargeback
from gpuledger_collector.services.spend_forecasts import forecast_owners
from gpuledger_collector.services.spend_series import list_spend, read_flow, read_spend
from gpuledger_collector.storage.database import Database

__all__ = ["ledger", "rich"]
pytestmark = pytest.mark.slow
RANGES = {
    "hours": ("2025-10-02", "2025-10-04"),
    "the longer Sunday": ("2025-10-26", "2025-10-27"),
    "days": ("2025-10-01", "2025-11-10"),
    "weeks": ("2025-09-15", "2026-01-01"),
    "months": ("2025-01-01", "2026-12-01"),
}
VISION = {"team": "vision"}


@pytest.fixture
def ask(rich, dsn):
    """Asks a service on the rich ledger in a period, by its name or its dates."""
    database = Database(dsn)

    def ask(service, period, *arguments):
        with database.transaction(read_only=True) as connection:
            calendar = calendar_of(connection)
            by_name = isinstance(period, str)
            found = calendar.period(period) if by_name else calendar.date_range(*period)
            return service(connection, found, *arguments)

    return ask


def minor_of(report, currency):
    """The total of a chargeback, shares included."""
    (total,) = [total for total in report.totals if total.currency == currency]
    return total.cost_minor, (total.cost_minor or 0) + (total.shared_minor or 0)


@pytest.mark.parametrize("period", [*MONTHS, *RANGES.values()], ids=[*MONTHS, *RANGES])
def test_bars_rows_and_chargeback_are_one_number(ask, period):
    """To the micro-unit between bars and rows; to the minor unit between rows and chargeback; the
    file has the same.
    """
    for by in GROUPINGS:
        for owner in (None, VISION):
            compare(ask, period, by, owner)


def compare(ask, period, by, owner):
    """The series, the rows and the file of a range with its chargeback."""
    found = ask(read_spend, period, by, NOW_MS, owner)
    dimension = "team" if by == "state" else by
    report = ask(read_chargeback, period, (dimension,), NOW_MS, owner).report
    assert {spend.currency for spend in found.currencies} == {
        total.currency for total in report.totals if total.currency
    }
    cells = ask(list_spend, period, by, NOW_MS, owner)
    for spend in found.currencies:
        rows = spend.rows
        assert (
            sum(row.cost.minor for row in rows),
            sum(row.total.minor for row in rows),
        ) == minor_of(report, spend.currency)
        drawn = defaultdict(int)
        for series in spend.series:
            drawn[series.kind] += series.total_micro
            assert len(series.micros) == len(found.buckets)
        drawn["billed"] += drawn.pop("rest", 0)
        printed = defaultdict(int)
        for row in rows:
            printed[row.kind] += row.cost.micro
        assert {kind: micro for kind, micro in drawn.items() if micro} == {
            kind: micro for kind, micro in printed.items() if micro
        }
        compare_steps(found, spend, cells)
        filed = defaultdict(lambda: [0, 0])
        for cell in cells:
            if cell.cost.currency == spend.currency:
                filed[cell.name, cell.kind][0] += cell.cost.minor
                filed[cell.name, cell.kind][1] += cell.cost.micro
        assert {
            (row.name, row.kind): [row.cost.minor, row.cost.micro] for row in rows if row.cost.micro
        } == {key: sums for key, sums in filed.items() if any(sums)}


def compare_steps(found, spend, cells):
    """What each bucket cost adds up to the rows, and who paid most of it is told by the file."""
    for kind, name in (
        ("billed", "billed"),
        ("nobody", "nobody"),
        ("correction", "corrections"),
    ):
        own = [row.cost for row in spend.rows if row.kind == kind]
        steps = [getattr(step, name) for step in spend.steps]
        assert sum(step.minor for step in steps) == sum(cost.minor for cost in own), kind
        assert sum(step.micro for step in steps) == sum(cost.micro for cost in own), kind
    paid = defaultdict(dict)
    for cell in cells:
        if cell.cost.currency == spend.currency and cell.kind == "billed" and cell.cost.micro > 0:
            paid[cell.bucket.start_ms][cell.name] = cell.cost.micro
    for bucket, step in zip(found.buckets, spend.steps, strict=True):
        own = paid.get(bucket.start_ms, {})
        assert (step.largest_cost.micro, step.largest is None) == (
            max(own.values(), default=0),
            not own,
        )
        assert not own or own[step.largest] == step.largest_cost.micro


def test_who_paid_most_of_a_day_need_not_be_large(ask, monkeypatch):
    """A group that has no series of its own is named where it paid most."""
    plain = [spend.steps for spend in ask(read_spend, OPEN, "team", NOW_MS).currencies]
    assert len({step.largest for steps in plain for step in steps} - {None}) > 1
    monkeypatch.setattr(spend_series, "MOST_SERIES", 0)
    found = ask(read_spend, OPEN, "team", NOW_MS)
    assert {each.kind for each in found.currencies[-1].series} & {"rest"}
    assert [spend.steps for spend in found.currencies] == plain


def test_a_closed_month_is_what_was_sealed(ask, dsn):
    """Its rows are its invoices, those of what nobody pays among them."""
    with psycopg.connect(dsn) as connection:
        invoiced = dict(
            connection.execute(
                "SELECT currency, sum(minor)::bigint FROM invoice WHERE period_start_ms ="
                " (SELECT start_ms FROM billing_period WHERE name = %s) GROUP BY 1",
                (CLOSED,),
            ).fetchall()
        )
    assert invoiced
    for by in GROUPINGS:
        assert {
            spend.currency: sum(row.total.minor for row in spend.rows)
            for spend in ask(read_spend, CLOSED, by, NOW_MS).currencies
        } == invoiced, by


def test_corrections_are_a_series_of_their_own(ask):
    """In the month in which they are booked, on the day on which they are."""
    for spend in ask(read_spend, CLOSED, "team", NOW_MS).currencies:
        assert not [row for row in spend.rows if row.kind == "correction"]
    drawn, listed, names = 0, 0, set()
    for spend in ask(read_spend, OPEN, "team", NOW_MS).currencies:
        rows = [row for row in spend.rows if row.kind == "correction"]
        drawn += sum(series.total_micro for series in spend.series if series.kind == "correction")
        listed += sum(row.cost.micro for row in rows)
        names |= {row.name for row in rows}
        assert sum(row.cost.micro for row in rows) == sum(
            series.total_micro for series in spend.series if series.kind == "correction"
        )
    # What owners pay of them and what nobody does are two rows.
    assert names == {f"corrections of {CLOSED}", f"corrections of {CLOSED} that nobody pays"}
    assert drawn == listed != 0


def test_hours_add_up_to_their_days(ask):
    """Also on the day of twenty-five hours."""
    for start, end, hours in (
        ("2025-10-02", "2025-10-04", 48),
        ("2025-10-26", "2025-10-27", 25),
    ):
        found = ask(read_spend, (start, end), "team", NOW_MS)
        assert (found.step, len(found.buckets)) == ("hour", hours)
        used = [series.micros for spend in found.currencies for series in spend.series]
        assert any(sum(micro != 0 for micro in micros if micro is not None) > 2 for micros in used)


def test_days_that_are_not_rated_are_not_zero(ask):
    """A bucket without a rated day is unknown in every series."""
    found = ask(read_spend, ("2025-09-25", "2025-10-05"), "team", NOW_MS)
    assert found.is_known[:6] == [False] * 6
    assert any(found.is_known)
    for spend in found.currencies:
        for series in spend.series:
            assert [micro is None for micro in series.micros] == [
                not known for known in found.is_known
            ]


def test_a_viewer_is_told_its_own_part(ask):
    """Row by row that of the fleet's chargeback, and of no other team."""
    whole = {
        (row.name, spend.currency): row.total.minor
        for spend in ask(read_spend, OPEN, "team", NOW_MS).currencies
        for row in spend.rows
    }
    own = {
        (row.name, spend.currency): row.total.minor
        for spend in ask(read_spend, OPEN, "team", NOW_MS, VISION).currencies
        for row in spend.rows
        if row.kind == "billed"
    }
    assert own == {key: minor for key, minor in whole.items() if key[0] == "vision"}
    for by in GROUPINGS:
        for spend in ask(read_spend, OPEN, by, NOW_MS, VISION).currencies:
            assert {row.kind for row in spend.rows} <= {"billed", "correction"}


def test_the_forecast_is_that_of_budgets(ask, rich, run, dsn, written):
    """One name, one number: of a team as its budget and `forecast spend` say it."""
    now_ms = NOW_MS
    with Database(dsn).transaction(read_only=True) as connection:
        month = calendar_of(connection).month(OPEN)
        ahead = forecast_owners(connection, "team", ["vision"], month, now_ms)["vision"]
    found = ask(read_spend, OPEN, "team", now_ms, VISION)
    assert ahead
    for spend in found.currencies:
        if spend.currency in ahead:
            assert spend.standing.ahead.middle_micro == ahead[spend.currency].middle_micro
            assert spend.standing.ahead.high_micro == ahead[spend.currency].high_micro
    budget = (
        '[[budget]]\nname = "b"\nteam = "vision"\nperiod = "month"\namount = 90\ncurrency = "USD"\n'
    )
    assert run("apply", written("budget.toml", budget))[0] == 0
    (dollars,) = [
        spend
        for spend in ask(read_spend, OPEN, "model", now_ms, VISION).currencies
        if spend.currency == "USD"
    ]
    with Database(dsn).transaction(read_only=True) as connection:
        (status,) = statuses(connection, now_ms)
    (own,) = dollars.budgets
    assert (own.spend, own.ahead, own.period) == (status.spend, status.ahead, status.period)
    assert dollars.standing.spend.micro == status.spend.micro


@pytest.mark.parametrize("owner", [None, VISION], ids=["fleet", "vision"])
@pytest.mark.parametrize("month", MONTHS)
def test_the_flow_is_the_bill(ask, month, owner):
    """Its uses add up to capacity, its ends to what teams are billed and to what nobody pays."""
    report = ask(read_chargeback, month, ("team",), NOW_MS, owner).report
    flows = ask(read_flow, month, NOW_MS, owner)
    assert flows
    for flow in flows:
        rows = [row for row in report.rows if row.currency == flow.currency]
        (total,) = [total for total in report.totals if total.currency == flow.currency]
        paid = cost_by_payer(report, total)
        assert (flow.capacity.minor, flow.billed.minor, flow.unpaid.minor) == (
            paid.whole.minor,
            paid.billed.minor,
            paid.not_billed.minor,
        )
        assert flow.flowing.minor == sum(use.cost.minor for use in flow.uses)
        for use in flow.uses:
            assert not use.parts or use.cost.minor == sum(part.cost.minor for part in use.parts)
        assert sum(part.cost.minor for part in flow.teams) == sum(
            use.cost.minor for use in flow.uses if use.parts
        )
        direct = [row for row in rows if not row.correction_of]
        assert abs(
            flow.flowing.minor
            - sum((row.cost_minor or 0) - (row.adjusted_minor or 0) for row in direct)
        ) <= len(direct)


def test_amounts_are_those_of_the_command(ledger, ask):
    """The chargeback as people print it."""
    bill = ledger.bill(OPEN)
    for spend in ask(read_spend, OPEN, "team", NOW_MS).currencies:
        assert sum(Decimal(row.total.plain()) for row in spend.rows) == sum(
            Decimal(row["cost_total"]) for row in bill["rows"] if row["currency"] == spend.currency
        )
        assert sum(row.cost.micro for row in spend.rows) == sum(
            row["cost_micro"] for row in bill["rows"] if row["currency"] == spend.currency
        )


def test_a_correction_stands_in_the_hour_in_which_it_was_found(ask, dsn):
    """And not a little of it in each hour of the day that bills it."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT DISTINCT booked_day_ms, recorded_ms FROM correction WHERE cost_micro <> 0"
        ).fetchall()
    (booked_ms,) = {booked for booked, _ in rows}
    assert all(booked_ms <= recorded < booked_ms + DAY_MS for _, recorded in rows)
    day = date.fromtimestamp(booked_ms / 1000 + 43_200)
    found = ask(read_spend, (str(day), str(day + timedelta(days=1))), "team", NOW_MS)
    in_hours = {
        at
        for at, hour in enumerate(found.buckets)
        if any(hour.start_ms <= recorded < hour.end_ms for _, recorded in rows)
    }
    drawn = [
        {at for at, micro in enumerate(series.micros) if micro}
        for spend in found.currencies
        for series in spend.series
        if series.kind == "correction"
    ]
    assert drawn
    assert all(hours <= in_hours for hours in drawn)

"""Spend over time, and where each dollar went: the chargeback of a range cut into buckets, with its
budgets, its forecast and its flow, as a viewer may see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.budget_status import Status
from gpuledger_collector.accounting.budgets import RANGE, Budget
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, Report
from gpuledger_collector.accounting.cost_flow import CostFlow, make_flow
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.reserved_names import unescape_name
from gpuledger_collector.accounting.spend_over_time import CurrencySpend, SpendOverTime
from gpuledger_collector.accounting.spend_series import (
    GROUPINGS,
    HOUR,
    STATE,
    SpendAmount,
    SpendCell,
    SpendRow,
    choose_step,
    cut_range,
    largest_groups,
    largest_in_buckets,
    list_amounts,
    make_series,
    make_steps,
    rows_by_state,
    rows_of_report,
    spread_over_hours,
    weight_key,
)
from gpuledger_collector.services.budget_status import standings_of
from gpuledger_collector.services.chargeback import (
    Bill,
    read_bill,
    read_chargeback,
    visible_lines,
)
from gpuledger_collector.services.team_numbers import number_teams
from gpuledger_collector.storage.billing import budgets, reports, spend
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

Owner = Mapping[str, str] | None


def read_spend(
    connection: Connection, period: Period, by: str, now_ms: int, owner: Owner = None
) -> SpendOverTime:
    """Read the spend of a range by a dimension, what an owner (None: everybody) pays of it.

    Raises ValueError for a dimension that is none, and for a range that is too long.
    """
    frame = _Frame.read(connection, period, by, owner)
    bill = read_bill(connection, period, ("team",), now_ms, owner)
    currencies, rows = _rows(frame, bill, now_ms)
    names = {name for own in rows.values() for name in largest_groups(own)}
    cells = _cells(frame, None if by == STATE else sorted(_stored_name(name, by) for name in names))
    standings = _standings(frame, currencies, now_ms)
    return SpendOverTime(
        period=period,
        by=by,
        step=frame.step,
        calendar=frame.calendar,
        buckets=frame.buckets,
        is_known=frame.is_known,
        rated_ms=frame.rated_ms,
        currencies=[
            _currency_spend(frame, bill.report, currency, rows[currency], cells, standings, now_ms)
            for currency in currencies
        ],
        unpriced_ns=sum(row.gpu_ns for row in bill.report.rows if row.currency is None),
        # Whoever sees one owner's part is told of no unallocated time at all.
        has_inventory=owner is not None or bill.has_inventory,
        notes=bill.notes,
        team_numbers=number_teams(connection),
    )


def list_spend(
    connection: Connection, period: Period, by: str, now_ms: int, owner: Owner = None
) -> list[SpendAmount]:
    """List what every group cost in every bucket; the amounts of a row add up to its row of the
    chargeback. Raises ValueError as `read_spend`.
    """
    frame = _Frame.read(connection, period, by, owner)
    bill = read_bill(connection, period, ("team",), now_ms, owner)
    currencies, rows = _rows(frame, bill, now_ms)
    cells = _cells(frame, None)
    return [
        amount
        for currency in currencies
        for amount in list_amounts(cells, by, currency, rows[currency], frame.buckets)
    ]


def read_flow(
    connection: Connection, period: Period, now_ms: int, owner: Owner = None
) -> list[CostFlow]:
    """Where each dollar of capacity went in a period, by currency."""
    report = read_chargeback(connection, period, ("team",), now_ms, owner).report
    flows = (make_flow(report, currency) for currency in _currencies(report))
    return [flow for flow in flows if flow is not None]


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the parts of an answer have in common."""

    connection: Connection
    period: Period
    by: str
    owner: Owner
    calendar: Calendar
    step: str
    buckets: Sequence[Period]
    is_known: Sequence[bool]
    rated_ms: int | None

    @classmethod
    def read(cls, connection: Connection, period: Period, by: str, owner: Owner) -> _Frame:
        if by not in GROUPINGS:
            raise ValueError(f"by: {by!r} is none of {', '.join(GROUPINGS)}")
        calendar = zones.calendar(connection)
        step = choose_step(calendar, period)
        buckets = cut_range(calendar, period, step)
        checks = reports.conservation_checks(connection, period)
        rated = [Period(check.day_ms, max(check.until_ms, check.day_ms)) for check in checks]
        is_known = [any(day.clip(bucket) for day in rated) for bucket in buckets]
        rated_ms = max((day.end_ms for day in rated), default=None)
        return cls(connection, period, by, owner, calendar, step, buckets, is_known, rated_ms)

    @property
    def days(self) -> Sequence[Period]:
        """The days of the range."""
        return self.calendar.days(self.period)


def _currencies(report: Report) -> list[str]:
    return [total.currency for total in report.totals if total.currency is not None]


def _rows(
    frame: _Frame, bill: Bill, now_ms: int
) -> tuple[Sequence[str], Mapping[str, Sequence[SpendRow]]]:
    """The currencies of a bill, and its rows by the dimension."""
    currencies = _currencies(bill.report)
    if frame.by == STATE:
        lines = visible_lines(
            frame.connection, frame.period, (), frame.owner, separate_corrections=True
        )
        return currencies, {name: rows_by_state(bill.report, lines, name) for name in currencies}
    report = bill.report
    if frame.by != "team":
        report = read_chargeback(
            frame.connection, frame.period, (frame.by,), now_ms, frame.owner
        ).report
    return currencies, {name: rows_of_report(report, name) for name in currencies}


def _currency_spend(
    frame: _Frame,
    report: Report,
    currency: str,
    rows: Sequence[SpendRow],
    cells: Sequence[SpendCell],
    standings: Mapping[str, Status],
    now_ms: int,
) -> CurrencySpend:
    series = make_series(cells, frame.by, currency, rows, frame.is_known)
    largest = largest_in_buckets(cells, frame.by, currency)
    return CurrencySpend(
        currency=currency,
        rows=rows,
        series=series,
        steps=make_steps(series, rows, largest, currency, len(frame.buckets)),
        standing=standings[currency],
        budgets=_budgets(frame, currency, now_ms),
        flow=make_flow(report, currency),
    )


def _stored_name(shown: str, by: str) -> str:
    """The name as the ledger has it of a row of the chargeback."""
    if by in LEVELS:
        return "" if shown == UNATTRIBUTED else shown
    return unescape_name(shown)


def _cells(frame: _Frame, names: Sequence[str] | None) -> list[SpendCell]:
    """What each bucket cost; hours are the days spread by what was charged in each."""
    asked = (frame.connection, frame.by)
    with as_viewer(frame.connection, frame.owner):
        if frame.step != HOUR:
            return spend.spend_by_bucket(*asked, frame.buckets, names, frame.owner)
        # Who paid most of a day need not have paid most of each of its hours.
        days = spend.spend_by_bucket(*asked, frame.days, None, frame.owner)
    # Hours of usage are nobody's to read but the collector's: they only say how its days are spread.
    rated_ms = frame.period.start_ms if frame.rated_ms is None else frame.rated_ms
    hours = spend.spend_by_hour(*asked, frame.days, frame.buckets, frame.owner, rated_ms)
    weights: dict[tuple[str, ...], dict[int, int]] = {}
    for cell in hours:
        weights.setdefault(weight_key(cell), {})[cell.bucket] = cell.cost_micro
    hours_of_day = [
        [at for at, hour in enumerate(frame.buckets) if day.start_ms <= hour.start_ms < day.end_ms]
        for day in frame.days
    ]
    return spread_over_hours(days, weights, hours_of_day)


def _standings(frame: _Frame, currencies: Sequence[str], now_ms: int) -> Mapping[str, Status]:
    """What the owner spent of its range in each currency, and where that ends: as of a budget."""
    wanted = [
        # Numbers of budgets that there are begin with one; the amount does not matter.
        (
            Budget(
                -number, "", frame.owner or {}, RANGE, None, 1, currency, calendar=frame.calendar
            ),
            frame.period,
        )
        for number, currency in enumerate(currencies, start=1)
    ]
    with as_viewer(frame.connection, frame.owner):
        found = standings_of(frame.connection, wanted, now_ms)
    return dict(zip(currencies, found, strict=True))


def _budgets(frame: _Frame, currency: str, now_ms: int) -> list[Status]:
    """The budgets of this owner in a currency, in their period at the end of the range, or now."""
    at_ms = max(min(now_ms, frame.period.end_ms - 1), frame.period.start_ms)
    with as_viewer(frame.connection, frame.owner):
        wanted = [
            (budget, budget.period_at(at_ms))
            for budget in budgets.current(frame.connection)
            if dict(budget.owner) == dict(frame.owner or {})
            and budget.is_money
            and budget.currency == currency
        ]
        touching = [
            (budget, period)
            for budget, period in wanted
            if period.start_ms <= now_ms and period.clip(frame.period) is not None
        ]
        return standings_of(frame.connection, touching, min(now_ms, frame.period.end_ms))

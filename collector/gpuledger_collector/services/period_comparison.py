"""By how much spending changed between two periods, and what is recorded near the change, as a
viewer may see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.period_comparison import (
    BillChange,
    BilledCorrection,
    Condition,
    PeriodComparison,
    compare_lines,
    sum_corrections,
    with_model,
)
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.rate_changes import PRICE, list_dated_rates
from gpuledger_collector.accounting.statement import (
    compared_windows,
    days_left_out,
    month_before,
)
from gpuledger_collector.export.statement import is_owner
from gpuledger_collector.insight.findings import NamedFinding
from gpuledger_collector.services.chargeback import visible_lines
from gpuledger_collector.services.findings import Viewer, list_findings
from gpuledger_collector.storage.billing import prices, reports
from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """What is recorded in two periods; that it caused a change is not claimed."""

    anomalies: Sequence[NamedFinding]
    corrections: Sequence[BilledCorrection]
    prices: Sequence[Price]


def choose_periods(
    connection: Connection, calendar: Calendar, period: Period, now_ms: int
) -> tuple[Period, Period] | None:
    """What a period is compared with unless somebody says otherwise, and the days of it that are;
    None: nothing.

    Of an unfinished period its whole days: with the days to come it would always look cheaper. A
    month is compared as its statements are.
    """
    if calendar.month_named(period) is not None:
        before = month_before(period, calendar)
        past = reports.conservation_checks(connection, before)
        rated = frozenset(check.day_ms for check in past)
        return compared_windows(period, _known_ms(connection, period), rated, calendar)
    today = calendar.day_of(now_ms).start_ms
    end_ms = today if period.start_ms < today < period.end_ms else period.end_ms
    after = Period(period.start_ms, end_ms)
    first_ms = calendar.days_before(after.start_ms, len(calendar.days(after)))
    return Period(first_ms, after.start_ms), after


def say_days_left_out(
    connection: Connection, compared: PeriodComparison, asked: Period, calendar: Calendar
) -> str:
    """Say why fewer whole days are compared than were asked for; empty where all of them are."""
    known_ms = _known_ms(connection, asked)
    return days_left_out(compared.before, compared.after, asked, known_ms, calendar)


def compare_periods(
    connection: Connection,
    spans: tuple[Period, Period],
    by: tuple[str, ...],
    condition: Condition,
    viewer: Viewer,
    *,
    with_rates: bool = True,
) -> PeriodComparison:
    """Compare the direct cost of two periods by dimensions, of groups that meet a condition; where a
    rate changed meanwhile, with what that did unless nobody asks (`with_rates`).
    """
    both = Period(min(span.start_ms for span in spans), max(span.end_ms for span in spans))
    # Lines by price are read charge by charge, which the ledgers of days and months spare.
    is_by_price = with_rates and prices.has_change(connection, both)
    book = prices.in_force_during(connection, both) if is_by_price else None
    lines_by = with_model(by) if book is None else (*with_model(by), PRICE)
    before, after = (visible_lines(connection, span, lines_by, viewer.owner) for span in spans)
    return compare_lines(spans, (before, after), by, condition, book)


def read_bill_change(
    connection: Connection,
    calendar: Calendar,
    period: Period,
    now_ms: int,
    viewer: Viewer,
    shown: Viewer,
) -> BillChange | None:
    """Compare what owners pay in a period with the one before, as statements do; None where some
    day of either is not rated.
    """
    spans = choose_periods(connection, calendar, period, now_ms)
    if spans is None or not all(_is_rated(connection, calendar, span) for span in spans):
        return None
    compared = compare_periods(
        connection, spans, ("team",), lambda keys, _by: is_owner(keys[0]), shown, with_rates=False
    )
    # Rates of the whole period: where the ledger is young, fewer days of it are compared.
    both = Period(spans[0].start_ms, max(spans[1].end_ms, min(period.end_ms, now_ms)))
    book = prices.current(connection) if viewer.owner is None else []
    return BillChange(compared, list_dated_rates(book, both))


def _is_rated(connection: Connection, calendar: Calendar, span: Period) -> bool:
    """Whether every day of a span is rated to its end."""
    whole = [
        check
        for check in reports.conservation_checks(connection, span)
        if check.until_ms >= calendar.day_of(check.day_ms).end_ms
    ]
    return 0 < len(whole) == len(calendar.days(span))


def list_events(
    connection: Connection,
    compared: PeriodComparison,
    by: tuple[str, ...],
    condition: Condition,
    viewer: Viewer,
) -> RecordedEvents:
    """List what is recorded in both periods: anomalies, corrections of groups that meet a
    condition, and prices that take effect.
    """
    end_ms = max(compared.after.end_ms, compared.before.end_ms)
    both = Period(compared.before.start_ms, end_ms)
    lines = visible_lines(connection, compared.after, by, viewer.owner, separate_corrections=True)
    return RecordedEvents(
        anomalies=list_findings(connection, "anomaly", both, viewer).items,
        corrections=sum_corrections(lines, by, condition),
        # The price book is the fleet's: what a viewer pays because of it is in `by_price`.
        prices=[
            price
            for price in (prices.current(connection) if viewer.owner is None else ())
            if both.start_ms < price.effective_from_ms < both.end_ms
        ],
    )


def _known_ms(connection: Connection, period: Period) -> int:
    checks = reports.conservation_checks(connection, period)
    return max((check.until_ms for check in checks), default=0)

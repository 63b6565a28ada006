"""By how much spending changed between two periods, and what is recorded near the change, as a
viewer may see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.period_comparison import (
    BilledCorrection,
    Condition,
    PeriodComparison,
    compare_lines,
    sum_corrections,
    with_model,
)
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.statement import (
    compared_windows,
    days_left_out,
    month_before,
)
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
) -> PeriodComparison:
    """Compare the direct cost of two periods by dimensions, of groups that meet a condition."""
    before, after = (
        visible_lines(connection, span, with_model(by), viewer.owner) for span in spans
    )
    return compare_lines(spans, (before, after), by, condition)


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

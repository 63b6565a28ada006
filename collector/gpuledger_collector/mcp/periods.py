"""The periods that tools are asked about, and what the ledger knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.month_proof import Standing
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period, format_instant
from gpuledger_collector.accounting.quantity import percent_text
from gpuledger_collector.accounting.rated_period import RatedPeriod
from gpuledger_collector.export.cells import instant_text
from gpuledger_collector.mcp.answers import Coverage, Proof, ProofState, Seal, Span, instant
from gpuledger_common.plurals import plural

MAX_DAYS = 400
MAX_SEALS = 14
NAMED = ("today", "yesterday", "this-month", "last-month", "last-7-days", "last-30-days")
EXAMPLES = f"{', '.join(NAMED)}, 2026-10, 2026-Q3, 2026 or FY2027"


def resolve(calendar: Calendar, now_ms: int, text: str, start: str, end: str) -> Period:
    """The period of a name, month, quarter, year or fiscal year, or from a day to a day; none of
    them: this month.

    Raises ValueError with a sentence that names the parameter.
    """
    if bool(start) != bool(end):
        raise ValueError(
            "start and end: give both, as 2026-10-01 and 2026-11-01 (end is not included)"
        )
    if text and start:
        raise ValueError("period, start and end: give period alone, or start with end")
    if start:
        period = calendar.date_range(start, end)
    elif text and text not in NAMED:
        try:
            period = calendar.period(text)
        except ValueError as error:
            raise ValueError(f"period: {error}; or one of {', '.join(NAMED)}") from None
    else:
        period = _named_period(calendar, now_ms, text or "this-month")
    # An hour more than the days have, for days of 25 hours.
    if period.ms > MAX_DAYS * DAY_MS + DAY_MS // 24:
        raise ValueError(f"period, start and end: at most {MAX_DAYS} days at once")
    return period


def _named_period(calendar: Calendar, now_ms: int, text: str) -> Period:
    today = calendar.day_of(now_ms)
    if text == "today":
        return today
    if text == "yesterday":
        return Period(calendar.days_before(today.start_ms, 1), today.start_ms)
    if text.startswith("last-") and text.endswith("-days"):
        # Whole days: today is unfinished, and would make every comparison look like a fall.
        return Period(calendar.days_before(today.start_ms, int(text.split("-")[1])), today.start_ms)
    month = calendar.month(calendar.month_of(now_ms))
    return month if text == "this-month" else calendar.month(calendar.month_of(month.start_ms - 1))


def dates(calendar: Calendar, period: Period) -> tuple[str, str]:
    """First day and the day after the last one."""
    return str(calendar.date_of(period.start_ms)), str(calendar.date_of(period.end_ms))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A period as answers show it; `gap`: why its numbers are not whole, in a sentence, else empty."""

    span: Span
    coverage: Coverage
    proof: Proof
    gap: str
    closed: Sequence[ClosedPeriod]
    """The closed months in it."""


def evidence(rated: RatedPeriod, now_ms: int) -> Evidence:
    """What the ledger knows of a period, and what proves it, as answers show it."""
    capacity = rated.capacity_ns
    coverage = Coverage(
        rated_until=instant(rated.rated_ms),
        days=rated.days_until(now_ms),
        days_rated=len(rated.checks),
        observed_percent=percent_text(rated.observed_ns, capacity) if capacity else None,
    )
    span = span_of(rated.calendar, rated.period)
    return Evidence(
        span, coverage, _proof(rated), _gap(rated, coverage, now_ms), rated.months_touched
    )


def span_of(calendar: Calendar, period: Period) -> Span:
    """A period as answers show it."""
    zone = calendar.zone_at(period.start_ms).name
    return Span(start=format_instant(period.start_ms), end=format_instant(period.end_ms), zone=zone)


def _gap(rated: RatedPeriod, coverage: Coverage, now_ms: int) -> str:
    period, rated_ms = rated.period, rated.rated_ms
    if rated_ms is None:
        return "nothing of this period is rated"
    if coverage.days_rated < coverage.days:
        return (
            f"the ledger has {coverage.days_rated} of {plural(coverage.days, 'day')} of this period"
        )
    if rated_ms < min(period.end_ms, now_ms) and now_ms >= period.end_ms:
        return f"this period is rated up to {coverage.rated_until} only"
    if now_ms < period.end_ms:
        return f"this period has not ended: it is rated up to {coverage.rated_until}"
    return ""


def _proof(rated: RatedPeriod) -> Proof:
    standing, days = rated.proof.standing, len(rated.checks)
    state: ProofState = (
        "broken" if standing is Standing.broken else "sealed" if rated.is_sealed else "open"
    )
    first, last = dates(rated.calendar, rated.period)
    month = rated.calendar.month_named(rated.period)
    return Proof(
        state=state,
        standing=standing.value if days else "waiting",
        text=rated.proof.sentence if days else "",
        days_checked=days,
        days_holding=rated.days_holding,
        seals=[seal_of(month) for month in rated.months_touched[-MAX_SEALS:]],
        verify=(
            f"gpuledger reconcile --period {month}"
            if month
            else f"gpuledger reconcile --from {first} --to {last}"
        ),
    )


def seal_of(month: ClosedPeriod) -> Seal:
    """The seal of a closed month as answers show it."""
    return Seal(month=month.name, seal=month.seal, closed_at=instant_text(month.closed_ms))

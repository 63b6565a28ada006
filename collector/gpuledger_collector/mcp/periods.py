"""The periods that tools are asked about, and what the ledger knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.month_proof import PeriodProof, Standing
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period, format_instant
from gpuledger_collector.accounting.statement import compared_windows
from gpuledger_collector.mcp.answers import Coverage, Proof, ProofState, Seal, Span
from gpuledger_collector.storage.billing import month_proofs, periods, reports
from gpuledger_collector.storage.locks import Connection
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
        period = _named(calendar, now_ms, text or "this-month")
    # An hour more than the days have, for days of 25 hours.
    if period.ms > MAX_DAYS * DAY_MS + DAY_MS // 24:
        raise ValueError(f"period, start and end: at most {MAX_DAYS} days at once")
    return period


def _named(calendar: Calendar, now_ms: int, text: str) -> Period:
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


def compared(
    connection: Connection, calendar: Calendar, period: Period, now_ms: int
) -> tuple[Period, Period] | None:
    """What a period is compared with unless somebody says otherwise, and the days of it that are;
    None: nothing.

    Of an unfinished period its whole days: with the days to come it would always look cheaper. A
    month is compared as its statements are.
    """
    if month_name(calendar, period) is not None:
        known_ms = max(
            (check.until_ms for check in reports.conservation_checks(connection, period)), default=0
        )
        past = reports.conservation_checks(connection, before(calendar, period))
        return compared_windows(
            period, known_ms, frozenset(check.day_ms for check in past), calendar
        )
    today = calendar.day_of(now_ms).start_ms
    end_ms = today if period.start_ms < today < period.end_ms else period.end_ms
    after = Period(period.start_ms, end_ms)
    return before(calendar, after), after


def before(calendar: Calendar, period: Period) -> Period:
    """The month before a month, else as many days right before a period."""
    if (month := month_name(calendar, period)) is not None:
        return calendar.month(calendar.month_of(calendar.month(month).start_ms - 1))
    return Period(
        calendar.days_before(period.start_ms, len(calendar.days(period))), period.start_ms
    )


def month_name(calendar: Calendar, period: Period) -> str | None:
    """The name of the month that a period is; None for any other."""
    text = calendar.month_of(period.start_ms)
    return text if calendar.month(text) == period else None


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


def evidence(connection: Connection, calendar: Calendar, period: Period, now_ms: int) -> Evidence:
    """Read what the ledger knows of a period, and what proves it."""
    checks, kept = month_proofs.checks_and_proof(connection, period, calendar)
    begun = period.clip(Period(period.start_ms, max(now_ms, period.start_ms + 1)))
    days = 0 if now_ms <= period.start_ms or begun is None else len(calendar.days(begun))
    rated_ms = max((check.until_ms for check in checks), default=None)
    capacity = sum(check.capacity_ns for check in checks)
    unobserved = sum(check.unobserved_ns for check in checks)
    observed = percent(capacity - unobserved, capacity) if capacity else None
    coverage = Coverage(
        rated_until=None if rated_ms is None else format_instant(rated_ms - rated_ms % 1000),
        days=days,
        days_rated=len(checks),
        observed_percent=observed,
    )
    span = span_of(calendar, period)
    proof = _proof(calendar, period, len(checks), kept, periods.closed(connection))
    return Evidence(span, coverage, proof, _gap(period, coverage, rated_ms, now_ms))


def span_of(calendar: Calendar, period: Period) -> Span:
    """A period as answers show it."""
    zone = calendar.zone_at(period.start_ms).name
    return Span(start=format_instant(period.start_ms), end=format_instant(period.end_ms), zone=zone)


def percent(part: int, whole: int) -> str:
    """Percent with two places, cut off."""
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def _gap(period: Period, coverage: Coverage, rated_ms: int | None, now_ms: int) -> str:
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


def _proof(
    calendar: Calendar, period: Period, days: int, kept: PeriodProof, closed: Sequence[ClosedPeriod]
) -> Proof:
    own = [month for month in closed if month.period.clip(period) is not None]
    sealed_ms = sum(part.ms for month in own if (part := month.period.clip(period)) is not None)
    standing = kept.standing
    state: ProofState = (
        "broken" if standing is Standing.broken else "sealed" if sealed_ms == period.ms else "open"
    )
    first, last = dates(calendar, period)
    wrong = sum(first <= day < last for day in kept.wrong_days)
    month = month_name(calendar, period)
    return Proof(
        state=state,
        standing=standing.value if days else "waiting",
        text=kept.sentence if days else "",
        days_checked=days,
        days_holding=None if kept.asked_ms is None else days - wrong,
        seals=[
            Seal(
                month=month.name,
                seal=month.seal,
                closed_at=format_instant(month.closed_ms - month.closed_ms % 1000),
            )
            for month in own[-MAX_SEALS:]
        ],
        verify=(
            f"gpuledger reconcile --period {month}"
            if month
            else f"gpuledger reconcile --from {first} --to {last}"
        ),
    )

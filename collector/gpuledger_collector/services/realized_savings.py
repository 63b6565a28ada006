"""Measure what accepted recommendations have saved: whole days since, against as many days before,
by the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.realized_savings import (
    ChargedPlace,
    SavingComparison,
    measure_saving,
)
from gpuledger_collector.insight.recommendation_record import AcceptedRecommendation, RealizedSaving
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.storage.findings import recommendations
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

VALID_MS = 30 * DAY_MS
"""How long a recommendation is valid, a rejection holds, and a missing rate is waited for."""
BUYING = frozenset({"spot", "reserve"})
"""Recommendations to buy in another way: they are compared with how the time before was bought."""


def measure_savings(connection: Connection, now_ms: int) -> list[RealizedSaving]:
    """The saving of each accepted recommendation up to now, over at most as many days as its window
    had.
    """
    accepted = recommendations.list_accepted(connection)
    if not accepted:
        return []
    calendar = zones.calendar(connection)
    earliest_ms = min(recommendation.start_ms for recommendation in accepted)
    book = book_of(connection, Period(min(earliest_ms, now_ms - 1), now_ms))
    today_ms = calendar.day_of(now_ms).start_ms
    savings = []
    for recommendation in accepted:
        max_days = max(1, (recommendation.end_ms - recommendation.start_ms) // DAY_MS)
        decided = calendar.day_of(recommendation.decided_ms)
        opened_ms, first_ms = (
            _next_midnight(calendar.day_of(at_ms), at_ms)
            for at_ms in (recommendation.start_ms, recommendation.decided_ms)
        )
        # Entire days on both sides: the day of the decision belongs to neither.
        if decided.start_ms <= opened_ms or today_ms <= first_ms:
            continue
        days = calendar.days(Period(first_ms, today_ms))[:max_days]
        before, after = Period(opened_ms, decided.start_ms), Period(first_ms, days[-1].end_ms)
        charged_before = recommendations.charged_places(connection, recommendation.scope, before)
        charged_after = recommendations.charged_places(connection, recommendation.scope, after)
        saving = SavingComparison(
            "nothing: the advice has no currency", unknown="no rate priced the advice"
        )
        if recommendation.currency is not None:
            saving = measure_saving(
                charged_before,
                before.ms,
                charged_after,
                days,
                recommendation.currency,
                book,
                idle=recommendation.scope.get("measure") == "idle",
                same_purchase=recommendation.kind in BUYING,
            )
        details = {
            "compared": saving.compared,
            "before": _charges(before, charged_before, recommendation),
            "after": _charges(after, charged_after, recommendation),
            "before_at_rates_since_micro": saving.before_micro,
            "unknown": saving.unknown,
        }
        # A missing rate may still be declared; after that time the saving stays unknown for good.
        has_amount = saving.micro is not None or now_ms >= after.end_ms + VALID_MS
        done = len(days) >= max_days and has_amount
        savings.append(
            RealizedSaving(recommendation.id, saving.micro, after.end_ms, details, done=done)
        )
    return savings


def _next_midnight(day: Period, at_ms: int) -> int:
    """The start of the first whole day from an instant of this day on."""
    return day.start_ms if day.start_ms == at_ms else day.end_ms


def _charges(
    period: Period, charged: Sequence[ChargedPlace], recommendation: AcceptedRecommendation
) -> dict[str, int]:
    """Charges in the recommendation's currency at the rates of their own days, and all time in
    GPU-nanoseconds.
    """
    priced = [row for row in charged if row.currency == recommendation.currency is not None]
    return {
        "start_ms": period.start_ms,
        "end_ms": period.end_ms,
        "cost_micro": sum(row.cost_micro or 0 for row in priced),
        "idle_cost_micro": sum(row.idle_cost_micro or 0 for row in priced),
        "gpu_ns": sum(row.gpu_ns for row in charged),
        "busy_ns": sum(row.busy_ns for row in charged),
        "idle_ns": sum(row.idle_ns for row in charged),
    }

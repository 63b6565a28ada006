"""What a report calls first: fold and rate whatever its period still lacks."""

from __future__ import annotations

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.ports import Store
from gpuledger_collector.jobs.fold_usage import fold_usage
from gpuledger_collector.jobs.rate_usage import OnDay, rate_usage


def bring_up_to_date(store: Store, period: Period, now_ms: int, on_day: OnDay | None = None) -> int:
    """Fold and rate the days of a period up to now; how many days were rated. Nothing to do costs a few queries."""
    whole = Period(min(day.start_ms for day in period.days()), period.end_ms)
    fold_usage(store, whole)
    return rate_usage(store, now_ms, whole, on_day)

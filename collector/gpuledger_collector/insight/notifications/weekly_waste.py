"""What a team wasted in a week, by workload: each rating interval at the rate in force in it."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.wasted_time import AcceleratorPlace, price_waste
from gpuledger_collector.insight.findings import NamedFinding
from gpuledger_collector.insight.notifications.finding_rules import (
    RECLAIMABLE_STATES,
    IdleWeek,
    WastedUsage,
)


def waste_by_workload(
    rows: Sequence[NamedFinding], team: str, week: Period, book: PriceBook
) -> list[WastedUsage]:
    """Idle usage of a team inside a week, by workload."""
    by_workload: dict[int, list[NamedFinding]] = {}
    for row in rows:
        if row.team == team and row.state in RECLAIMABLE_STATES and row.workload_id is not None:
            by_workload.setdefault(row.workload_id, []).append(row)
    return [_wasted_usage(group, week, book) for group in by_workload.values()]


def _wasted_usage(rows: Sequence[NamedFinding], week: Period, book: PriceBook) -> WastedUsage:
    """Idle usage of one workload inside a week, exact: each rating interval at the rate in force in
    it.
    """
    gpu_ns, cost, per_day = 0, 0, 0
    currencies: set[str | None] = set()
    for row in rows:
        evidence = row.evidence
        wasted = {int(at_ms): ns for at_ms, ns in evidence["wasted_gpu_ns"].items()}
        inside = {at_ms: ns for at_ms, ns in wasted.items() if week.start_ms <= at_ms < week.end_ms}
        place = AcceleratorPlace(
            row.gpu_micro or 0, evidence.get("pool", ""), row.model or "", row.node
        )
        priced = price_waste(place, inside, book, week.end_ms - 1)
        if not priced.gpu_ns:
            continue
        gpu_ns += priced.gpu_ns
        currencies.add(priced.currency if priced.cost_micro is not None else None)
        cost += priced.cost_micro or 0
        per_day += (priced.per_day_micro or 0) if row.is_ongoing else 0
    currency = currencies.pop() if len(currencies) == 1 else None
    return WastedUsage(
        label=rows[0].job,
        user=rows[0].user_name or "",
        states=tuple(sorted({row.state for row in rows})),
        gpu_ns=gpu_ns,
        currency=currency,
        cost_micro=None if currency is None else cost,
        ongoing=any(row.is_ongoing for row in rows),
        per_day_micro=None if currency is None else per_day,
    )


def add_up_week(wasted: Sequence[WastedUsage]) -> IdleWeek:
    """The idle usage of a week as the next one is compared with it."""
    costs: dict[str, int] = {}
    for usage in wasted:
        if usage.currency is not None and usage.cost_micro is not None:
            costs[usage.currency] = costs.get(usage.currency, 0) + usage.cost_micro
    used = [usage for usage in wasted if usage.gpu_ns]
    is_priced = all(usage.cost_micro is not None for usage in used)
    return IdleWeek(sum(usage.gpu_ns for usage in used), costs, is_priced)

"""The standing of budgets for programs and for a terminal. Unknown is empty or null, never zero."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.budget_status import Status
from gpuledger_collector.accounting.budgets import DIRECT, GPU_HOURS, TOTAL
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.quantity import round_half_even_div
from gpuledger_collector.export.cells import names

COLUMNS = names("""
    budget owner period_from period_to currency amount spent spent_percent elapsed_percent forecast forecast_low
    forecast_high run_out run_out_earliest run_out_latest pace_1h_percent pace_6h_percent unpriced_gpu_hours
    rated_up_to alerts measure unit
    """)
"""Columns of the CSV and keys of the JSON."""
MEASURED = {DIRECT: "direct cost", TOTAL: "total cost", GPU_HOURS: "GPU-hours"}


def rows(statuses: Sequence[Status]) -> list[dict[str, object]]:
    """One flat object a budget. Amounts are texts in major units; percents are whole."""
    return [_row(status) for status in statuses]


def _row(status: Status) -> dict[str, object]:
    budget, ahead, spend = status.budget, status.ahead, status.spend
    short, long = status.pace_percents or (None, None)
    ends: list[int | None] = [None] * 3
    days: list[int | None] = [None] * 3
    if ahead is not None:
        ends = [ahead.middle_micro, ahead.low_micro, ahead.high_micro]
        days = [ahead.run_out_ms, ahead.earliest_ms, ahead.latest_ms]

    def amount(micro: int | None, digits: int | None = None) -> str | None:
        if micro is None:
            return None
        return budget.number(micro, digits).replace(",", "")

    def day(at_ms: int | None) -> str | None:
        return None if at_ms is None else str(budget.calendar.date_of(at_ms))

    values: tuple[object, ...] = (
        budget.name,
        budget.owner_label,
        str(budget.calendar.date_of(status.period.start_ms)),
        str(budget.calendar.date_of(status.period.end_ms)),
        budget.currency or None,
        amount(budget.amount_micro),
        amount(spend.micro),
        status.spent_percent,
        status.elapsed_percent,
        *(amount(micro, 0) for micro in ends),
        *map(day, days),
        short,
        long,
        round_half_even_div(spend.unpriced_gpu_ns, 3_600_000_000_000),
        format_instant(status.known_ms),
        [
            f"{alert.rule} {alert.percent} % {alert.state}"
            for alert in status.alerts
            if alert.fired_ms is not None
        ],
        budget.measure,
        budget.unit,
    )
    return dict(zip(COLUMNS, values, strict=True))


def table_row(status: Status) -> dict[str, str]:
    """A budget as a terminal shows it; `-` where nothing can be said yet."""
    budget, ahead = status.budget, status.ahead
    out = forecast = "-"
    if ahead is not None:
        ends = (ahead.middle_micro, ahead.low_micro, ahead.high_micro)
        middle, low, high = (budget.number(end, 0) for end in ends)
        forecast = f"{middle} ({low} to {high})"
        out = (
            "not by then"
            if ahead.run_out_ms is None
            else str(budget.calendar.date_of(ahead.run_out_ms))
        )
    share = status.spent_percent
    if share is not None and share >= 100:
        out = "spent"
    fired = [alert for alert in status.alerts if alert.fired_ms is not None]
    return {
        "budget": (
            budget.name
            if budget.name == budget.owner_label
            else f"{budget.name} ({budget.owner_label})"
        ),
        "until": str(budget.calendar.date_of(status.period.end_ms)),
        "measure": MEASURED[budget.measure],
        "spent": "-" if status.spend.micro is None else budget.text(status.spend.micro),
        "of": budget.number(budget.amount_micro),
        "percent": "-" if share is None else str(share),
        "elapsed": str(status.elapsed_percent),
        "forecast": forecast,
        "run_out": out,
        "pace": "-" if status.pace_percents is None else "{} %, {} %".format(*status.pace_percents),
        "alerts": (
            "; ".join(f"{alert.rule} {alert.percent} % {alert.state}" for alert in fired) or "none"
        ),
    }

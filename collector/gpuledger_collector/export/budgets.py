"""The standing of budgets as table, CSV and JSON; the same values in each. Unknown is empty or null, never zero."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Literal

from gpuledger_collector.accounting.budgets import money_text, percent_of
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.quantity import round_half_even_div
from gpuledger_collector.export.cells import json_text, names, neutral
from gpuledger_collector.storage.billing.budget_status import Status

COLUMNS = names(
    """
    budget owner period_from period_to currency amount spent spent_percent elapsed_percent forecast forecast_low
    forecast_high run_out run_out_earliest run_out_latest pace_1h_percent pace_6h_percent unpriced_gpu_hours
    rated_up_to alerts
    """
)
"""Columns of the CSV and keys of the JSON."""


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

    def money(micro: int | None, digits: int | None = None) -> str | None:
        if micro is None:
            return None
        return money_text(micro, budget.currency, digits).partition(" ")[2].replace(",", "")

    def day(at_ms: int | None) -> str | None:
        return None if at_ms is None else str(budget.calendar.date_of(at_ms))

    values: tuple[object, ...] = (
        budget.name,
        budget.owner_label,
        str(budget.calendar.date_of(status.period.start_ms)),
        str(budget.calendar.date_of(status.period.end_ms)),
        budget.currency,
        money(budget.amount_micro),
        money(spend.cost_micro),
        percent_of(spend.cost_micro, budget.amount_micro),
        status.elapsed_percent,
        *(money(micro, 0) for micro in ends),
        *map(day, days),
        short,
        long,
        round_half_even_div(spend.unpriced_gpu_ns, 3_600_000_000_000),
        format_instant(status.known_ms),
        [f"{alert.rule} {alert.percent} % {alert.state}" for alert in status.alerts if alert.fired_ms is not None],
    )
    return dict(zip(COLUMNS, values, strict=True))


def as_json(statuses: Sequence[Status]) -> str:
    """The rows as a JSON object."""
    return json_text({"budgets": rows(statuses)}) + "\n"


def as_csv(statuses: Sequence[Status]) -> str:
    """The rows as CSV; alerts are set apart by semicolons."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows(statuses):
        cells = {**row, "alerts": "; ".join(map(str, row["alerts"] if isinstance(row["alerts"], list) else []))}
        writer.writerow("" if cells[name] is None else neutral(str(cells[name])) for name in COLUMNS)
    return out.getvalue()


def as_table(statuses: Sequence[Status], width: int | None) -> str:
    """A table for a terminal of `width` columns (None: as wide as it needs)."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console

    from gpuledger_collector.export.tables import Table

    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, side in _SHOWN:
        shown.add_column(name, justify=side, overflow="fold")
    for status in statuses:
        shown.add_row(*_cells(status))
    out = io.StringIO()
    Console(file=out, width=width or 400, color_system=None, legacy_windows=False).print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


_SHOWN: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("budget", "left"),
    ("until", "left"),
    ("spent", "right"),
    ("of", "right"),
    ("%", "right"),
    ("time %", "right"),
    ("forecast (8 in 10)", "left"),
    ("runs out", "left"),
    ("pace 1h, 6h", "right"),
    ("alerts", "left"),
)


def _cells(status: Status) -> list[str]:
    budget, ahead = status.budget, status.ahead
    out = forecast = "-"
    if ahead is not None:
        ends = (ahead.middle_micro, ahead.low_micro, ahead.high_micro)
        middle, low, high = (money_text(end, budget.currency, 0).partition(" ")[2] for end in ends)
        forecast = f"{middle} ({low} to {high})"
        out = "not by then" if ahead.run_out_ms is None else str(budget.calendar.date_of(ahead.run_out_ms))
    if status.spend.cost_micro >= budget.amount_micro:
        out = "spent"
    fired = [alert for alert in status.alerts if alert.fired_ms is not None]
    return [
        budget.name if budget.name == budget.owner_label else f"{budget.name} ({budget.owner_label})",
        str(budget.calendar.date_of(status.period.end_ms)),
        money_text(status.spend.cost_micro, budget.currency),
        money_text(budget.amount_micro, budget.currency).partition(" ")[2],
        str(percent_of(status.spend.cost_micro, budget.amount_micro)),
        str(status.elapsed_percent),
        forecast,
        out,
        "-" if status.pace_percents is None else "{} %, {} %".format(*status.pace_percents),
        "; ".join(f"{entry.rule} {entry.percent} % {entry.state}" for entry in fired) or "none",
    ]

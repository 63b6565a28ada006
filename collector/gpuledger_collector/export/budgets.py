"""The standing of budgets for programs and for a terminal. Unknown is empty or null, never zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger_collector.accounting.budget_status import Ahead, Status
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div
from gpuledger_collector.export.report import Column, Kind, Report, series_column

NOTHING_YET = "-"


def _amount(status: Status, micro: int | None, digits: int | None = None) -> str | None:
    return None if micro is None else status.budget.plain(micro, digits)


def _day(status: Status, at_ms: int | None) -> str | None:
    return None if at_ms is None else str(status.budget.calendar.date_of(at_ms))


def _estimate(part: Callable[[Ahead], int]) -> Callable[[Status], str | None]:
    """A column of an amount that the period is expected to end with."""
    return lambda item: None if item.ahead is None else _amount(item, part(item.ahead), 0)


def _run_out(part: Callable[[Ahead], int | None]) -> Callable[[Status], str | None]:
    """A column of a day on which the budget is expected to run out; null once it is spent."""

    def day(item: Status) -> str | None:
        ahead = item.ahead_of_run_out
        return None if ahead is None else _day(item, part(ahead))

    return day


def _pace(window: int) -> Callable[[Status], int | None]:
    return lambda item: None if item.pace_percents is None else item.pace_percents[window]


def _fired_alerts(status: Status) -> list[str]:
    return [
        f"{alert.rule} {alert.percent} % {alert.state}"
        for alert in status.alerts
        if alert.fired_ms is not None
    ]


BUDGETS = Report[Status](
    "budgets",
    (
        Column("budget", lambda item: item.budget.name),
        Column("owner", lambda item: item.budget.owner_label),
        Column("period_from", lambda item: _day(item, item.period.start_ms)),
        Column("period_to", lambda item: _day(item, item.period.end_ms)),
        Column("currency", lambda item: item.budget.currency or None),
        Column("amount", lambda item: _amount(item, item.budget.amount_micro), Kind.DECIMAL),
        Column("spent", lambda item: _amount(item, item.spend.micro), Kind.DECIMAL),
        Column("spent_percent", lambda item: item.spent_percent, Kind.COUNT),
        Column("elapsed_percent", lambda item: item.elapsed_percent, Kind.COUNT),
        Column("forecast", _estimate(lambda ahead: ahead.middle_micro), Kind.DECIMAL),
        Column("forecast_low", _estimate(lambda ahead: ahead.low_micro), Kind.DECIMAL),
        Column("forecast_high", _estimate(lambda ahead: ahead.high_micro), Kind.DECIMAL),
        Column("run_out", _run_out(lambda ahead: ahead.run_out_ms)),
        Column("run_out_earliest", _run_out(lambda ahead: ahead.earliest_ms)),
        Column("run_out_latest", _run_out(lambda ahead: ahead.latest_ms)),
        Column("pace_1h_percent", _pace(0), Kind.COUNT),
        Column("pace_6h_percent", _pace(1), Kind.COUNT),
        Column(
            "unpriced_gpu_hours",
            lambda item: round_half_even_div(item.spend.unpriced_gpu_ns, GPU_NS_PER_HOUR),
            Kind.COUNT,
        ),
        Column("rated_up_to", lambda item: item.known_ms, Kind.INSTANT),
        Column("alerts", _fired_alerts, Kind.LIST),
        Column("measure", lambda item: item.budget.measure),
        Column("unit", lambda item: item.budget.unit),
    ),
)
"""Amounts are texts in major units; percents are whole.

What is spent is null while nothing of the period is rated; days of running out are null once the
budget is spent, and where it is not expected to be within the period.
"""


def _label(status: Status) -> str:
    name, owner = status.budget.name, status.budget.owner_label
    return name if name == owner else f"{name} ({owner})"


def _band(status: Status) -> str:
    ahead = status.ahead
    if ahead is None:
        return NOTHING_YET
    ends = (ahead.middle_micro, ahead.low_micro, ahead.high_micro)
    return "{} ({} to {})".format(*(status.budget.number(end, 0) for end in ends))


def _when_spent(status: Status) -> str:
    if status.is_spent:
        return "spent"
    if status.ahead is None:
        return NOTHING_YET
    return _day(status, status.ahead.run_out_ms) or "not by then"


def _show_value(value: Any) -> str:
    return NOTHING_YET if value is None else str(value)


STANDINGS = Report[Status](
    "standings",
    (
        Column("budget", _label),
        Column("until", lambda item: _day(item, item.period.end_ms), is_optional=True),
        Column(
            "measure", lambda item: item.budget.measure_text, heading="of what", is_optional=True
        ),
        Column(
            "spent",
            lambda item: (
                NOTHING_YET if item.spend.micro is None else item.budget.text(item.spend.micro)
            ),
            Kind.DECIMAL,
        ),
        Column("of", lambda item: item.budget.number(item.budget.amount_micro), Kind.DECIMAL),
        Column("percent", lambda item: _show_value(item.spent_percent), Kind.DECIMAL, heading="%"),
        Column(
            "elapsed",
            lambda item: _show_value(item.elapsed_percent),
            Kind.DECIMAL,
            heading="time %",
            is_optional=True,
        ),
        Column("forecast", _band, Kind.DECIMAL, heading="forecast (8 in 10)", is_optional=True),
        Column("run_out", _when_spent, heading="runs out"),
        Column(
            "pace",
            lambda item: (
                NOTHING_YET
                if item.pace_percents is None
                else "{} %, {} %".format(*item.pace_percents)
            ),
            Kind.DECIMAL,
            heading="pace 1h, 6h",
            is_optional=True,
        ),
        Column("alerts", lambda item: "; ".join(_fired_alerts(item)) or "none", is_optional=True),
        series_column("by_day", lambda item: item.by_day, "day by day"),
    ),
)
"""Budgets as a terminal shows them; `-` where nothing can be said yet."""

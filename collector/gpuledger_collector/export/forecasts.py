"""Forecasts, as people and programs read them."""

from __future__ import annotations

from gpuledger_collector.export.report import Column, Kind, Report, series_column
from gpuledger_collector.insight.pool_outlook import DemandHour
from gpuledger_collector.insight.spend import OwnerSpend


def _gpus(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


DEMAND_HOURS = Report[DemandHour](
    "demand",
    (
        Column("pool", lambda item: item.pool),
        Column("at", lambda item: item.at_ms, Kind.INSTANT),
        Column("demand", lambda item: _gpus(item.demand), Kind.HOURS),
        Column("low", lambda item: _gpus(item.low), Kind.HOURS),
        Column("likely", lambda item: _gpus(item.likely), Kind.HOURS),
        Column("high", lambda item: _gpus(item.high), Kind.HOURS),
    ),
)


def spend_report(level: str) -> Report[OwnerSpend]:
    """What each owner of a level will have spent at the end of the month."""
    return Report(
        "spend",
        (
            Column(level, lambda item: item.owner or "(unattributed)"),
            Column("currency", lambda item: item.currency),
            Column("spent", lambda item: item.spent, Kind.MONEY),
            Column("forecast", lambda item: item.end("middle"), Kind.MONEY),
            Column("low", lambda item: item.end("low"), Kind.MONEY),
            Column("high", lambda item: item.end("high"), Kind.MONEY),
            Column("days of history", lambda item: item.days, Kind.COUNT, is_optional=True),
            series_column("by_day", lambda item: item.by_day, "the last 30 days"),
        ),
    )

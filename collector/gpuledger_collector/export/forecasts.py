"""Forecasts, as people and programs read them."""

from __future__ import annotations

from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.spend import OwnerSpend


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
        ),
    )

"""A period under two price books, as a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger_collector.accounting.what_if import PriceDifference
from gpuledger_collector.export.report import Column, Kind, Report


def what_if_report(by: Sequence[str]) -> Report[PriceDifference]:
    """The list by these dimensions; a total has its name in the first of them."""

    def key(at: int) -> Callable[[PriceDifference], str]:
        total = "" if at else "total"
        return lambda row: total if row.keys is None else row.keys[at]

    return Report(
        "what-if",
        (
            *(Column(name, key(at)) for at, name in enumerate(by)),
            Column("currency", lambda row: row.currency),
            Column("gpu_hours", lambda row: f"{row.gpu_hours:.6f}", Kind.HOURS),
            Column("cost_now", lambda row: row.cost_now, Kind.MONEY),
            Column("cost_then", lambda row: row.cost_then, Kind.MONEY),
            Column("difference", lambda row: row.difference, Kind.MONEY),
        ),
    )

"""Jobs as a table, CSV and JSON."""

from __future__ import annotations

from decimal import Decimal

from gpuledger_collector.accounting.charged_runs import ChargedJob
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export import html
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.export.runs import GPU_TIME_ONLY


def _hours(item: ChargedJob) -> tuple[Decimal, Decimal]:
    """Hours held, and of them idle: rounded together."""
    held, idle = hours_decimal([item.gpu_ns, item.idle_ns], 2)
    return held, idle


JOBS = Report[ChargedJob](
    "jobs",
    (
        Column("job", lambda item: item.job),
        Column("uid", lambda item: item.uid or None, in_table=False),
        Column("pods", lambda item: len(item.workloads), Kind.COUNT, about="Its workloads."),
        Column("user", lambda item: item.user or None, in_table=False),
        Column("team", lambda item: item.team),
        Column("model", lambda item: item.gpu_model, in_table=False),
        Column("gpus", lambda item: item.accelerators or None, Kind.COUNT, is_optional=True),
        Column("from", lambda item: item.start_ms, Kind.INSTANT, is_optional=True),
        Column("to", lambda item: item.end_ms, Kind.INSTANT, in_table=False),
        Column("gpu_hours", lambda item: _hours(item)[0], Kind.DECIMAL),
        Column(
            "gpu_hours_held_idle",
            lambda item: _hours(item)[1] if item.has_known_activity else None,
            Kind.DECIMAL,
            is_optional=True,
        ),
        Column(
            "cost", lambda item: item.cost, Kind.MONEY, about="Of GPU-time, without node costs."
        ),
        Column("cost_held_idle", lambda item: item.idle_cost, Kind.MONEY),
        Column("currency", lambda item: item.currency),
        Column(
            "cost_per_gpu_hour",
            lambda item: html.unit_price(item.cost_per_gpu_hour) or None,
            Kind.DECIMAL,
            is_optional=True,
        ),
        Column("workloads", lambda item: " ".join(item.workloads), in_table=False),
        Column("notice", lambda _: GPU_TIME_ONLY, in_table=False),
    ),
)

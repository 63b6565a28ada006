"""Runs of one name on different numbers of GPUs, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.export import html
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.export.runs import UNITS
from gpuledger_collector.insight.run_report import ScaledRuns, ScalingPoint


@dataclass(frozen=True, slots=True)
class RunSize:
    """Runs of one name on one number of GPUs."""

    runs: ScaledRuns
    point: ScalingPoint


def _seconds(item: RunSize) -> str | None:
    return None if item.point.seconds is None else f"{item.point.seconds:.3f}"


def _unit_cost(item: RunSize) -> str | None:
    cost = item.point.unit_cost
    return None if cost is None else html.unit_price(cost)


def _spread(bound: Callable[[ScalingPoint], Decimal]) -> Callable[[RunSize], str | None]:
    """A column of one end of the spread; empty where single runs do not differ."""
    return lambda item: (
        f"{bound(item.point):.1%}" if item.point.lowest != item.point.highest else None
    )


RUN_SIZES = Report[RunSize](
    "run-sizes",
    (
        Column("name", lambda item: item.runs.name),
        Column("team", lambda item: item.runs.team),
        Column("model", lambda item: item.runs.gpu_model),
        Column("gpus", lambda item: item.point.accelerators, Kind.COUNT),
        Column("runs", lambda item: item.point.runs, Kind.COUNT),
        Column(
            "unit",
            lambda item: None if item.point.counter is None else UNITS[item.point.counter],
            is_optional=True,
        ),
        Column("seconds_per_unit", _seconds, Kind.SIZE, is_optional=True),
        Column("unit_cost", _unit_cost, Kind.DECIMAL, is_optional=True),
        Column(
            "currency",
            lambda item: None if item.point.unit_cost is None else item.runs.currency,
            is_optional=True,
        ),
        Column("measure", lambda item: item.point.measure, in_table=False),
        Column("per_gpu", lambda item: f"{item.point.per_gpu:.3f}", Kind.DECIMAL, in_table=False),
        Column("efficiency", lambda item: f"{item.point.efficiency:.1%}", Kind.PERCENT),
        Column("lowest", _spread(lambda point: point.lowest), Kind.PERCENT, is_optional=True),
        Column("highest", _spread(lambda point: point.highest), Kind.PERCENT, is_optional=True),
    ),
)

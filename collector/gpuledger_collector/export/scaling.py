"""Decisions on capacity and what came of them, as people and programs read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.backtest import PolicyResult
from gpuledger_collector.insight.pool_backtest import PricedPolicy
from gpuledger_collector.insight.scaling.advice import ScalingAdvice
from gpuledger_collector.insight.scaling.pools import ModelHeadroom, RecordedDecision
from gpuledger_common.plurals import plural


def _exact_instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_instant(at_ms)


DECISIONS = Report[RecordedDecision](
    "scaling_decisions",
    (
        Column("decision", lambda item: item.decision_id, Kind.NUMBER),
        Column("pool", lambda item: item.pool),
        Column("made_at", lambda item: _exact_instant(item.made_ms)),
        Column("as_of", lambda item: _exact_instant(item.as_of_ms)),
        Column("policy", lambda item: item.policy),
        Column("mode", lambda item: item.mode),
        Column("demand_gpus", lambda item: item.demand_gpus, Kind.ESTIMATE),
        Column("reactive_gpus", lambda item: item.reactive_gpus, Kind.ESTIMATE),
        Column("wanted_gpus", lambda item: item.wanted_gpus, Kind.ESTIMATE),
        Column("desired_gpus", lambda item: item.desired_gpus, Kind.ESTIMATE),
        Column("before_gpus", lambda item: item.before_gpus, Kind.ESTIMATE),
        Column("quantile", lambda item: item.quantile, Kind.ESTIMATE),
        Column("notified", lambda item: item.notified),
        Column("notified_state", lambda item: item.notified_state),
        Column("from", lambda item: _exact_instant(item.from_ms)),
        Column("until", lambda item: _exact_instant(item.until_ms)),
        Column(
            "known_s",
            lambda item: None if item.known_ms is None else item.known_ms // 1000,
            Kind.COUNT,
        ),
        Column("came_gpu_s", lambda item: item.came_gpu_s, Kind.ESTIMATE),
        Column("wait_gpu_s", lambda item: item.wait_gpu_s, Kind.ESTIMATE),
        Column("waste_gpu_s", lambda item: item.waste_gpu_s, Kind.ESTIMATE),
        Column("reactive_wait_gpu_s", lambda item: item.reactive_wait_gpu_s, Kind.ESTIMATE),
        Column("reactive_waste_gpu_s", lambda item: item.reactive_waste_gpu_s, Kind.ESTIMATE),
        Column(
            "waste_cost",
            lambda item: None if item.waste is None else item.waste.plain(),
            Kind.DECIMAL,
        ),
        Column("currency", lambda item: item.currency),
        Column("reason", lambda item: item.reason),
        Column("inputs_hash", lambda item: item.inputs_hash),
    ),
)


def _hours(gpu_s: float | None) -> str:
    return "not yet" if gpu_s is None else f"{gpu_s / 3600:.2f}"


def _reason(item: RecordedDecision) -> str:
    """Why, and the order that it led to."""
    order = f" [{item.notified}: {item.notified_state or 'queued'}]" if item.notified else ""
    return f"{item.reason}{order}"


OUTCOMES = Report[RecordedDecision](
    "scaling_outcomes",
    (
        Column("made_at", lambda item: _exact_instant(item.made_ms), heading="made"),
        Column("pool", lambda item: item.pool),
        # A mean, which is hardly ever whole; the others count GPUs.
        Column("demand_gpus", lambda item: item.demand_gpus, Kind.HOURS, heading="demand"),
        Column(
            "reactive_gpus",
            lambda item: item.reactive_gpus,
            Kind.GPUS,
            heading="reactive",
            is_optional=True,
        ),
        Column("desired_gpus", lambda item: item.desired_gpus, Kind.GPUS, heading="desired"),
        Column("wait", lambda item: _hours(item.wait_gpu_s), Kind.HOURS, heading="wait, GPU-hours"),
        Column(
            "waste", lambda item: _hours(item.waste_gpu_s), Kind.HOURS, heading="waste, GPU-hours"
        ),
        Column("reason", _reason, heading="why", is_optional=True),
    ),
)
"""Decisions in a table: what they came to, in GPU-hours."""
PoolAdvice = tuple[str, ScalingAdvice | str]
"""A pool and its advice, or why there is none."""


def _of_advice(value: Callable[[ScalingAdvice], object], stale: object = None) -> Any:
    return lambda item: stale if isinstance(item[1], str) else value(item[1])


ADVICE = Report[PoolAdvice](
    "scaling_advice",
    (
        Column("pool", lambda item: item[0]),
        Column("demand_now", _of_advice(lambda advice: round(advice.demand_now, 3)), Kind.ESTIMATE),
        Column("desired_gpus", _of_advice(lambda advice: advice.desired_gpus), Kind.ESTIMATE),
        Column("mode", _of_advice(lambda advice: advice.mode, "stale")),
        Column("reason", lambda item: item[1] if isinstance(item[1], str) else item[1].reason),
    ),
)


def model_facts(model: ModelHeadroom) -> dict[str, object]:
    """The headroom of a model as JSON; null is unknown."""
    return {**asdict(model), "headroom_gpus": model.headroom_gpus}


def say_headroom(model: ModelHeadroom) -> str:
    """The headroom of a model in a sentence."""
    there = plural(f"{model.gpus:g}", "GPU")
    if model.headroom_gpus is None:
        return f"{there}; its demand is unknown lately"
    short = "missing" if model.headroom_gpus < 0 else "to spare"
    return (
        f"{abs(model.headroom_gpus):.1f} of {there} {short} within the lead time (demand"
        f" {model.demand_gpus:.1f}, nine times in ten at most {model.ahead_gpus:.1f})"
    )


POLICIES = Report[PolicyResult](
    "policies",
    (
        Column("policy", lambda item: item.policy),
        Column("capacity", lambda item: round(item.outcome.capacity, 3), Kind.ESTIMATE),
        Column("demand", lambda item: round(item.outcome.demand, 3), Kind.ESTIMATE, in_table=False),
        Column("wait", lambda item: round(item.outcome.wait, 3), Kind.ESTIMATE),
        Column(
            "wait_p95_s",
            lambda item: round(item.outcome.wait_p95_s, 3),
            Kind.ESTIMATE,
            heading="wait p95, s",
        ),
        Column("starts", lambda item: item.outcome.starts, Kind.COUNT, in_table=False),
        Column("cold_starts", lambda item: item.outcome.cold_starts, Kind.COUNT, is_optional=True),
        Column("actions", lambda item: item.outcome.actions, Kind.COUNT, is_optional=True),
        Column("setting", lambda item: item.setting, is_optional=True),
    ),
)
"""What policies come to on one demand series, in GPU-hours."""
PRICED_POLICIES = Report[PricedPolicy](
    "priced_policies",
    (
        Column("policy", lambda item: item.policy),
        Column("capacity", lambda item: item.capacity, Kind.ESTIMATE),
        Column("demand", lambda item: item.demand, Kind.ESTIMATE, is_optional=True),
        Column("wait", lambda item: item.wait, Kind.ESTIMATE),
        Column(
            "wait_p95_s",
            lambda item: item.wait_p95_s,
            Kind.ESTIMATE,
            heading="wait p95, s",
            is_optional=True,
        ),
        Column("actions", lambda item: item.actions, Kind.COUNT, is_optional=True),
        Column("cost", lambda item: item.cost, Kind.ESTIMATE),
        Column(
            "over_demand",
            lambda item: item.over_demand,
            Kind.ESTIMATE,
            heading="above demand",
            is_optional=True,
        ),
        Column("currency", lambda item: item.currency),
    ),
)
"""The same of a pool, with estimates in money."""
POOL_POLICIES = PRICED_POLICIES.select(
    "policy", "capacity", "wait", "wait_p95_s", "actions", "over_demand", "cost"
)
"""The file of the pool's page."""
PLACES = {"capacity": 1, "demand": 1, "wait": 2, "wait_p95_s": 0, "cost": 2, "over_demand": 2}
"""Decimal places in a table."""


def _table_column(column: Column[PricedPolicy]) -> Column[PricedPolicy]:
    """The column of a table; others than these are as they are."""

    def text(item: PricedPolicy) -> str:
        value = column.value(item)
        return "unpriced" if value is None else f"{value:,.{PLACES[column.name]}f}"

    return column if column.name not in PLACES else replace(column, value=text, kind=Kind.DECIMAL)


SHOWN_POLICIES = Report("shown_policies", tuple(map(_table_column, PRICED_POLICIES.columns)))

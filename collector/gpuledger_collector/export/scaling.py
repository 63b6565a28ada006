"""Decisions on capacity and what came of them, as people and programs read them."""

from __future__ import annotations

from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.scaling.pools import RecordedDecision

DECISIONS = Report[RecordedDecision](
    "scaling_decisions",
    (
        Column("decision", lambda item: item.decision_id, Kind.COUNT),
        Column("pool", lambda item: item.pool),
        Column("made_at", lambda item: item.made_ms, Kind.INSTANT),
        Column("as_of", lambda item: item.as_of_ms, Kind.INSTANT),
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
        Column("from", lambda item: item.from_ms, Kind.INSTANT),
        Column("until", lambda item: item.until_ms, Kind.INSTANT),
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

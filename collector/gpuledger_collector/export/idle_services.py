"""Warm replicas of services: what each holds, and what it needs when it is busiest."""

from __future__ import annotations

from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.idle.serving_replicas import ServiceReplicas


def _spare(item: ServiceReplicas) -> str:
    spare = item.assessment.spare
    return "not known" if spare is None else str(spare)


SERVICES = Report[ServiceReplicas](
    "services",
    (
        Column("service", lambda item: item.name),
        Column("team", lambda item: item.team),
        Column("pool", lambda item: item.pool, is_optional=True),
        Column("model", lambda item: item.model, is_optional=True),
        Column("held", lambda item: item.assessment.held, Kind.COUNT),
        Column("busiest", lambda item: item.assessment.peak, Kind.COUNT),
        Column("needed", lambda item: item.assessment.needed, Kind.COUNT),
        Column("spare", _spare, Kind.DECIMAL),
        Column("known", lambda item: f"{item.assessment.known:.2f}", Kind.DECIMAL),
        Column("per_day", lambda item: item.per_day, Kind.DECIMAL),
    ),
)
"""`per_day` has its currency in it: each service may have another one."""

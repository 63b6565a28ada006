"""The nodes of a fleet and their accelerators, as people read them."""

from __future__ import annotations

from gpuledger_collector.accounting.carbon import MJ_PER_KWH
from gpuledger_collector.export.cells import hours_text, instant_text
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.activity import AcceleratorActivity
from gpuledger_collector.insight.nodes import ListedNode


def _tenths(value: int | None, unit: int) -> str | None:
    return None if value is None else f"{value / unit:.1f}"


ACCELERATORS = Report[AcceleratorActivity](
    "accelerators",
    (
        Column("node", lambda item: item.node),
        Column("index", lambda item: item.gpu_index, Kind.NUMBER),
        Column("uuid", lambda item: item.uuid, in_table=False),
        Column("model", lambda item: item.model),
        Column("mig_instance", lambda item: item.mig_instance, is_optional=True),
        Column("pool", lambda item: item.pool, is_optional=True),
        Column("held_h", lambda item: hours_text(item.held_ms, 3), Kind.HOURS),
        Column("busy_h", lambda item: hours_text(item.busy_ms, 3), Kind.HOURS),
        Column("idle_h", lambda item: hours_text(item.idle_ms, 3), Kind.HOURS),
        Column(
            "unknown_h", lambda item: hours_text(item.unknown_ms, 3), Kind.HOURS, in_table=False
        ),
        Column("unallocated_h", lambda item: hours_text(item.unallocated_ms, 3), Kind.HOURS),
        Column(
            "unavailable_h",
            lambda item: hours_text(item.unavailable_ms, 3),
            Kind.HOURS,
            is_optional=True,
        ),
        Column(
            "busy_percent",
            lambda item: _tenths(item.busy_permille, 10),
            Kind.PERCENT,
            heading="busy %",
        ),
        Column(
            "energy_kwh",
            lambda item: _tenths(item.energy_mj, MJ_PER_KWH),
            Kind.SIZE,
            is_optional=True,
        ),
    ),
)
NODES = Report[ListedNode](
    "nodes",
    (
        Column("node", lambda item: item.node.name),
        Column("state", lambda item: item.state),
        Column("last_seen", lambda item: instant_text(item.node.seen_ms)),
        Column("accelerators", lambda item: item.node.accelerators, Kind.COUNT),
        Column(
            "retired_at",
            lambda item: instant_text(item.node.retired_ms) or None,
            is_optional=True,
        ),
        Column("agent", lambda item: item.node.agent_version, is_optional=True),
        Column("detail", lambda item: item.node.detail, is_optional=True),
        *(
            Column(
                name,
                lambda item, name=name: item.node.machine.get(name),  # type: ignore[misc]
                in_table=False,
            )
            for name in ("instance_type", "purchase", "region", "zone", "provider_id")
        ),
    ),
)

"""What each accelerator did in a period."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.activity import AcceleratorActivity
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.telemetry.activity import activity

NODE, UUID, BUSIEST, IDLEST = "node", "uuid", "busiest", "idlest"
_ORDERS: Mapping[str, Callable[[AcceleratorActivity], Any]] = {
    UUID: lambda item: item.uuid,
    BUSIEST: lambda item: (-(item.busy_permille or 0), -item.busy_ms, item.uuid),
    IDLEST: lambda item: (-item.idle_ms, item.uuid),
}


def list_activity(
    connection: Connection, period: Period, order: str = NODE
) -> list[AcceleratorActivity]:
    """Every accelerator present in the period; those without known activity are neither among the
    busiest nor the idlest.
    """
    items = activity(connection, period)
    if order == NODE:
        return items
    if order in {BUSIEST, IDLEST}:
        items = [item for item in items if item.busy_permille is not None]
    return sorted(items, key=_ORDERS[order])

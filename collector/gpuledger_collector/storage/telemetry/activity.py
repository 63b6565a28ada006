"""Activity of each accelerator over a period, from the hourly usage."""

from __future__ import annotations

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.activity import AcceleratorActivity
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as

_QUERY = """
    WITH used AS (
        SELECT accelerator_id,
               sum(held_ms) FILTER (WHERE state = 'held')::bigint AS held_ms,
               sum(busy_ms)::bigint AS busy_ms,
               sum(idle_ms)::bigint AS idle_ms,
               sum(unknown_ms)::bigint AS unknown_ms,
               sum(held_ms) FILTER (WHERE state = 'unallocated')::bigint AS unallocated_ms,
               sum(held_ms) FILTER (WHERE state = 'unavailable')::bigint AS unavailable_ms,
               sum(energy_mj)::bigint AS energy_mj
        FROM usage_hour WHERE hour_ms >= %(start_ms)s AND hour_ms < %(end_ms)s
        GROUP BY accelerator_id
    ), placement AS (
        SELECT DISTINCT ON (accelerator_id) accelerator_id, node_id, pool
        FROM capacity WHERE in_ms < %(end_ms)s AND (out_ms IS NULL OR out_ms > %(start_ms)s)
        ORDER BY accelerator_id, in_ms DESC
    )
    SELECT coalesce(node.name, '') AS node, a.gpu_index, a.uuid, a.model, a.mig_instance, placement.pool,
           coalesce(held_ms, 0) AS held_ms, coalesce(busy_ms, 0) AS busy_ms, coalesce(idle_ms, 0) AS idle_ms,
           coalesce(unknown_ms, 0) AS unknown_ms, coalesce(unallocated_ms, 0) AS unallocated_ms,
           coalesce(unavailable_ms, 0) AS unavailable_ms, energy_mj
    FROM placement JOIN accelerator a ON a.id = placement.accelerator_id
    LEFT JOIN node ON node.id = placement.node_id
    LEFT JOIN used ON used.accelerator_id = a.id
    ORDER BY node, a.gpu_index NULLS LAST, a.uuid
"""


def activity(connection: Connection, period: Period) -> list[AcceleratorActivity]:
    """Every accelerator present in the period (whole hours), by node and index."""
    bounds = {"start_ms": period.start_ms, "end_ms": period.end_ms}
    return select_as(connection, AcceleratorActivity, _QUERY, bounds)

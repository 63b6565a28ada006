"""Activity of each accelerator over a period, from the hourly usage."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import dict_row

from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class Activity:
    """One accelerator's time over a period, in milliseconds; `energy_mj` is None where nothing
    measured it.
    """

    node: str
    gpu_index: int | None
    uuid: str
    model: str
    mig_instance: str | None
    pool: str
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    unallocated_ms: int
    unavailable_ms: int
    energy_mj: int | None

    @property
    def busy_permille(self) -> int | None:
        """Busy thousandths of the held time whose activity is known; None when none is known."""
        known = self.busy_ms + self.idle_ms
        return self.busy_ms * 1000 // known if known else None


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


def activity(connection: Connection, start_ms: int, end_ms: int) -> list[Activity]:
    """Every accelerator present in the period (whole hours), by node and index."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return [
            Activity(**row)
            for row in cursor.execute(_QUERY, {"start_ms": start_ms, "end_ms": end_ms})
        ]

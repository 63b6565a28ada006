"""What pages that stay open watch: accelerators with their latest reading, nodes, and findings that
have not ended, in one statement for all who look on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.insight.findings import UNALLOCATED
from gpuledger_collector.insight.live_changes import LiveAccelerator, LiveFinding, LiveNode
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select

_ACCELERATOR, _NODE, _FINDING = "accelerator", "node", "finding"
_QUERY = f"""
    SELECT '{_ACCELERATOR}' AS kind, c.accelerator_id AS id, c.pool AS place, coalesce(n.name, '') AS name,
        a.gpu_micro < {MICRO} AS flag, a.health AS status, l.state, l.workload_id, l.at_ms,
        coalesce(l.gpu_sm_active_ratio, l.gpu_graphics_engine_active_ratio, l.gpu_utilization_ratio)::float8
            AS activity,
        NULL::jsonb AS owner, NULL AS finding_pool, NULL AS finding_node
    FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
        LEFT JOIN gpu_latest l ON l.accelerator_id = c.accelerator_id
    WHERE c.out_ms IS NULL
    UNION ALL SELECT '{_NODE}', id, '', name, false, status, NULL, NULL,
        floor(extract(epoch FROM last_seen_at) * 1000)::bigint, NULL, NULL, NULL, NULL
    FROM node
    UNION ALL SELECT '{_FINDING}', id, kind, team, state = '{UNALLOCATED}' AND team = '', state, NULL, NULL, NULL,
        NULL, owner, evidence->>'pool', evidence->>'node'
    FROM finding WHERE resolved_ms IS NULL
"""
"""One statement, so that a look is of one instant."""


class LiveRows(NamedTuple):
    """What one look reads."""

    accelerators: Sequence[LiveAccelerator]
    nodes: Sequence[LiveNode]
    findings: Sequence[LiveFinding]


def read_rows(connection: Connection) -> LiveRows:
    """Read accelerators that are there, all nodes, and findings that have not ended."""
    rows = select(connection, _QUERY)
    return LiveRows(
        [_accelerator(row) for row in rows if row.kind == _ACCELERATOR],
        [LiveNode(row.id, row.name, row.status, row.at_ms) for row in rows if row.kind == _NODE],
        [
            LiveFinding(
                row.id,
                row.place,
                row.name,
                row.owner,
                row.flag,
                row.finding_pool,
                row.finding_node,
            )
            for row in rows
            if row.kind == _FINDING
        ],
    )


def _accelerator(row: Any) -> LiveAccelerator:
    return LiveAccelerator(
        row.id,
        row.place,
        row.name,
        row.flag,
        row.status,
        row.state,
        row.workload_id,
        row.at_ms,
        row.activity,
    )

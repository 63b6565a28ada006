"""Refused claims in Postgres: reports that would have changed what another owner pays."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.placement import PlacementClaim, RefusedClaim
from gpuledger_collector.accounting.usage import Contradiction
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as

_NAMED = """
    SELECT a.uuid, n.name AS node, c.kind, c.subject, coalesce(h.name, '') AS holder, c.first_ms,
        c.last_ms
    FROM refused_claim c JOIN accelerator a ON a.id = c.accelerator_id JOIN node n ON n.id = c.node_id
    LEFT JOIN LATERAL (
        SELECT m.name FROM capacity p JOIN node m ON m.id = p.node_id WHERE p.accelerator_id = c.accelerator_id
            AND p.in_ms < c.last_ms ORDER BY p.in_ms DESC LIMIT 1
    ) h ON true
"""


def drop(connection: Connection, accelerators: Sequence[int], since_ms: int) -> None:
    """Delete claims that began at or after an instant, before that time is placed again."""
    connection.execute(
        "DELETE FROM refused_claim WHERE accelerator_id = ANY(%s) AND first_ms >= %s AND kind NOT"
        " IN ('holder', 'owner')",
        (list(accelerators), since_ms),
    )


def upsert(connection: Connection, refused: Sequence[PlacementClaim]) -> None:
    """Store refused claims, each from its first to its last time."""
    for claim in refused:
        connection.execute(
            "INSERT INTO refused_claim AS old (accelerator_id, node_id, kind, subject, first_ms,"
            " last_ms) VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (accelerator_id, node_id, kind,"
            " subject) DO UPDATE SET first_ms = least(old.first_ms, excluded.first_ms), last_ms ="
            " greatest(old.last_ms, excluded.last_ms)",
            (
                claim.accelerator_id,
                claim.node_id,
                claim.kind,
                claim.subject,
                claim.first_ms,
                claim.last_ms,
            ),
        )


def upsert_contradictions(connection: Connection, contradictions: Sequence[Contradiction]) -> None:
    """Store that a node reported held time for several holders; the first holder keeps the time."""
    if not contradictions:
        return
    names: dict[int, str] = dict(
        connection.execute(
            "SELECT id, key FROM workload WHERE id = ANY(%s)",
            ([contradiction.workload_id for contradiction in contradictions],),
        ).fetchall()
    )
    upsert(
        connection,
        [
            PlacementClaim(
                contradiction.accelerator_id,
                contradiction.node_id,
                "holder",
                names.get(contradiction.workload_id, ""),
                contradiction.start_ms,
                contradiction.end_ms,
            )
            for contradiction in contradictions
        ],
    )


def list_undecided(connection: Connection, period: Period) -> list[RefusedClaim]:
    """List claims of time in a period that no inventory and no namespace decides."""
    return select_as(
        connection,
        RefusedClaim,
        f"{_NAMED} WHERE c.first_ms < %s AND c.last_ms > %s AND c.kind <> 'owner' AND (c.kind ="
        " 'holder' OR NOT EXISTS"
        " (SELECT FROM inventory i JOIN accelerator p ON p.id = i.accelerator_id WHERE p.uuid IN"
        " (a.uuid, a.device_uuid) AND i.in_ms < c.last_ms AND (i.out_ms IS NULL OR i.out_ms >"
        " c.first_ms))) ORDER BY c.first_ms, a.uuid, n.name, c.kind, c.subject",
        (period.end_ms, period.start_ms),
    )


def list_since(connection: Connection, at_ms: int, limit: int) -> list[RefusedClaim]:
    """List claims that last beyond an instant, the latest first."""
    return select_as(
        connection,
        RefusedClaim,
        f"{_NAMED} WHERE c.last_ms >= %s ORDER BY c.last_ms DESC, a.uuid, c.kind LIMIT %s",
        (at_ms, limit),
    )

"""Retired nodes in Postgres: superseded rather than edited."""

from __future__ import annotations

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.placement import SEEN
from gpuledger_collector.insight.nodes import (
    RETIRED,
    UNEXPECTED,
    UNINSTALLED,
    NodeHeartbeat,
    NodeRow,
)
from gpuledger_collector.storage.ledger import dated_rows
from gpuledger_collector.storage.ledger.placements import complete_since, settle
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as, select_values

NOT_EXPECTED = f"status IN {UNEXPECTED!r}"
"""Nodes of which nobody expects a sign of life, in SQL."""
SILENT = f"extract(epoch FROM last_seen_at) * 1000 < %(silent_before)s AND NOT {NOT_EXPECTED}"
"""Nodes that are silent, in SQL, by the rule of `insight.nodes.is_silent`."""


def nodes(connection: Connection) -> list[NodeRow]:
    """Read all nodes, by name."""
    query = f"""
        SELECT n.name, floor(extract(epoch FROM n.last_seen_at) * 1000)::bigint AS seen_ms, n.status,
            n.status_detail AS detail, n.agent_version, max(l.at_ms) AS read_ms, r.at_ms AS retired_ms,
            count(c.id) AS accelerators, count(c.id) FILTER (WHERE c.source <> '{SEEN}') AS stated,
            coalesce(n.heartbeat->'machine', '{{}}') AS machine
        FROM node n LEFT JOIN node_retirement r ON r.node = n.name AND r.superseded_at IS NULL
            LEFT JOIN capacity c ON c.node_id = n.id AND c.out_ms IS NULL
            LEFT JOIN gpu_latest l ON l.accelerator_id = c.accelerator_id
        GROUP BY n.id, r.at_ms ORDER BY n.name
        """
    return select_as(connection, NodeRow, query)


def heartbeats(connection: Connection, after: str, most: int) -> list[NodeHeartbeat]:
    """The first `most` nodes by name whose name follows `after`."""
    return select_as(
        connection,
        NodeHeartbeat,
        "SELECT name, first_seen_at, last_seen_at, status, status_detail, agent_version, source,"
        " driver FROM node WHERE name > %s ORDER BY name LIMIT %s",
        (after, most),
    )


def back_again(connection: Connection) -> list[str]:
    """Name the retired nodes that have reported since."""
    return select_values(
        connection,
        "SELECT n.name FROM node n JOIN node_retirement r ON r.node = n.name AND r.superseded_at"
        f" IS NULL WHERE n.status <> '{RETIRED}' ORDER BY 1",
    )


def uninstalled_nodes(connection: Connection) -> list[str]:
    """Name the nodes whose agent was uninstalled while their accelerators are still capacity."""
    return select_values(
        connection,
        "SELECT n.name FROM node n WHERE n.status = %s AND EXISTS "
        "(SELECT FROM capacity c WHERE c.node_id = n.id AND c.out_ms IS NULL) ORDER BY 1",
        (UNINSTALLED,),
    )


def declare(connection: Connection, node: str, at_ms: int | None, now_ms: int) -> None:
    """Retire a node at an instant, or (None) take its retirement back.

    Its accelerators are placed again, and the hours and days that change are requested. Raises
    ValueError for an instant of which no evidence is kept.
    """
    if at_ms is not None and at_ms < (since_ms := complete_since(connection)):
        raise ValueError(
            f"evidence is kept from {format_instant(since_ms)} on: retire {node} then or later"
        )
    rows = connection.execute("SELECT node, at_ms FROM node_retirement WHERE superseded_at IS NULL")
    known: dict[str, int] = dict(rows.fetchall())
    before = known.pop(node, None)
    wanted = known | ({} if at_ms is None else {node: at_ms})
    content = [{"node": name, "at_ms": retired_ms} for name, retired_ms in sorted(wanted.items())]
    instant = dated_rows.after_closes(connection, now_ms)
    dated_rows.replace_rows(connection, "node_retirement", ("node", "at_ms"), content, instant)
    connection.execute(
        "UPDATE node SET status = %s, status_detail = '' WHERE name = %s",
        ("ok" if at_ms is None else RETIRED, node),
    )
    numbers = select_values(
        connection,
        "SELECT DISTINCT c.accelerator_id FROM capacity c JOIN node n ON n.id = c.node_id WHERE"
        " n.name = %s",
        (node,),
    )
    since = [at for at in (before, at_ms) if at is not None]
    if numbers and since:
        settle(connection, numbers, min(since))

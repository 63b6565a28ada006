"""Retired nodes in Postgres: superseded rather than edited."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.placement import SEEN
from gpuledger_collector.storage.ledger import dated_rows
from gpuledger_collector.storage.ledger.placements import complete_since, settle
from gpuledger_collector.storage.locks import Connection

RETIRED = "retired"
"""Status of a node from its retirement until it reports again."""
UNINSTALLED = "uninstalled"
"""Status of a node whose agent said in its last heartbeat that it is being uninstalled; its
capacity goes on.
"""
NOT_EXPECTED = "status IN ('retired', 'uninstalled', 'inventory')"
"""Nodes of which nobody expects a sign of life, in SQL: gone on purpose, or never reported by an
agent.
"""
_COLUMNS = ("node", "at_ms")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: its last sign of life, its newest reading, its retirement, and how many accelerators
    are there now.

    `stated` of them are placed by the inventory, which says itself (`out_at`) when they leave.
    """

    name: str
    seen_ms: int
    status: str
    detail: str
    agent_version: str
    read_ms: int | None
    retired_ms: int | None
    accelerators: int
    stated: int


def nodes(connection: Connection) -> list[NodeRow]:
    """Read all nodes, by name."""
    rows = connection.execute(f"""
        SELECT n.name, (extract(epoch FROM n.last_seen_at) * 1000)::bigint, n.status, n.status_detail,
            n.agent_version, max(l.at_ms), r.at_ms, count(c.id), count(c.id) FILTER (WHERE c.source <> '{SEEN}')
        FROM node n LEFT JOIN node_retirement r ON r.node = n.name AND r.superseded_at IS NULL
            LEFT JOIN capacity c ON c.node_id = n.id AND c.out_ms IS NULL
            LEFT JOIN gpu_latest l ON l.accelerator_id = c.accelerator_id
        GROUP BY n.id, r.at_ms ORDER BY n.name
        """)
    return [NodeRow(*row) for row in rows]


def back_again(connection: Connection) -> list[str]:
    """Name the retired nodes that have reported since."""
    rows = connection.execute(
        "SELECT n.name FROM node n JOIN node_retirement r ON r.node = n.name AND r.superseded_at"
        f" IS NULL WHERE n.status <> '{RETIRED}' ORDER BY 1"
    )
    return [name for (name,) in rows]


def uninstalled(connection: Connection) -> list[str]:
    """Name the nodes whose agent was uninstalled while their accelerators are still capacity."""
    rows = connection.execute(
        "SELECT n.name FROM node n WHERE n.status = %s AND EXISTS "
        "(SELECT FROM capacity c WHERE c.node_id = n.id AND c.out_ms IS NULL) ORDER BY 1",
        (UNINSTALLED,),
    )
    return [name for (name,) in rows]


def declare(connection: Connection, node: str, at_ms: int | None, now: dt.datetime) -> None:
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
    content = [dict(zip(_COLUMNS, row, strict=True)) for row in sorted(wanted.items())]
    instant = dated_rows.after_closes(connection, now)
    dated_rows.replace_rows(connection, "node_retirement", _COLUMNS, content, instant)
    connection.execute(
        "UPDATE node SET status = %s, status_detail = '' WHERE name = %s",
        ("ok" if at_ms is None else RETIRED, node),
    )
    numbers = connection.execute(
        "SELECT DISTINCT c.accelerator_id FROM capacity c JOIN node n ON n.id = c.node_id WHERE"
        " n.name = %s",
        (node,),
    ).fetchall()
    since = [at for at in (before, at_ms) if at is not None]
    if numbers and since:
        settle(connection, [number for (number,) in numbers], min(since))

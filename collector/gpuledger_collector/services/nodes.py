"""The nodes of a fleet: how they are, and which were taken out of it on purpose."""

from __future__ import annotations

from difflib import get_close_matches

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.insight.nodes import (
    SILENT_MS,
    ListedNode,
    NodeCounts,
    NodeHeartbeat,
    NodeRow,
)
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.ledger import retirements
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.plurals import plural


class NodeRefused(ValueError):
    """What is asked of a node cannot be done; the text is one sentence with the cure."""


def list_nodes(connection: Connection, now_ms: int) -> list[ListedNode]:
    """Every node and how it is now, by name."""
    return [ListedNode(node, node.state(now_ms)) for node in retirements.nodes(connection)]


def list_heartbeats(
    connection: Connection, after: str, most: int, now_ms: int
) -> list[NodeHeartbeat]:
    """The last heartbeats of the first `most` nodes by name whose name follows `after`, with the
    status of each node now.
    """
    heartbeats = retirements.heartbeats(connection, after, most)
    return [heartbeat.as_seen(now_ms) for heartbeat in heartbeats]


def count_nodes(connection: Connection, now_ms: int) -> NodeCounts:
    """How many nodes there are now, and how many of them are silent."""
    return overview.count_nodes(connection, now_ms - SILENT_MS)


def retire(connection: Connection, name: str, at_ms: int | None, now_ms: int) -> NodeRow:
    """Take a node out of the fleet from an instant on; None: from its last sign of life on.

    Its capacity ends then, unless the inventory places its accelerators. Raises NodeRefused.
    """
    node = _find_node(connection, name)
    at_ms = node.seen_ms if at_ms is None else at_ms
    if at_ms > now_ms:
        raise NodeRefused(
            f"--at: {format_instant(at_ms)} lies ahead: retire {name} when it is gone"
        )
    if node.read_ms is not None and at_ms < node.read_ms:
        seen = format_instant(node.read_ms - node.read_ms % 1000)
        raise NodeRefused(f"--at: {name} has readings until {seen}: retire it then or later")
    if node.stated:
        counted = plural(node.stated, "accelerator")
        raise NodeRefused(
            f"the inventory places {counted} of {name}: give them an out_at in its file, "
            "and gpuledger import inventory FILE"
        )
    try:
        retirements.declare(connection, name, at_ms, now_ms)
    except ValueError as error:
        raise NodeRefused(f"--at: {error}") from error
    return _find_node(connection, name)


def keep(connection: Connection, name: str, now_ms: int) -> NodeRow:
    """Take the retirement of a node back. Raises NodeRefused."""
    if _find_node(connection, name).retired_ms is None:
        raise NodeRefused(f"{name} is not retired")
    retirements.declare(connection, name, None, now_ms)
    return _find_node(connection, name)


def _find_node(connection: Connection, name: str) -> NodeRow:
    known = {node.name: node for node in retirements.nodes(connection)}
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ": gpuledger nodes list names all"
        raise NodeRefused(f"no node is called {name!r}{hint}")
    return known[name]

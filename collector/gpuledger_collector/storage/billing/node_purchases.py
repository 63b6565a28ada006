"""How nodes are bought as the labels of their clouds say it, with dates: the price book prefers that
where nobody declared another way.

A node says it with every batch, so a row is written only where it changes, from the hour of the
evidence on: hours are rated as a whole, and no price cuts them. Nothing that a node leaves out
takes back what it said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import PURCHASES, SaidPurchases
from gpuledger_collector.storage.ledger.usage import request_days_with_evidence
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_value, select_values


@dataclass(frozen=True, slots=True)
class SaidPurchase:
    """What a node says from an hour on (unix ms)."""

    node: str
    from_ms: int
    purchase: str


def said_purchase(node: str, at_ms: int, purchase: str) -> SaidPurchase | None:
    """What a node said at an instant, from its hour on; None where that is no way of buying."""
    if purchase not in PURCHASES or at_ms <= 0:
        return None
    return SaidPurchase(node, at_ms // HOUR_MS * HOUR_MS, purchase)


def during(connection: Connection, period: Period) -> SaidPurchases:
    """What nodes said of a period, oldest first: what held when it began, and what changed in it.

    Nodes without capacity or imported usage in it are left out: clouds make new ones every day.
    """
    bounds = {"start": period.start_ms, "end": period.end_ms}
    if not select_value(connection, "SELECT EXISTS (SELECT FROM node_purchase)"):
        return {}
    nodes = select_values(
        connection,
        """
        SELECT n.name FROM capacity c JOIN node n ON n.id = c.node_id
        WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s)
        UNION SELECT node FROM imported_usage
        WHERE start_ms < %(end)s AND (end_ms IS NULL OR end_ms > %(start)s)
        """,
        bounds,
    )
    said: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for node, from_ms, purchase in connection.execute(
        """
        SELECT node, from_ms, purchase FROM node_purchase p
        WHERE node = ANY(%(nodes)s) AND from_ms < %(end)s AND from_ms >= coalesce((
            SELECT max(b.from_ms) FROM node_purchase b WHERE b.node = p.node
            AND b.from_ms <= %(start)s), 0)
        ORDER BY node, from_ms
        """,
        {"nodes": nodes, **bounds},
    ):
        said[node].append((from_ms, purchase))
    return dict(said)


def is_last_said(connection: Connection, entry: SaidPurchase) -> bool:
    """Whether the node said nothing else for later hours, so that the same again changes nothing."""
    row = connection.execute(
        "SELECT 1 FROM node_purchase WHERE node = %s AND from_ms > %s AND purchase <> %s LIMIT 1",
        (entry.node, entry.from_ms, entry.purchase),
    ).fetchone()
    return row is None


def record(connection: Connection, said: Iterable[SaidPurchase], now_ms: int) -> int:
    """Keep what changes, and request the days that it reprices; how many rows were written."""
    written = 0
    for entry in sorted(said, key=lambda entry: (entry.node, entry.from_ms)):
        before = connection.execute(
            "SELECT purchase, from_ms FROM node_purchase WHERE node = %s AND from_ms <= %s"
            " ORDER BY from_ms DESC LIMIT 1",
            (entry.node, entry.from_ms),
        ).fetchone()
        if before is not None and before[0] == entry.purchase:
            # What it said in between was to hold from an hour on that has not begun.
            if entry.from_ms + HOUR_MS > now_ms:
                connection.execute(
                    "DELETE FROM node_purchase WHERE node = %s AND from_ms > %s",
                    (entry.node, max(entry.from_ms, now_ms)),
                )
            continue
        # An hour has one price: what changes inside of it holds from the next one.
        is_taken = before is not None and before[1] == entry.from_ms
        from_ms = entry.from_ms + HOUR_MS if is_taken else entry.from_ms
        after = connection.execute(
            "SELECT purchase, from_ms FROM node_purchase WHERE node = %s AND from_ms >= %s"
            " ORDER BY from_ms LIMIT 1",
            (entry.node, from_ms),
        ).fetchone()
        if after is not None and after[1] == from_ms:
            continue
        until_ms = now_ms if after is None else min(after[1], now_ms)
        if after is not None and after[0] == entry.purchase:
            connection.execute(
                "DELETE FROM node_purchase WHERE node = %s AND from_ms = %s",
                (entry.node, after[1]),
            )
        connection.execute(
            "INSERT INTO node_purchase (node, from_ms, purchase) VALUES (%s, %s, %s) ON CONFLICT"
            " DO NOTHING",
            (entry.node, from_ms, entry.purchase),
        )
        written += 1
        # The hours of a batch are rated after it anyway; only days that were before change.
        if from_ms // DAY_MS < now_ms // DAY_MS:
            request_days_with_evidence(connection, from_ms, until_ms)
    return written

"""What the overview page reads in addition to reports: cost by day and team, and the fleet with its
health.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.ledger.retirements import NOT_EXPECTED
from gpuledger_collector.storage.locks import Connection

MOST_NODES = 12
MOST_CAUSES = 10


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet now: number of GPUs, whole devices in millionths, and GPUs by state of health."""

    accelerators: int
    slices: int
    """How many of them are a part of a device (MIG), which counts by its share in `gpu_micro`."""
    gpu_micro: int
    healths: tuple[tuple[str, int], ...]
    causes: tuple[tuple[str, str, str], ...]
    """Node, accelerator and what ails it; at most MOST_CAUSES."""
    nodes: int
    silent: int
    not_well: int
    newest_ms: int | None
    """When anything was last heard of any node."""
    not_expected: int
    """Nodes of which nobody expects a sign of life; they are not silent."""

    @property
    def reports(self) -> bool:
        """Whether any node is heard of now; otherwise nothing that is so now is known."""
        return self.nodes > self.silent + self.not_expected


@dataclass(frozen=True, slots=True)
class Node:
    """A node and when its agent was last seen."""

    name: str
    seen_ms: int
    status: str
    detail: str
    gpu_micro: int
    """GPUs on it, whole devices in millionths."""
    slices: int
    """How many of its accelerators are a part of a device (MIG)."""


def daily_by_team(
    connection: Connection, period: Period, owner: Mapping[str, str]
) -> dict[str, dict[str, dict[int, int]]]:
    """Sum micro-units by currency, team (empty: unattributed) and day of what `owner` (levels;
    none: all) held.

    Corrections are left out.
    """
    where = "".join(f" AND coalesce({LEVEL_COLUMNS[level]}, '') = %s" for level in owner)
    rows = connection.execute(
        "SELECT l.currency, coalesce(o.team, ''), l.day_ms, sum(l.cost_micro) FROM ledger_day l "
        "LEFT JOIN owner o ON o.id = l.owner_id WHERE l.day_ms >= %s AND l.day_ms < %s "
        "AND l.state IN ('held', 'node_cost') "
        f"AND l.currency IS NOT NULL{where} GROUP BY 1, 2, 3",
        (period.start_ms, period.end_ms, *owner.values()),
    )
    costs: dict[str, dict[str, dict[int, int]]] = {}
    for currency, team, day_ms, cost in rows:
        costs.setdefault(currency, {}).setdefault(team, {})[day_ms] = int(cost or 0)
    return costs


def corrected(connection: Connection, period: Period) -> list[tuple[str, int, int]]:
    """Sum corrections of closed months booked in the period: currency, number of lines,
    micro-units.
    """
    rows = connection.execute(
        "SELECT currency, count(*), sum(cost_micro) FROM correction WHERE booked_day_ms >= %s AND"
        " booked_day_ms < %s AND currency IS NOT NULL GROUP BY 1 ORDER BY 1",
        (period.start_ms, period.end_ms),
    )
    return [(str(currency), int(lines), int(micro)) for currency, lines, micro in rows]


def fleet(connection: Connection, silent_before_ms: int) -> Fleet:
    """Read the fleet; a node is silent when it was last seen before that instant."""
    there = """FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
        WHERE c.out_ms IS NULL"""
    # What an accelerator was when its node fell silent is not known of now.
    health = (
        "CASE WHEN extract(epoch FROM n.last_seen_at) * 1000 < %s THEN 'silent' ELSE a.health END"
    )
    healths = connection.execute(
        f"SELECT {health}, count(*), sum(a.gpu_micro), count(*) FILTER (WHERE a.gpu_micro <"
        f" {MICRO}) {there} GROUP BY 1 ORDER BY 1",
        (silent_before_ms,),
    ).fetchall()
    causes = connection.execute(
        "SELECT coalesce(n.name, ''), a.model || coalesce(' ' || a.gpu_index, ''), "
        "coalesce(nullif(a.health_cause, ''), a.health) "
        f"{there} AND {health} NOT IN ('ok', 'unknown', 'silent') ORDER BY 1, 2 LIMIT %s",
        (silent_before_ms, MOST_CAUSES),
    ).fetchall()
    row = connection.execute(
        "SELECT count(*), count(*) FILTER (WHERE extract(epoch FROM last_seen_at) * 1000 < %s AND"
        f" NOT {NOT_EXPECTED}), count(*) FILTER (WHERE status <> 'ok'), max(extract(epoch FROM"
        f" last_seen_at) * 1000)::bigint, count(*) FILTER (WHERE {NOT_EXPECTED}) FROM node WHERE"
        " status <> 'retired'",
        (silent_before_ms,),
    ).fetchone()
    assert row is not None
    counts = tuple((str(health), int(number)) for health, number, *_ in healths)
    return Fleet(
        sum(number for _, number in counts),
        sum(int(slices) for *_, slices in healths),
        sum(int(micro) for _, _, micro, _ in healths),
        counts,
        tuple((str(node), str(card), str(cause)) for node, card, cause in causes),
        *row,
    )


def nodes(connection: Connection) -> list[Node]:
    """List the nodes that need attention first, at most MOST_NODES."""
    rows = connection.execute(
        f"""
        SELECT n.name, (extract(epoch FROM n.last_seen_at) * 1000)::bigint, n.status, n.status_detail,
            coalesce(sum(a.gpu_micro), 0)::bigint, count(a.id) FILTER (WHERE a.gpu_micro < {MICRO})
        FROM node n LEFT JOIN capacity c ON c.node_id = n.id AND c.out_ms IS NULL
            LEFT JOIN accelerator a ON a.id = c.accelerator_id
        WHERE n.status <> 'retired'
        GROUP BY n.id ORDER BY (n.status <> 'ok') DESC, n.last_seen_at, n.name LIMIT %s
        """,
        (MOST_NODES,),
    )
    return [Node(*row) for row in rows]


def backlog(connection: Connection, before_ms: int) -> int | None:
    """Start of the first hour or day before an instant that is still to be added up; None: there is
    none.

    What waits for evidence that retention has removed is never added up again.
    """
    row = connection.execute(
        """
        SELECT least(
            (SELECT min(hour_ms) FROM hour_recompute h WHERE hour_ms < %(before)s AND NOT EXISTS (
                SELECT FROM expired_day e WHERE h.hour_ms >= e.day_ms AND h.hour_ms < e.day_ms + 172800000)),
            (SELECT min(day_ms) FROM day_recompute WHERE day_ms + 86400000 <= %(before)s))
        """,
        {"before": before_ms},
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def first_rated_ms(connection: Connection) -> int | None:
    """Read the first day that is rated."""
    row = connection.execute("SELECT min(day_ms) FROM conservation_check").fetchone()
    return None if row is None else row[0]


def is_owner(connection: Connection, levels: Mapping[str, str]) -> bool:
    """Whether anybody of this part of the owner tree was ever charged."""
    conditions = " AND ".join(f"coalesce({LEVEL_COLUMNS[level]}, '') = %s" for level in levels)
    query = f"SELECT EXISTS (SELECT FROM owner o WHERE {conditions})"
    row = connection.execute(query.encode(), list(levels.values())).fetchone()
    return bool(row and row[0])


def has_prices(connection: Connection) -> bool:
    """Whether the price book has a price in force."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM price WHERE superseded_at IS NULL)"
    ).fetchone()
    return bool(row and row[0])

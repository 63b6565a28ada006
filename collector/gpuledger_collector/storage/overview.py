"""What the overview page reads in addition to reports: cost by day and team, and the fleet with its
health.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.closing import CorrectionSum, LaterChange
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.nodes import RETIRED, Ailing, Fleet, FleetNode, NodeCounts
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.ledger.retirements import NOT_EXPECTED, SILENT
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    select,
    select_as,
    select_number,
    select_value,
    select_values,
)

MOST_NODES = 12
_PAID = ", ".join(f"'{state}'" for state in sorted(PAID_BY_OWNERS))
MOST_CAUSES = 10


def daily_by_team(
    connection: Connection, period: Period, owner: Mapping[str, str]
) -> dict[str, dict[str, dict[int, int]]]:
    """Sum micro-units by currency, team (empty: unattributed) and day of what `owner` (levels;
    none: all) held.

    Corrections are left out.
    """
    where = "".join(f" AND coalesce({LEVEL_COLUMNS[level]}, '') = %s" for level in owner)
    rows = select(
        connection,
        "SELECT l.currency, coalesce(o.team, '') AS team, l.day_ms,"
        " coalesce(sum(l.cost_micro), 0)::bigint AS cost_micro FROM ledger_day l "
        "LEFT JOIN owner o ON o.id = l.owner_id WHERE l.day_ms >= %s AND l.day_ms < %s "
        "AND l.state IN ('held', 'node_cost') "
        f"AND l.currency IS NOT NULL{where} GROUP BY 1, 2, 3",
        (period.start_ms, period.end_ms, *owner.values()),
    )
    costs: dict[str, dict[str, dict[int, int]]] = {}
    for row in rows:
        costs.setdefault(row.currency, {}).setdefault(row.team, {})[row.day_ms] = row.cost_micro
    return costs


def corrections(connection: Connection, period: Period) -> list[CorrectionSum]:
    """Sum corrections of closed months booked in the period, by currency."""
    return select_as(
        connection,
        CorrectionSum,
        "SELECT currency, count(*) AS lines, sum(cost_micro)::bigint AS micro,"
        f" coalesce(sum(cost_micro) FILTER (WHERE state IN ({_PAID})), 0)::bigint AS billed_micro"
        " FROM correction WHERE booked_day_ms >= %s AND booked_day_ms < %s AND currency IS NOT NULL GROUP BY 1"
        " ORDER BY 1",
        (period.start_ms, period.end_ms),
    )


def corrections_by_booked_day(
    connection: Connection, period: Period
) -> list[tuple[int, CorrectionSum]]:
    """Sum corrections of the period's closed days that are booked after it, by the day on which
    they are and by currency.
    """
    rows = select(
        connection,
        "SELECT booked_day_ms, currency, count(*) AS lines, sum(cost_micro)::bigint AS micro FROM"
        " correction WHERE day_ms >= %s AND day_ms < %s AND booked_day_ms >= %s AND currency IS NOT"
        " NULL GROUP BY 1, 2 ORDER BY 1, 2",
        (period.start_ms, period.end_ms, period.end_ms),
    )
    return [
        (row.booked_day_ms, CorrectionSum(currency=row.currency, lines=row.lines, micro=row.micro))
        for row in rows
    ]


def changes_since_close(
    connection: Connection, period: Period, level: str, owner: Mapping[str, str]
) -> list[LaterChange]:
    """Sum corrections of a closed month's days that later months bill, by owner at a level, state,
    currency and booked day; of an owner (levels; none: all) those of what it held.
    """
    where = "".join(f" AND coalesce({LEVEL_COLUMNS[at]}, '') = %s" for at in owner)
    if owner:
        where += f" AND l.state IN ({_PAID})"
    return select_as(
        connection,
        LaterChange,
        f"SELECT coalesce({LEVEL_COLUMNS[level]}, '') AS owner, l.state, l.currency,"
        " l.booked_day_ms AS booked_ms, count(*) AS lines, sum(l.gpu_ns)::bigint AS gpu_ns,"
        " coalesce(sum(l.cost_micro), 0)::bigint AS micro FROM correction l LEFT JOIN owner o ON"
        " o.id = l.owner_id WHERE l.day_ms >= %s AND l.day_ms < %s AND l.booked_day_ms >="
        f" %s{where} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        (period.start_ms, period.end_ms, period.end_ms, *owner.values()),
    )


_BOARD = "coalesce(nullif(a.device_uuid, ''), a.uuid)"
_BOARDS = f"count(DISTINCT {_BOARD})"
"""Whole devices: the slices of one are one."""
_WORST_FIRST = (
    "array_position(ARRAY['failed', 'degraded', 'silent', 'unknown', 'ok'], {health}::text)"
)


def count_nodes(connection: Connection, silent_before_ms: int) -> NodeCounts:
    """Count the nodes; one is silent when it was last seen before that instant."""
    (counts,) = select_as(
        connection,
        NodeCounts,
        f"SELECT count(*) AS nodes, count(*) FILTER (WHERE {SILENT}) AS silent, count(*) FILTER"
        f" (WHERE {NOT_EXPECTED}) AS not_expected FROM node WHERE status <> '{RETIRED}'",
        {"silent_before": silent_before_ms},
    )
    return counts


def fleet(connection: Connection, silent_before_ms: int) -> Fleet:
    """Read the fleet; a node is silent when it was last seen before that instant."""
    there = """FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
        WHERE c.out_ms IS NULL"""
    silent = "extract(epoch FROM n.last_seen_at) * 1000 < %(silent_before)s"
    # What an accelerator was when its node fell silent is not known of now.
    health = f"CASE WHEN {silent} THEN 'silent' ELSE a.health END"
    healths = select(
        connection,
        f"SELECT health, count(*) AS number FROM (SELECT DISTINCT ON ({_BOARD}) {health} AS health"
        f" {there} ORDER BY {_BOARD}, {_WORST_FIRST.format(health=health)}) boards"
        " GROUP BY 1 ORDER BY 1",
        {"silent_before": silent_before_ms},
    )
    causes = select_as(
        connection,
        Ailing,
        f"""
        SELECT coalesce(n.name, '') AS node, a.uuid, a.gpu_index, nullif(a.mig_instance, '') AS mig_instance,
            a.model, coalesce(nullif(a.health_cause, ''), a.health) AS cause, a.health_since_ms, l.state,
            coalesce(nullif(w.name, ''), w.external_id, '') AS job, coalesce(w.key, '') AS job_key,
            coalesce(w.user_name, '') AS user
        FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
            LEFT JOIN gpu_latest l ON l.accelerator_id = a.id AND l.at_ms >= %(silent_before)s
            LEFT JOIN workload w ON w.id = l.workload_id AND l.state = 'held'
        WHERE c.out_ms IS NULL AND a.health NOT IN ('ok', 'unknown') AND ({silent}) IS NOT TRUE
        ORDER BY 1, a.gpu_index, a.uuid LIMIT %(most)s
        """,
        {"silent_before": silent_before_ms, "most": MOST_CAUSES},
    )
    counts = count_nodes(connection, silent_before_ms)
    return Fleet(
        nodes=counts.nodes,
        silent=counts.silent,
        not_expected=counts.not_expected,
        slices=select_value(
            connection,
            "SELECT count(*) FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id WHERE"
            f" c.out_ms IS NULL AND a.gpu_micro < {MICRO}",
        ),
        gpus=sum(row.number for row in healths),
        healths=[(row.health, row.number) for row in healths],
        causes=causes,
    )


def nodes(connection: Connection, silent_before_ms: int) -> list[FleetNode]:
    """List the nodes that need attention first, at most MOST_NODES: those whose status is not ok,
    that were last seen before that instant, or with an accelerator that is not well.
    """
    return select_as(
        connection,
        FleetNode,
        f"""
        SELECT n.name, floor(extract(epoch FROM n.last_seen_at) * 1000)::bigint AS seen_ms, n.status,
            n.status_detail AS detail, {_BOARDS} AS gpus,
            count(a.id) FILTER (WHERE a.gpu_micro < {MICRO}) AS slices,
            array_remove(array_agg(DISTINCT a.health) FILTER (WHERE a.health NOT IN ('ok', 'unknown')), NULL) AS healths
        FROM node n LEFT JOIN capacity c ON c.node_id = n.id AND c.out_ms IS NULL
            LEFT JOIN accelerator a ON a.id = c.accelerator_id
        WHERE n.status <> 'retired'
        GROUP BY n.id ORDER BY (n.status <> 'ok' OR extract(epoch FROM n.last_seen_at) * 1000 < %s
            OR count(a.id) FILTER (WHERE a.health NOT IN ('ok', 'unknown')) > 0) DESC, n.last_seen_at, n.name LIMIT %s
        """,
        (silent_before_ms, MOST_NODES),
    )


def backlog(connection: Connection, before_ms: int) -> int | None:
    """Start of the first hour or day before an instant that is still to be added up; None: there is
    none.

    What waits for evidence that retention has removed is never added up again.
    """
    return select_number(
        connection,
        """
        SELECT least(
            (SELECT min(hour_ms) FROM hour_recompute h WHERE hour_ms < %(before)s AND NOT EXISTS (
                SELECT FROM expired_day e WHERE h.hour_ms >= e.day_ms AND h.hour_ms < e.day_ms + 172800000)),
            (SELECT min(day_ms) FROM day_recompute WHERE day_ms + 86400000 <= %(before)s))
        """,
        {"before": before_ms},
    )


def first_rated_ms(connection: Connection) -> int | None:
    """Read the first day that is rated."""
    return select_number(connection, "SELECT min(day_ms) FROM conservation_check")


def is_owner(connection: Connection, levels: Mapping[str, str]) -> bool:
    """Whether anybody of this part of the owner tree was ever charged."""
    conditions = " AND ".join(f"coalesce({LEVEL_COLUMNS[level]}, '') = %s" for level in levels)
    query = f"SELECT EXISTS (SELECT FROM owner o WHERE {conditions})"
    return bool(select_value(connection, query, list(levels.values())))


MOST_NAMES = 2000
"""Names that are compared with one that nobody has."""


def owner_names(
    connection: Connection, level: str, name: str, within: Mapping[str, str]
) -> list[str]:
    """Names at a level of a part of the owner tree (level -> name) that were ever charged, those
    about as long as `name` first, at most MOST_NAMES.
    """
    column = LEVEL_COLUMNS[level]
    conditions = " AND ".join(
        [f"{column} <> ''", *(f"coalesce({LEVEL_COLUMNS[other]}, '') = %s" for other in within)]
    )
    query = (
        f"SELECT name FROM (SELECT DISTINCT {column} AS name FROM owner o WHERE"
        f" {conditions}) names"
        f" ORDER BY abs(length(name) - %s), name LIMIT {MOST_NAMES}"
    )
    return [str(text) for text in select_values(connection, query, [*within.values(), len(name)])]


def has_prices(connection: Connection) -> bool:
    """Whether the price book has a price in force."""
    query = "SELECT EXISTS (SELECT FROM price WHERE superseded_at IS NULL)"
    return bool(select_value(connection, query))

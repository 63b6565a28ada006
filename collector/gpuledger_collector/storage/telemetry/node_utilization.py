"""Node utilization rollup: how busy the accelerators of each node were, by quarters of an hour.

A heat map of a fleet's day would read 2.9 million minutes at 2,000 GPUs; added up by node and
quarter they are 6,000 rows of four. A row is a node's hour. It is recomputed as a whole, from the
minutes, in the transaction that recomputed one of its minutes, so late and repeated evidence reach
it as they reach the minutes. Sums and counts are kept instead of means: the mean of any nodes,
pools and spans is their quotient. Without any reading the sum is null, never 0.

A minute belongs to the node on which its accelerator was last in that minute. An accelerator that
moved, or that the inventory puts elsewhere, leaves the rows of its old node; minutes at no known
node have no row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import bigints, select, select_values
from gpuledger_collector.storage.telemetry import minutes

QUARTER_MS = HOUR_MS // 4
AT_ONCE = 2_000
"""Accelerator-hours of one statement: an hour of a large fleet, or a day of a small one."""
RATIOS = {"utilization": "utilization_ratio", "sm_active": "sm_active_ratio"}
"""Columns of the rollup, and the column of the minute rollup that each sums up."""

# Nodes that have one of these accelerators in these hours by the inventory, and nodes with a stored
# row that contains one.
_AFFECTED = """
SELECT c.node_id FROM unnest(%(ids)s::bigint[]) AS asked (id) JOIN capacity c ON c.accelerator_id = asked.id
WHERE c.node_id IS NOT NULL AND c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s)
UNION SELECT h.node_id FROM node_utilization h CROSS JOIN LATERAL unnest(h.accelerator_ids) AS was (id)
    JOIN unnest(%(ids)s::bigint[]) AS asked (id) ON asked.id = was.id
    WHERE h.hour_ms >= %(start)s AND h.hour_ms < %(end)s
"""
# All accelerators of these nodes with the minutes that belong to each node: from the minute in
# which an accelerator came to the one in which it left (rounded up), unless its next placement
# begins in that minute and takes it.
_PLACEMENTS = """
WITH wanted AS (SELECT unnest(%(nodes)s::bigint[]) AS node_id)
SELECT accelerator_id, node_id, greatest(in_ms - in_ms %% 60000, %(start)s) AS from_ms,
    least(out_ms + 59999 - (out_ms + 59999) %% 60000, next_ms - next_ms %% 60000, %(end)s) AS until_ms
FROM (
    SELECT accelerator_id, node_id, in_ms, out_ms,
        lead(in_ms) OVER (PARTITION BY accelerator_id ORDER BY in_ms, id) AS next_ms
    FROM capacity WHERE accelerator_id IN (SELECT accelerator_id FROM capacity JOIN wanted USING (node_id))
) placement JOIN wanted USING (node_id)
WHERE in_ms < %(end)s AND (out_ms IS NULL OR out_ms > %(start)s)
"""
_PRESENT = """
SELECT DISTINCT node_id FROM capacity WHERE node_id IS NOT NULL AND in_ms < %(hour)s + 3600000
    AND (out_ms IS NULL OR out_ms > %(hour)s)
UNION SELECT node_id FROM node_utilization WHERE hour_ms = %(hour)s
"""


_COLUMNS = {
    f"{name}{last}": kind for name in RATIOS for last, kind in (("", "float8"), ("_minutes", "int"))
}
"""Sums of ratios, null without any reading, and how many readings each sum has."""


def _quarters(name: str) -> str:
    """SQL: an array with the sum of a column for each quarter."""
    sums = [f"sum({name}) FILTER (WHERE quarter = {quarter})" for quarter in range(4)]
    if _COLUMNS[name] == "int":
        sums = [f"coalesce({column_sum}, 0)" for column_sum in sums]
    return f"ARRAY[{', '.join(sums)}]::{_COLUMNS[name]}[]"


# One statement: sums by node, hour, accelerator and quarter (`part`), then by node and hour as
# arrays (`computed`); rows of nodes without any minute in an hour are deleted (`gone`); rows that
# would not change are not written.
_WRITE = f"""
WITH placement AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(at)s::bigint[], %(from)s::bigint[], %(until)s::bigint[])
        AS s (accelerator_id, node_id, from_ms, until_ms)
), minute AS (
    SELECT accelerator_id, minute_ms, {", ".join(f"{source}::float8 AS {name}" for name, source in RATIOS.items())}
    FROM gpu_minute
    WHERE accelerator_id = ANY(%(ids)s::bigint[]) AND minute_ms >= %(start)s AND minute_ms < %(end)s
), part AS (
    SELECT s.node_id, m.minute_ms / {HOUR_MS} * {HOUR_MS} AS hour_ms, m.accelerator_id,
        m.minute_ms %% {HOUR_MS} / {QUARTER_MS} AS quarter,
        {", ".join(f"sum({name}) AS {name}, count({name}) AS {name}_minutes" for name in RATIOS)}
    FROM minute m JOIN placement s ON s.accelerator_id = m.accelerator_id AND m.minute_ms >= s.from_ms
        AND m.minute_ms < s.until_ms
    GROUP BY 1, 2, 3, 4
), computed AS (
    SELECT node_id, hour_ms, array_agg(DISTINCT accelerator_id) AS accelerator_ids,
        {", ".join(f"{_quarters(name)} AS {name}" for name in _COLUMNS)}
    FROM part GROUP BY 1, 2
), gone AS (
    DELETE FROM node_utilization WHERE hour_ms >= %(start)s AND hour_ms < %(end)s AND node_id = ANY(%(nodes)s::bigint[])
        AND (node_id, hour_ms) NOT IN (SELECT node_id, hour_ms FROM computed)
)
INSERT INTO node_utilization AS old (hour_ms, node_id, accelerator_ids, {", ".join(_COLUMNS)})
SELECT hour_ms, node_id, accelerator_ids, {", ".join(_COLUMNS)} FROM computed
ON CONFLICT (hour_ms, node_id) DO UPDATE SET accelerator_ids = excluded.accelerator_ids,
    {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}
    WHERE (old.accelerator_ids, {", ".join(f"old.{name}" for name in _COLUMNS)}) IS DISTINCT FROM
        (excluded.accelerator_ids, {", ".join(f"excluded.{name}" for name in _COLUMNS)})
"""


def recompute(connection: Connection, hours: Sequence[tuple[int, int]]) -> None:
    """Recompute the utilization of every node affected by these (accelerator, hour) pairs, in the
    caller's transaction.

    Affected are the nodes an accelerator is on, and those it was thought to be on. Call it after
    the minutes are written. A batch of scattered late hours reads no others.
    """
    for part in consecutive_hours(hours):
        bounds = {"start": part[0][1], "end": part[-1][1] + HOUR_MS}
        ids = bigints({accelerator_id for accelerator_id, _ in part})
        nodes = select_values(connection, _AFFECTED, {**bounds, "ids": ids})
        _recompute_hours(connection, bounds, nodes)


def consecutive_hours(hours: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """(accelerator, hour) pairs by hour, in parts of hours that follow each other with at most
    AT_ONCE pairs.

    An hour is never divided, however many pairs it has.
    """
    by_hour: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for pair in hours:
        by_hour[pair[1]].append(pair)
    part: list[tuple[int, int]] = []
    for hour_ms, pairs in sorted(by_hour.items()):
        if part and (hour_ms - part[-1][1] > HOUR_MS or len(part) + len(pairs) > AT_ONCE):
            yield part
            part = []
        part += pairs
    if part:
        yield part


def _recompute_hours(
    connection: Connection, bounds: Mapping[str, int], nodes: Sequence[int]
) -> None:
    """Recompute these nodes from `start` to `end`, whole hours, from the minutes of every
    accelerator on them.
    """
    if not nodes:
        return
    node_ids = bigints(nodes)
    placements = select(connection, _PLACEMENTS, {**bounds, "nodes": node_ids})
    values = {
        **bounds,
        "nodes": node_ids,
        "ids": bigints(placement.accelerator_id for placement in placements),
        "at": bigints(placement.node_id for placement in placements),
        "from": bigints(placement.from_ms for placement in placements),
        "until": bigints(placement.until_ms for placement in placements),
    }
    connection.execute("SET LOCAL work_mem = '64MB'")
    connection.execute(_WRITE.encode(), values)


def days_to_recompute(connection: Connection, since_ms: int, now_ms: int) -> list[int]:
    """Days (UTC) since an instant that were never computed as a whole, or not since they ended; the
    newest first.

    They begin with the first capacity. A day is computed once more after it ended, for minutes that
    were rolled up without their node utilization.
    """
    return select_values(
        connection,
        "SELECT d FROM (SELECT greatest(%(since)s::bigint, min(in_ms)) AS at FROM capacity HAVING"
        " count(*) > 0) first, generate_series(at - at %% %(day)s, %(now)s - 1, %(day)s) AS d LEFT"
        " JOIN node_utilization_day h ON h.day_ms = d WHERE h.day_ms IS NULL OR d + %(day)s <="
        " %(now)s AND h.made_ms < d + %(day)s ORDER BY d DESC",
        {"since": since_ms, "now": now_ms, "day": DAY_MS},
    )


def recompute_day(connection: Connection, day_ms: int, now_ms: int) -> None:
    """Recompute every node and hour of a day from the minutes; each hour is a transaction with the
    ledger's lock.

    Hours whose minutes have expired are left as they are. `connection` is in autocommit mode.
    """
    for hour_ms in _hours(connection, day_ms):
        with connection.transaction():
            locks.take(connection, Lock.LEDGER)
            if hour_ms < minutes.expired_before(connection):
                break
            bounds = {"start": hour_ms, "end": hour_ms + HOUR_MS}
            nodes = select_values(connection, _PRESENT, {"hour": hour_ms})
            _recompute_hours(connection, bounds, nodes)
    connection.execute(
        "INSERT INTO node_utilization_day (day_ms, made_ms) VALUES (%s, %s) "
        "ON CONFLICT (day_ms) DO UPDATE SET made_ms = excluded.made_ms",
        (day_ms, now_ms),
    )


def _hours(connection: Connection, day_ms: int) -> Sequence[int]:
    """Hours of a day; none for a day without a single minute, of which an old inventory has many."""
    row = connection.execute(
        "SELECT FROM gpu_minute WHERE accelerator_id = ANY(ARRAY(SELECT id FROM accelerator)) AND"
        " minute_ms >= %s AND minute_ms < %s LIMIT 1",
        (day_ms, day_ms + DAY_MS),
    ).fetchone()
    return () if row is None else range(day_ms, day_ms + DAY_MS, HOUR_MS)


def expire(connection: Connection, before_ms: int) -> None:
    """Delete the node utilization before an instant."""
    connection.execute("DELETE FROM node_utilization_day WHERE day_ms < %s", (before_ms,))
    connection.execute("DELETE FROM node_utilization WHERE hour_ms < %s", (before_ms,))

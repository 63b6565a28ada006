"""Heat of nodes in Postgres: how busy the accelerators of each node were, by quarters of an hour.

A heat map of a fleet's day asks for 2.9 million minutes at 2,000 GPUs; added up by node and quarter they are 6,000
rows of four. A row is a node's hour. It is made again as a whole, from the minutes, in the transaction that made one
of its minutes again, so late and doubled evidence reach it as they reach the minutes; sums and counts are kept and not
means, so that any node, pool and span is their quotient. What nobody knows has no sum: it is null, never 0.

A minute belongs to the node at which its accelerator was last in that minute. An accelerator that moved, or that the
inventory puts elsewhere, leaves the rows in which it was; minutes at no known node have no row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import minutes

Connection = psycopg.Connection[tuple[Any, ...]]
QUARTER_MS = HOUR_MS // 4
RATIOS = {"utilization": "utilization_ratio", "sm_active": "sm_active_ratio"}
"""What is kept, and the column of the minute rollup that it is added up from."""

_TOUCHED = """
SELECT c.node_id FROM unnest(%(ids)s::bigint[]) AS asked (id) JOIN capacity c ON c.accelerator_id = asked.id
WHERE c.node_id IS NOT NULL AND c.in_ms < %(hour)s + 3600000 AND (c.out_ms IS NULL OR c.out_ms > %(hour)s)
UNION SELECT h.node_id FROM node_utilization h CROSS JOIN LATERAL unnest(h.accelerator_ids) AS was (id)
    JOIN unnest(%(ids)s::bigint[]) AS asked (id) ON asked.id = was.id WHERE h.hour_ms = %(hour)s
"""
_STAYS = """
WITH wanted AS (SELECT unnest(%(nodes)s::bigint[]) AS node_id)
SELECT accelerator_id, node_id, greatest(in_ms - in_ms %% 60000, %(hour)s),
    least(out_ms + 59999 - (out_ms + 59999) %% 60000, next_ms - next_ms %% 60000, %(hour)s + 3600000)
FROM (
    SELECT accelerator_id, node_id, in_ms, out_ms,
        lead(in_ms) OVER (PARTITION BY accelerator_id ORDER BY in_ms, id) AS next_ms
    FROM capacity WHERE accelerator_id IN (SELECT accelerator_id FROM capacity JOIN wanted USING (node_id))
) stay JOIN wanted USING (node_id)
WHERE in_ms < %(hour)s + 3600000 AND (out_ms IS NULL OR out_ms > %(hour)s)
"""
_THERE = """
SELECT DISTINCT node_id FROM capacity WHERE node_id IS NOT NULL AND in_ms < %(hour)s + 3600000
    AND (out_ms IS NULL OR out_ms > %(hour)s)
UNION SELECT node_id FROM node_utilization WHERE hour_ms = %(hour)s
"""


_COLUMNS = {f"{name}{last}": kind for name in RATIOS for last, kind in (("", "float8"), ("_minutes", "int"))}
"""Sums of ratios, null where there is nothing to add up, and how many were added."""


def _quarters(name: str) -> str:
    """SQL: the array of what a column adds up to in each quarter."""
    sums = [f"sum({name}) FILTER (WHERE quarter = {at})" for at in range(4)]
    if _COLUMNS[name] == "int":
        sums = [f"coalesce({one}, 0)" for one in sums]
    return f"ARRAY[{', '.join(sums)}]::{_COLUMNS[name]}[]"


_WRITE = f"""
WITH stay AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(at)s::bigint[], %(from)s::bigint[], %(until)s::bigint[])
        AS s (accelerator_id, node_id, from_ms, until_ms)
), minute AS (
    SELECT accelerator_id, minute_ms, {", ".join(f"{source}::float8 AS {name}" for name, source in RATIOS.items())}
    FROM gpu_minute
    WHERE accelerator_id = ANY(%(ids)s) AND minute_ms >= %(hour)s AND minute_ms < %(hour)s + {HOUR_MS}
), part AS (
    SELECT s.node_id, m.accelerator_id, (m.minute_ms - %(hour)s) / {QUARTER_MS} AS quarter,
        {", ".join(f"sum({name}) AS {name}, count({name}) AS {name}_minutes" for name in RATIOS)}
    FROM minute m JOIN stay s ON s.accelerator_id = m.accelerator_id AND m.minute_ms >= s.from_ms
        AND m.minute_ms < s.until_ms
    GROUP BY 1, 2, 3
), made AS (
    SELECT node_id, array_agg(DISTINCT accelerator_id) AS accelerator_ids,
        {", ".join(f"{_quarters(name)} AS {name}" for name in _COLUMNS)}
    FROM part GROUP BY 1
), gone AS (
    DELETE FROM node_utilization WHERE hour_ms = %(hour)s AND node_id = ANY(%(nodes)s)
        AND node_id NOT IN (SELECT node_id FROM made)
)
INSERT INTO node_utilization AS old (hour_ms, node_id, accelerator_ids, {", ".join(_COLUMNS)})
SELECT %(hour)s, node_id, accelerator_ids, {", ".join(_COLUMNS)} FROM made
ON CONFLICT (hour_ms, node_id) DO UPDATE SET accelerator_ids = excluded.accelerator_ids,
    {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}
    WHERE (old.accelerator_ids, {", ".join(f"old.{name}" for name in _COLUMNS)}) IS DISTINCT FROM
        (excluded.accelerator_ids, {", ".join(f"excluded.{name}" for name in _COLUMNS)})
"""


def roll(connection: Connection, hours: Sequence[tuple[int, int]]) -> None:
    """The heat of the nodes where these (accelerator, hour) pairs are, or were thought to be, is made again.

    In the caller's transaction, after the minutes. An hour is a statement of its own: a batch of late hours reads
    these and none between them.
    """
    by_hour: dict[int, list[int]] = defaultdict(list)
    for accelerator_id, hour_ms in hours:
        by_hour[hour_ms].append(accelerator_id)
    for hour_ms, ids in sorted(by_hour.items()):
        rows = connection.execute(_TOUCHED, {"hour": hour_ms, "ids": ids}).fetchall()
        _roll_hour(connection, hour_ms, [int(row[0]) for row in rows])


def _roll_hour(connection: Connection, hour_ms: int, nodes: Sequence[int]) -> None:
    """The heat of these nodes in an hour, from the minutes of every accelerator that was there. In a transaction."""
    if not nodes:
        return
    placements = connection.execute(_STAYS, {"hour": hour_ms, "nodes": list(nodes)}).fetchall()
    ids, at, since, until = ([row[place] for row in placements] for place in range(4))
    values = {"hour": hour_ms, "nodes": list(nodes), "ids": ids, "at": at, "from": since, "until": until}
    connection.execute("SET LOCAL work_mem = '64MB'")
    connection.execute(_WRITE.encode(), values)


@dataclass(frozen=True)
class NodeUtilizationStore:
    """What the job of heat asks of Postgres; an hour is a transaction of its own, alone in writing the ledger."""

    dsn: str

    def days_to_make(self, since_ms: int, now_ms: int) -> list[int]:
        """Days (UTC) since an instant that were never made as a whole, or not since they ended; the newest first.

        From the first capacity on. A day is made again when it is over for the minutes that a collector of an older
        version rolled in it: that one knows no heat.
        """
        with open_connection(self.dsn) as connection:
            rows = connection.execute(
                "SELECT d FROM (SELECT greatest(%(since)s::bigint, min(in_ms)) AS at FROM capacity "
                "HAVING count(*) > 0) first, "
                "generate_series(at - at %% %(day)s, %(now)s - 1, %(day)s) AS d LEFT JOIN node_utilization_day h "
                "ON h.day_ms = d "
                "WHERE h.day_ms IS NULL OR d + %(day)s <= %(now)s AND h.made_ms < d + %(day)s ORDER BY d DESC",
                {"since": since_ms, "now": now_ms, "day": DAY_MS},
            ).fetchall()
        return [int(row[0]) for row in rows]

    def make(self, day_ms: int, now_ms: int) -> None:
        """The heat of every node in each hour of a day, from the minutes; what is left of some that go is no whole."""
        with open_connection(self.dsn, autocommit=True) as connection:
            for hour_ms in self._hours(connection, day_ms):
                with connection.transaction():
                    locks.take(connection, Lock.LEDGER)
                    if hour_ms < minutes.gone_before(connection):
                        break
                    rows = connection.execute(_THERE, {"hour": hour_ms}).fetchall()
                    _roll_hour(connection, hour_ms, [int(row[0]) for row in rows])
            connection.execute(
                "INSERT INTO node_utilization_day (day_ms, made_ms) VALUES (%s, %s) "
                "ON CONFLICT (day_ms) DO UPDATE SET made_ms = excluded.made_ms",
                (day_ms, now_ms),
            )

    def _hours(self, connection: Connection, day_ms: int) -> Sequence[int]:
        """Hours of a day; none of a day without a single minute, of which an old inventory has many."""
        found = connection.execute(
            "SELECT FROM gpu_minute WHERE accelerator_id = ANY(ARRAY(SELECT id FROM accelerator)) AND minute_ms >= %s "
            "AND minute_ms < %s LIMIT 1",
            (day_ms, day_ms + DAY_MS),
        ).fetchone()
        return () if found is None else range(day_ms, day_ms + DAY_MS, HOUR_MS)

    def forget(self, before_ms: int) -> int:
        """Remove the heat of before an instant; how many rows."""
        with open_connection(self.dsn) as connection:
            connection.execute("DELETE FROM node_utilization_day WHERE day_ms < %s", (before_ms,))
            return connection.execute("DELETE FROM node_utilization WHERE hour_ms < %s", (before_ms,)).rowcount

"""The one room in which usage intervals are read: rows of `usage_interval`, and packed days.

Every statement that reads evidence of use selects from `intervals(since, until)`, never from
`usage_interval` itself, so that it sees packed and unpacked intervals as the same rows. Both are
read by one statement and so in one snapshot: a day that is packed meanwhile is seen once.

Postgres unpacks a day where it lies: on Citus, on the worker of its accelerator. Citus joins such a
union to no other table, so who needs names beside it selects in a MATERIALIZED part of WITH first.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage.distribution import has_citus
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_value
from gpuledger_collector.storage.telemetry import first_interval_format, interval_columns
from gpuledger_collector.storage.telemetry.interval_columns import CONTEXT_PLANES, LEAST, PLANES

COLUMNS = (
    "accelerator_id",
    "workload_id",
    "state",
    "start_ms",
    "end_ms",
    "held_ms",
    "busy_ms",
    "idle_ms",
    "unknown_ms",
    "energy_mj",
    "node_id",
    "epoch",
    "seq",
    "record",
    "accelerator_attributes_id",
    "workload_attributes_id",
)
"""Columns of `usage_interval`, in its order."""
ALWAYS_MS = 7_258_118_400_000
"""An instant after all evidence: ingest accepts none of more than a day ahead."""
SOURCE_COLUMNS = {
    "states": "state",
    "node_ids": "node_id",
    "epochs": "epoch",
    "accelerator_attributes_ids": "accelerator_attributes_id",
    "seqs": "seq",
}
"""Arrays of `usage_interval_day` with a value for each source, and what the value is called."""
IS_LONG = f"end_ms - start_ms > {HOUR_MS}"
"""SQL: what the index of long usage intervals has, word for word."""
RECENT = "usage_interval"
"""Evidence of the last days alone, for questions about now: no day is packed before 37 days."""


def _number(column: str, most: int, numbers: str) -> str:
    """SQL: the number at `place` in a column of bits, one of `numbers`: the bits that are no whole
    byte, then byte planes.
    """
    name = column.rpartition(".")[2]
    cast = "::bigint" if most > 4 else ""
    head, bits, planes = f"d.{name}_head", f"d.{name}_bits", f"d.{name}_planes"
    top = (
        f"((get_byte({column}, place * {bits} / 8) >> (place * {bits} & 7)) & ((1 << {bits}) - 1))"
    )
    cases = []
    for count in range(1, most + 1):
        parts = [
            f"(get_byte({column}, {head} + {plane} * {numbers} + place){cast}"
            f" << {8 * (count - 1 - plane)})"
            for plane in range(count)
        ]
        cases.append(f"WHEN {count} THEN {' | '.join(parts)}")
    least = f" + p.{name}_least" if name in LEAST else ""
    return f"""((CASE WHEN {head} = 0 THEN 0 ELSE {top}{cast} << (8 * {planes}) END
            | CASE {planes} WHEN 0 THEN 0 {" ".join(cases)} END){least})"""


def _bits(columns: Mapping[str, int], alias: str) -> str:
    """SQL: a table of one row with these columns of a packed day.

    unnest of arrays of one element reads each column once for all its numbers: `get_byte` of the
    table's own column would decompress all of it for every byte. It stands beside the table, not in
    the subquery that needs it: Citus 13.2 sends no worker a function there that names the table.
    """
    return f"unnest({', '.join(f'ARRAY[p.{name}]' for name in columns)}) AS {alias} ({', '.join(columns)})"


def _numbers(columns: Mapping[str, int], numbers: str, alias: str) -> str:
    """SQL: the numbers of columns of `_bits` at each place, as `place` and the names of the columns."""
    values = ", ".join(
        f"{_number(f'{alias}.{name}', most, numbers)} AS {name}" for name, most in columns.items()
    )
    # Without a percent sign, which is a placeholder where a statement has values.
    shape = ", ".join(
        f"octet_length({alias}.{name}) / {numbers} AS {name}_planes,"
        f" mod(octet_length({alias}.{name}), {numbers}) AS {name}_head,"
        f" mod(octet_length({alias}.{name}), {numbers}) * 8 / {numbers} AS {name}_bits"
        for name in columns
    )
    # The places depend on the lengths, so that no plan reads these once for each of them; OFFSET
    # has numbers, not columns, sorted by place.
    return f"""SELECT place, {values}
        FROM (SELECT {shape}, {numbers} - 1 AS last OFFSET 0) AS d
        CROSS JOIN LATERAL generate_series(0, d.last) AS place OFFSET 0"""


def _step(name: str) -> str:
    """SQL: the step that a number above 0 stands for: 1 is none, then up and down in turn."""
    return (
        f"CASE WHEN {name} & 1 = 1 THEN {name} >> 1 WHEN {name} > 0 THEN -({name} >> 1) ELSE 0 END"
    )


def _share(name: str) -> str:
    """SQL: milliseconds of the held time, from the ticks of which it has about as many."""
    return f"h.held_ms * v.{name}_ticks / h.ticks + v.{name}"


_CONTEXTS = f"""SELECT place AS context, source, power,
        CASE WHEN workload > 0 THEN p.workload_first + sum({_step("workload")}) OVER w END::bigint
            AS workload_id,
        CASE WHEN attributes > 0 THEN p.attributes_first + sum({_step("attributes")}) OVER w
            END::bigint AS attributes_offset
    FROM ({_numbers(CONTEXT_PLANES, "p.contexts", "c")}) AS number
    WINDOW w AS (ORDER BY place ROWS UNBOUNDED PRECEDING)"""
"""SQL: what intervals of a packed day have in common, by context."""
_UNPACKED = f"""
SELECT p.accelerator_id, v.workload_id, s.state, p.day_ms + v.until_ms - v.length AS start_ms,
    p.day_ms + v.until_ms AS end_ms, h.held_ms, h.held_ms - u.idle_ms - u.unknown_ms AS busy_ms,
    u.idle_ms, u.unknown_ms,
    CASE WHEN v.energy <> p.energy_least
        THEN v.energy + v.power * p.power_step_mw * v.length / 1000 END AS energy_mj,
    s.node_id, s.epoch, s.seq + (v.until_ms + p.seq_offset_ms) / p.seq_step_ms + v.seq AS seq,
    v.record::integer AS record, s.accelerator_attributes_id,
    coalesce(v.workload_id, 0) + v.attributes_offset AS workload_attributes_id
FROM usage_interval_day p
CROSS JOIN LATERAL {_bits(PLANES, "b")}
CROSS JOIN LATERAL {_bits(CONTEXT_PLANES, "c")}
CROSS JOIN LATERAL (
    -- OFFSET: with the few sources of a day, contexts would be few to the planner, and each interval
    -- would be compared with all of them.
    SELECT numbers.*, k.source, k.power, k.workload_id, k.attributes_offset
    FROM (
        SELECT missing, idle_ticks, idle, unknown_ticks, unknown, energy, seq,
            CASE WHEN context > 1 THEN context - 2
                ELSE sum((context = 1)::integer) OVER w - 1 END AS context,
            sum(ticks::integer) OVER w * p.tick_ms + jitter AS until_ms,
            ticks * p.tick_ms + jitter - lag(jitter, 1, 0::bigint) OVER w - gap AS length,
            sum(record::integer) OVER w AS record
        FROM ({_numbers(PLANES, "p.rows", "b")}) AS number
        WINDOW w AS (ORDER BY place ROWS UNBOUNDED PRECEDING)
    ) AS numbers JOIN ({_CONTEXTS}) AS k ON k.context = numbers.context OFFSET 0
) AS v
JOIN LATERAL unnest({", ".join(f"p.{name}" for name in SOURCE_COLUMNS)})
    WITH ORDINALITY AS s ({", ".join(SOURCE_COLUMNS.values())}, source) ON s.source = v.source + 1
CROSS JOIN LATERAL (
    SELECT CASE WHEN s.state = 'held' THEN v.length ELSE 0 END - v.missing AS held_ms,
        greatest(1, (v.length + p.tick_ms / 2) / p.tick_ms) AS ticks
) AS h
CROSS JOIN LATERAL (SELECT {_share("idle")} AS idle_ms, {_share("unknown")} AS unknown_ms) AS u
WHERE p.format = {interval_columns.FORMAT}
"""


def intervals(since: str | int, until: str | int = ALWAYS_MS) -> str:
    """SQL: a table in parentheses, to be given a name, with the columns COLUMNS of all intervals
    that begin from `since` (unix ms) and before `until`, each a number or the SQL of one.

    Conditions on `accelerator_id` reach rows and packed days; a join does not, and unpacks every
    accelerator.
    """
    begins = f"start_ms >= {since} AND start_ms < {until}"
    return f"({_rows(begins)} UNION ALL {_packed_rows(since, until, begins)})"


def overlapping(start: str | int, end: str | int, *, with_packed: bool = True) -> str:
    """SQL: as `intervals`, those that overlap a period, of whatever length ingest accepts: a day.

    Those that begin up to an hour before it are found by their begin, as agents cut at the hour; the
    few that are longer have an index of their own. Late in a day nothing is read of its earlier
    hours. Without packed days, of which `may_be_packed` says whether there are any, rows take a tenth
    less of the server.
    """
    longest = f"start_ms >= {start} - {DAY_MS}"
    ends = f"end_ms > {start}"
    rows = [
        _rows(f"start_ms >= {start} - {HOUR_MS} AND start_ms < {end} AND {ends}"),
        _rows(f"{longest} AND start_ms < {start} - {HOUR_MS} AND {IS_LONG} AND {ends}"),
    ]
    if with_packed:
        begins = f"{longest} AND start_ms < {end} AND {ends}"
        rows.append(_packed_rows(f"{start} - {DAY_MS}", end, begins))
    return f"({' UNION ALL '.join(rows)})"


def _rows(condition: str) -> str:
    return f"SELECT {', '.join(COLUMNS)} FROM usage_interval WHERE {condition}"


def _packed_rows(since: str | int, until: str | int, condition: str) -> str:
    columns = ", ".join(COLUMNS)
    days = f"p.day_ms > {since} - {DAY_MS} AND p.day_ms < {until}"
    return f"""
    SELECT {columns} FROM ({_UNPACKED} AND {days}) AS unpacked WHERE {condition}
    UNION ALL
    SELECT {columns} FROM ({first_interval_format.UNPACKED} AND {days}) AS unpacked WHERE {condition}
"""


def may_be_packed(connection: Connection, start_ms: int, end_ms: int) -> bool:
    """Whether evidence that overlaps a period is packed, or may be when the next statement reads it.

    It may in a transaction without one snapshot, and on Citus, where each worker takes its own.
    """
    if connection.isolation_level != psycopg.IsolationLevel.REPEATABLE_READ:
        return True
    query = "SELECT day_ms FROM usage_interval_day WHERE day_ms > %s AND day_ms < %s LIMIT 1"
    day_ms = select_value(connection, query, (start_ms - 2 * DAY_MS, end_ms))
    return day_ms is not None or has_citus(connection)


def packed(day_ms: int) -> str:
    """SQL: a table in parentheses with the columns COLUMNS of the packed intervals of a day."""
    day = f"p.day_ms = {int(day_ms)}"
    return f"({_UNPACKED} AND {day} UNION ALL {first_interval_format.UNPACKED} AND {day})"


WORKLOADS = f"""
SELECT DISTINCT k.workload_id FROM usage_interval_day p
CROSS JOIN LATERAL {_bits(CONTEXT_PLANES, "c")} CROSS JOIN LATERAL ({_CONTEXTS}) AS k
WHERE p.format = {interval_columns.FORMAT}
"""
"""SQL: the ids of all workloads that packed days name, but for those in `workload_ids`."""

"""The one room in which usage intervals are read: rows of `usage_interval`, and packed days.

Every statement that reads evidence of use selects from `intervals(since, until)`, never from
`usage_interval` itself, so that it sees packed and unpacked intervals as the same rows. Both are
read by one statement and so in one snapshot: a day that is packed meanwhile is seen once.

Postgres unpacks a day where it lies: on Citus, on the worker of its accelerator. Citus joins such a
union to no other table, so who needs names beside it selects in a MATERIALIZED part of WITH first.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage.telemetry import interval_columns
from gpuledger_collector.storage.telemetry.interval_columns import PLANES

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
CONTEXT_COLUMNS = {
    "workload_ids": "workload_id",
    "states": "state",
    "node_ids": "node_id",
    "epochs": "epoch",
    "accelerator_attributes_ids": "accelerator_attributes_id",
    "attributes_offsets": "attributes_offset",
    "seqs": "seq",
    "power_mw": "power_mw",
}
"""Arrays of `usage_interval_day` with a value for each context, and what the value is called."""
LEAST = {name: f"{name}_least" for name in interval_columns.LEAST}
"""Columns of bytes to whose values a number of the day is added."""


RECENT = "usage_interval"
"""Evidence of the last days alone, for questions about now: no day is packed before 37 days."""


def _number(name: str) -> str:
    """SQL: the value of a column of bytes at `place`, from its planes."""
    cast = "::bigint" if PLANES[name] > 4 else ""
    cases = []
    for planes in range(1, PLANES[name] + 1):
        parts = [
            f"(get_byte(b.{name}, {f'{plane} * p.rows + ' if plane else ''}place){cast}"
            f" << {8 * (planes - 1 - plane)})"
            for plane in range(planes)
        ]
        cases.append(f"WHEN {planes} THEN {' | '.join(parts)}")
    return f"CASE octet_length(b.{name}) / p.rows WHEN 0 THEN 0 {' '.join(cases)} END"


_NUMBERS: Mapping[str, str] = {
    name: f"({_number(name)}{f' + p.{LEAST[name]}' if name in LEAST else ''})" for name in PLANES
}
_BYTES = ", ".join(PLANES)
# unnest of arrays of one element reads each column of bytes once for all its rows: `get_byte` of
# the table's own column would decompress all of it for every byte.
_UNPACKED = f"""
SELECT p.accelerator_id, k.workload_id, k.state, p.day_ms + v.until_ms - v.length AS start_ms,
    p.day_ms + v.until_ms AS end_ms, h.held_ms, h.held_ms - v.idle - v.unknown AS busy_ms,
    v.idle::bigint AS idle_ms, v.unknown::bigint AS unknown_ms,
    CASE WHEN v.energy <> p.energy_least THEN v.energy + k.power_mw * v.length / 1000 END
        AS energy_mj,
    k.node_id, k.epoch, k.seq + v.until_ms / p.seq_step_ms + v.seq AS seq, v.record,
    k.accelerator_attributes_id,
    coalesce(k.workload_id, 0) + k.attributes_offset AS workload_attributes_id
FROM usage_interval_day p
CROSS JOIN LATERAL unnest({", ".join(f"ARRAY[p.{name}]" for name in PLANES)}) AS b ({_BYTES})
CROSS JOIN LATERAL (
    SELECT context, length, missing, idle, unknown, energy, seq, record,
        sum((gap + length)::integer) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS until_ms
    FROM (
        SELECT place, {", ".join(f"{number} AS {name}" for name, number in _NUMBERS.items())}
        FROM generate_series(0, p.rows - 1) AS place
    ) AS number
) AS v
JOIN LATERAL unnest({", ".join(f"p.{name}" for name in CONTEXT_COLUMNS)})
    WITH ORDINALITY AS k ({", ".join(CONTEXT_COLUMNS.values())}, context)
    ON k.context = v.context + 1
CROSS JOIN LATERAL (
    SELECT CASE WHEN k.state = 'held' THEN v.length ELSE 0 END - v.missing AS held_ms
) AS h
"""


def intervals(since: str | int, until: str | int = ALWAYS_MS) -> str:
    """SQL: a table in parentheses, to be given a name, with the columns COLUMNS of all intervals
    that begin from `since` (unix ms) and before `until`, each a number or the SQL of one.

    Conditions on `accelerator_id` reach rows and packed days; a join does not, and unpacks every
    accelerator.
    """
    columns = ", ".join(COLUMNS)
    begins = f"start_ms >= {since} AND start_ms < {until}"
    return f"""(
    SELECT {columns} FROM usage_interval WHERE {begins}
    UNION ALL
    SELECT {columns} FROM (
        {_UNPACKED} WHERE p.day_ms > {since} - {DAY_MS} AND p.day_ms < {until}
    ) AS unpacked WHERE {begins}
)"""


def packed(day_ms: int) -> str:
    """SQL: a table in parentheses with the columns COLUMNS of the packed intervals of a day."""
    return f"({_UNPACKED} WHERE p.day_ms = {int(day_ms)})"

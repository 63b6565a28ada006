"""How usage intervals were packed at first (format 1), for reading days that are still packed so; the
job that packs days packs them again (`interval_packing`).

A context has all that intervals have in common, as arrays with a value for each. A column has whole
bytes alone: byte `row` of plane `p` stands at `p * rows + row`.
"""

PLANES = {
    "context": 4,
    "gap": 4,
    "length": 4,
    "missing": 4,
    "idle": 4,
    "unknown": 4,
    "energy": 6,
    "seq": 4,
    "record": 4,
}
"""Columns with a number for each interval, and how many planes each has at most."""
LEAST = ("gap", "length", "energy")
"""Columns to whose values the least of the day is added."""
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
"""Arrays with a value for each context, and what the value is called."""


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
    number = f"CASE octet_length(b.{name}) / p.rows WHEN 0 THEN 0 {' '.join(cases)} END"
    return f"({number}{f' + p.{name}_least' if name in LEAST else ''})"


UNPACKED = f"""
SELECT p.accelerator_id, k.workload_id, k.state, p.day_ms + v.until_ms - v.length AS start_ms,
    p.day_ms + v.until_ms AS end_ms, h.held_ms, h.held_ms - v.idle - v.unknown AS busy_ms,
    v.idle::bigint AS idle_ms, v.unknown::bigint AS unknown_ms,
    CASE WHEN v.energy <> p.energy_least THEN v.energy + k.power_mw * v.length / 1000 END
        AS energy_mj,
    k.node_id, k.epoch, k.seq + v.until_ms / p.seq_step_ms + v.seq AS seq, v.record,
    k.accelerator_attributes_id,
    coalesce(k.workload_id, 0) + k.attributes_offset AS workload_attributes_id
FROM usage_interval_day p
CROSS JOIN LATERAL unnest({", ".join(f"ARRAY[p.{name}]" for name in PLANES)})
    AS b ({", ".join(PLANES)})
CROSS JOIN LATERAL (
    SELECT context, length, missing, idle, unknown, energy, seq, record,
        sum((gap + length)::integer) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS until_ms
    FROM (
        SELECT place, {", ".join(f"{_number(name)} AS {name}" for name in PLANES)}
        FROM generate_series(0, p.rows - 1) AS place
    ) AS number
) AS v
JOIN LATERAL unnest({", ".join(f"p.{name}" for name in CONTEXT_COLUMNS)})
    WITH ORDINALITY AS k ({", ".join(CONTEXT_COLUMNS.values())}, context)
    ON k.context = v.context + 1
CROSS JOIN LATERAL (
    SELECT CASE WHEN k.state = 'held' THEN v.length ELSE 0 END - v.missing AS held_ms
) AS h
WHERE p.format = 1
"""
"""SQL: the intervals of every day of this format, with the columns of `usage_interval`."""

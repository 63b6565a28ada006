"""All that a reconciliation needs of the charges of a period, in one statement.

A month of a large fleet has a million charges: they are grouped once, by the keys of the ledger of
days, and each comparison adds up the groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger_collector.accounting.identities import DAYS, Mismatch
from gpuledger_collector.accounting.measures import COMPARED, MEASURES
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.reconciliation import ChargedState
from gpuledger_collector.storage.billing.identities import path_text
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.database import SORT_MEMORY
from gpuledger_collector.storage.locks import Connection

MOST = 50
"""Lines of each side that are named: one write may change a whole month."""
_KEYS = "day_ms, owner_id, state, pool, gpu_model, currency"
_LINE = ", ".join((_KEYS, *MEASURES))
_LINE_KEYS = ("owner_id", "state", "pool", "gpu_model", "currency")
_LIST_COST = "coalesce(list_cost_micro, contracted_cost_micro)"
_WHERE = "WHERE day_ms >= %(start)s AND day_ms < %(end)s"
_LEVELS = ", ".join(f"coalesce({LEVEL_COLUMNS[level]}, '')" for level in LEVELS)


def _sum(name: str) -> str:
    """The sum of a measure over charges, as rating adds up the lines of a day."""
    if name not in COMPARED:
        return f"sum({name})"
    # A covered part without a contracted cost makes the whole line incomparable.
    unknown = (
        "count(*) FILTER (WHERE commitment_id IS NOT NULL AND contracted_cost_micro IS NULL) > 0"
    )
    return (
        f"CASE WHEN {unknown} THEN NULL ELSE"
        f" sum({_LIST_COST if name == 'list_cost_micro' else name}) END"
    )


# Usage imported as counts has no accelerator: only of that the node is told apart.
_IS_COUNTED = (
    "accelerator_id IS NULL AND state <> 'commitment_unused' AND node_cost_id IS NULL AND"
    " adjustment_id IS NULL AND inference_id IS NULL"
)
_HAS_MORE_KEYS = (
    "(adjustment_id IS NOT NULL OR node_cost_id IS NOT NULL OR inference_id IS NOT NULL OR "
    + _IS_COUNTED
    + ")"
)
_MORE = f" AND (SELECT bool_or(has_more_keys) FROM charged) AND {_HAS_MORE_KEYS}"
"""Most fleets have none in most months, and then the charges are not read a second time."""
_OTHERS = f"""
    SELECT {_KEYS}, adjustment_id, node_cost_id, inference_id, CASE WHEN {_IS_COUNTED} THEN node END AS node,
        {{corrects}} AS corrects, sum(gpu_ns) AS gpu_ns, sum(cost_micro) AS cost_micro
    FROM {{table}} {_WHERE}{{more}} GROUP BY {_KEYS}, 7, 8, 9, 10"""
# Each key more is hashed for every charge, so all of them are grouped by the keys of the ledger of
# days only. What has more keys (adjustments, node costs, imported counts, corrections) is found by
# a filter, and is few charges or all.
_SUMS = f"""
WITH charged AS MATERIALIZED (
    SELECT {_KEYS}, {", ".join(f"{_sum(name)} AS {name}" for name in MEASURES)},
        count(*) FILTER (WHERE {_HAS_MORE_KEYS}) > 0 AS has_more_keys FROM charge {_WHERE} GROUP BY {_KEYS}
), others AS MATERIALIZED (
    {_OTHERS.format(table="charge", corrects="false", more=_MORE)}
    UNION ALL {_OTHERS.format(table="correction", corrects="true", more="")}
), state AS (
    SELECT day_ms, state, false AS imported, currency, gpu_ns, cost_micro FROM charged
    UNION ALL SELECT day_ms, state, node IS NOT NULL, currency, gpu_ns, cost_micro FROM others
    WHERE corrects OR node IS NOT NULL
    UNION ALL SELECT day_ms, state, false, currency, -gpu_ns, -cost_micro FROM others WHERE node IS NOT NULL
        AND NOT corrects
), line ({_LINE}, side) AS (
    SELECT {_LINE}, 1 FROM charged
    UNION ALL SELECT {_LINE}, -1 FROM ledger_day {_WHERE}
), odd AS (
    SELECT {_LINE}, sum(side) < 0 AS is_stored FROM line GROUP BY {_LINE} HAVING sum(side) <> 0
    ORDER BY {_KEYS}, is_stored LIMIT {2 * MOST}
)
SELECT 'state', to_jsonb(part) FROM (
    SELECT day_ms, CASE state WHEN 'node_cost' THEN 'held' ELSE state END AS state, imported, currency,
        sum(gpu_ns) AS gpu_ns, sum(cost_micro) AS cost_micro FROM state GROUP BY 1, 2, 3, 4
    HAVING sum(gpu_ns) <> 0 OR sum(cost_micro) <> 0) AS part
UNION ALL SELECT 'adjusted', to_jsonb(part) FROM (
    SELECT l.day_ms, a.name, ARRAY[{_LEVELS}] AS levels, l.pool, l.gpu_model, coalesce(l.currency, '') AS currency,
        sum(l.cost_micro) AS micro FROM others l JOIN adjustment a ON a.id = l.adjustment_id
    LEFT JOIN owner o ON o.id = l.owner_id GROUP BY 1, 2, 3, 4, 5, 6) AS part
UNION ALL SELECT 'node', to_jsonb(part) FROM (
    SELECT n.name, l.currency, sum(l.cost_micro) AS micro FROM others l JOIN node_cost n ON n.id = l.node_cost_id
    WHERE l.currency IS NOT NULL GROUP BY 1, 2) AS part
UNION ALL SELECT 'inference', to_jsonb(part) FROM (
    SELECT l.day_ms, s.server, s.gateway, s.tenant, s.trust, ARRAY[{_LEVELS}] AS levels, l.pool, l.gpu_model,
        coalesce(l.currency, '') AS currency, sum(l.cost_micro) AS micro
    FROM others l JOIN inference_share s ON s.id = l.inference_id LEFT JOIN owner o ON o.id = l.owner_id
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9) AS part
UNION ALL SELECT 'imported', to_jsonb(part) FROM (
    SELECT day_ms, pool, gpu_model, node, sum(gpu_ns) AS gpu_ns FROM others
    WHERE node IS NOT NULL AND state = 'held'
    GROUP BY 1, 2, 3, 4) AS part
UNION ALL SELECT 'odd', to_jsonb(part) FROM (
    SELECT odd.*, ARRAY[{_LEVELS}] AS levels FROM odd LEFT JOIN owner o ON o.id = odd.owner_id) AS part
"""

Row = dict[str, Any]
AdjustedPlace = tuple[int, str, OwnerPath, str, str, str]
"""Day, name of the adjustment, owner, pool, model and currency."""
MovedPlace = tuple[int, str, str, str, str, OwnerPath, str, str, str]
"""Day, server, gateway, tenant, trust, owner, pool, model and currency."""
ImportedPlace = tuple[int, str, str, str]
"""Day, pool, model and node."""


@dataclass(frozen=True)
class ChargeSums:
    """The charges of a period's days with all corrections of them, added up in several ways."""

    period: Period
    states: Mapping[int, Sequence[ChargedState]]
    """By day, state and currency; what owners pay for nodes stands with what they held."""
    adjusted: Mapping[AdjustedPlace, int]
    """Micro-units of adjustments."""
    moved: Mapping[MovedPlace, int]
    """Micro-units that move between payers of shared servers and owners of tenants."""
    nodes: Mapping[str, Mapping[str, int]]
    """Micro-units of node costs, by name and currency."""
    imported: Mapping[ImportedPlace, int]
    """GPU-nanoseconds of imported usage."""
    unlike_days: Sequence[Mismatch]
    """Where the ledger of days is not the sum of the charges, which knows no corrections; at most
    MOST places.
    """


def read(connection: Connection, period: Period, calendar: Calendar) -> ChargeSums:
    """Add up the charges of a period, and compare the ledger of days with them."""
    # For the rest of the transaction: with the default the server sorts a month of charges on disk,
    # twice as slowly.
    connection.execute("SELECT set_config('work_mem', %s, true)", (SORT_MEMORY,))
    parts: dict[str, list[Row]] = defaultdict(list)
    # A month has far fewer groups than the server expects, which would sort a million charges on
    # disk to make them.
    connection.execute("SELECT set_config('enable_sort', 'off', true)")
    for part, row in connection.execute(_SUMS, {"start": period.start_ms, "end": period.end_ms}):
        parts[part].append(row)
    connection.execute("SELECT set_config('enable_sort', 'on', true)")
    return ChargeSums(
        period=period,
        states=_states(parts["state"]),
        adjusted={_adjusted_place(row): row["micro"] for row in parts["adjusted"] if row["micro"]},
        moved={_moved_place(row): row["micro"] for row in parts["inference"] if row["micro"]},
        nodes=_nodes(parts["node"]),
        imported={
            (row["day_ms"], row["pool"], row["gpu_model"], row["node"]): row["gpu_ns"]
            for row in parts["imported"]
        },
        unlike_days=_unlike_days(parts["odd"], calendar),
    )


def _states(rows: Sequence[Row]) -> dict[int, list[ChargedState]]:
    states: dict[int, list[ChargedState]] = defaultdict(list)
    for row in rows:
        states[row["day_ms"]].append(ChargedState(**row))
    return states


def _adjusted_place(row: Row) -> AdjustedPlace:
    return (
        row["day_ms"],
        row["name"],
        OwnerPath(*row["levels"]),
        row["pool"],
        row["gpu_model"],
        row["currency"],
    )


def _moved_place(row: Row) -> MovedPlace:
    return (
        row["day_ms"],
        row["server"],
        row["gateway"],
        row["tenant"],
        row["trust"],
        OwnerPath(*row["levels"]),
        row["pool"],
        row["gpu_model"],
        row["currency"],
    )


def _nodes(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: (row["name"], row["currency"])):
        sums[row["name"]][row["currency"]] = row["micro"]
    return sums


def _unlike_days(rows: Sequence[Row], calendar: Calendar) -> list[Mismatch]:
    """Pair the two sides of each line that is not equal, and name the measures that differ."""
    lines: dict[tuple[Any, ...], dict[bool, Row]] = defaultdict(dict)
    for row in rows:
        lines[row["day_ms"], *(row[key] for key in _LINE_KEYS)][row["is_stored"]] = row
    mismatches = []
    for sides in list(lines.values())[:MOST]:
        sample = next(iter(sides.values()))
        owner = "" if sample["owner_id"] is None else path_text(OwnerPath(*sample["levels"]))
        texts = (sample[key] or "" for key in _LINE_KEYS[1:])
        place = (calendar.date_of(sample["day_ms"]).isoformat(), owner, *texts)
        for name in MEASURES:
            expected, stored = (
                sides[side][name] if side in sides else None for side in (False, True)
            )
            if expected != stored:
                mismatches.append(
                    Mismatch(
                        identity=DAYS,
                        place=dict(zip(DAYS.keys, place, strict=True)),
                        measure=name,
                        expected=expected,
                        stored=stored,
                    )
                )
    return mismatches

"""An owner's rows of the full chargeback, worked out by Postgres: their cents are those of
everybody's report.

What rounding leaves over goes to the largest remainders of a list, so an owner's cents depend on
all others. Postgres adds up the list and counts who comes first; of others nothing leaves it but
sums (accounting.chargeback.PlaceInList).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from gpuledger_collector.accounting.adjustments import BESIDE_CAPACITY, PAID_BY_OWNERS
from gpuledger_collector.accounting.carbon import MJ_PER_KWH, Intensity, intensity_of, per_kwh
from gpuledger_collector.accounting.chargeback import (
    PRINTED,
    UNATTRIBUTED,
    PlaceInList,
    ReportRow,
    row_of_list,
)
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.currencies import MINOR_DIGITS
from gpuledger_collector.accounting.money import minor_unit
from gpuledger_collector.accounting.node_costs import NODE_COST
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.shared_costs import AMOUNT, DIMENSIONS, UNSHARED
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.storage.billing import allocation
from gpuledger_collector.storage.billing.locations import LineSource
from gpuledger_collector.storage.billing.owner_shares import (
    POOL,
    SplitCost,
    SqlStatement,
    add_lines,
    add_owners,
    moved_away_sql,
)
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

_EXACT = tuple(exact for _, exact, _, _ in PRINTED)


def _states(states: Iterable[str]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


def _owner_cell_sql(key: str) -> str:
    """SQL of the cell of an owner."""
    return f"coalesce(nullif({key}, ''), '{UNATTRIBUTED}')"


def _cell(key: str) -> str:
    """SQL of the cell of a line by an owner level, as accounting.chargeback.holder_keys names it."""
    return (
        f"CASE WHEN state IN ({_states(PAID_BY_OWNERS)}) THEN {_owner_cell_sql(key)} ELSE '(' || state ||"
        " ')' END"
    )


_KNOWN = "(unknown_ns <> gpu_ns OR idle_ns <> 0 OR coalesce(idle_cost_micro, 0) <> 0)"
_COMPARED = f"""CASE WHEN state <> '{COMMITMENT_UNUSED}' THEN coalesce(compared_cost_micro,
    CASE WHEN contracted_cost_micro IS NOT NULL AND list_cost_micro IS NOT NULL THEN cost_micro END) END"""
# The rows of accounting.chargeback.report by one owner level, but for usage without a price, of
# which one row is all.
_ROWS = f"""
    SELECT currency, correction_of, {_cell("k0")} AS cell,
        min(CASE WHEN state IN ({_states(PAID_BY_OWNERS)}) THEN '{HELD}' ELSE state END) AS state,
        sum(gpu_ns) AS gpu_ns, sum(unknown_ns) AS unknown_ns,
        sum(idle_ns) FILTER (WHERE state = '{HELD}' AND {_KNOWN}) AS idle_ns,
        sum(idle_cost_micro) FILTER (WHERE state = '{HELD}' AND {_KNOWN}) AS idle_cost_micro,
        sum(cost_micro) AS cost_micro, sum(cost_micro) AS effective_micro, sum(energy_mj) AS energy_mj,
        sum(compared) AS compared_micro, sum(list_cost_micro) FILTER (WHERE compared IS NOT NULL) AS list_micro,
        sum(contracted_cost_micro) FILTER (WHERE compared IS NOT NULL) AS contracted_micro,
        sum(cost_micro) FILTER (WHERE state IN ({_states(BESIDE_CAPACITY)})) AS adjusted_micro,
        sum(cost_micro) FILTER (WHERE state = '{NODE_COST}') AS node_micro
    FROM (SELECT l.*, {_COMPARED} AS compared FROM ({{lines}}) l) l
    WHERE currency IS NOT NULL
        AND (gpu_ns <> 0 OR coalesce(cost_micro, 0) <> 0 OR idle_ns <> 0 OR coalesce(idle_cost_micro, 0) <> 0)
    GROUP BY 1, 2, 3
"""
_SUMMED = tuple(name for name in _EXACT if name not in {"shared_micro", "co2e_micrograms"})
# A share stands in the row of the period's own time, carbon in the first row of the cell that there
# is.
_WHOLE = f"""
    SELECT f.*, CASE WHEN correction_of = min(correction_of) OVER (PARTITION BY f.currency, f.cell)
        THEN e.micrograms END AS co2e_micrograms
    FROM (
        SELECT coalesce(r.currency, s.currency) AS currency, coalesce(r.correction_of, '') COLLATE "C" AS correction_of,
            coalesce(r.cell, s.cell) COLLATE "C" AS cell, coalesce(r.state, '') AS state,
            coalesce(r.unknown_ns, 0) AS unknown_ns, s.micro AS shared_micro,
            {", ".join("coalesce(r.gpu_ns, 0) AS gpu_ns" if name == "gpu_ns" else f"r.{name}" for name in _SUMMED)}
        FROM own_time r FULL JOIN shared s ON s.currency = r.currency AND s.cell = r.cell AND r.correction_of = ''
    ) f LEFT JOIN emitted e ON e.currency = f.currency AND e.cell = f.cell
"""
_NO_SHARES = "SELECT ''::text AS currency, ''::text AS cell, 0::numeric AS micro WHERE false"
_NO_CARBON = "SELECT ''::text AS currency, ''::text AS cell, 0::numeric AS micrograms WHERE false"


def owner_rows(
    connection: Connection,
    period: Period,
    level: str,
    owner: str,
    now_ms: int,
    *,
    is_allocated: bool = True,
) -> list[ReportRow]:
    """The rows of an owner (empty: of nobody known) in everybody's report by its level; corrections
    in rows apart.

    `is_allocated`: with shares of common costs and carbon, up to now. Usage without a price is in
    none of them.
    """
    statement = SqlStatement()
    statement.add(
        "own_time", _ROWS.format(lines=statement.charged_lines_sql((level,), period, apart=True))
    )
    shared: list[str] = []
    emitted: list[str] = []
    calendar = zones.calendar(connection)
    for month, part, at in allocation.months(connection, calendar, period) if is_allocated else ():
        costs = allocation.shared_costs(connection, at, month, part, now_ms, calendar)
        shared.extend(_shares(statement, level, cost) for cost in costs)
        runs = allocation.intensities(connection, at, part, calendar)
        emitted.extend(_grams(statement, level, run, in_force) for run, in_force in runs)
    statement.add("shared", _sum(shared, "sum(micro) AS micro") or _NO_SHARES)
    # One line without a known intensity makes the sum unknown: a partial sum would look complete.
    known = "CASE WHEN NOT bool_or(micrograms IS NULL) THEN sum(micrograms) END AS micrograms"
    statement.add("emitted", _sum(emitted, known) or _NO_CARBON)
    statement.add("whole", _WHOLE)
    query = _places(statement, owner or UNATTRIBUTED)
    found = [_row(row) for row in statement.rows(connection, query)]
    return sorted(
        found, key=lambda row: (row.currency or "", -(row.cost_micro or 0), row.correction_of)
    )


def _lines(statement: SqlStatement, period: Period, level: str) -> str:
    """The table of a period's lines as shared costs and carbon are worked out from; added once."""
    name = f"lines_{period.start_ms}_{period.end_ms}"
    if not any(table.startswith(f"{name} ") for table in statement.tables):
        statement.lines(name, LineSource([period], (*DIMENSIONS, level)))
    return name


def _shares(statement: SqlStatement, level: str, split_cost: SplitCost) -> str:
    """SQL of what each row pays of a cost."""
    lines, name = _lines(statement, split_cost.period, level), f"cost_{len(statement.tables)}"
    add_owners(statement, name, lines, split_cost)
    cell = f"{_cell(f'k{len(DIMENSIONS)}')} AS cell"
    if split_cost.cost.level != level:
        add_lines(statement, name, lines, split_cost)
        query = f"SELECT currency, {cell}, micro FROM {name} JOIN {lines} USING (place)"
    else:
        # The shares of an owner's lines add up to the owner's.
        query = (
            f"SELECT currency, {_owner_cell_sql('bearer')} AS cell, micro FROM {name}_owners WHERE micro"
            " <> 0"
        )
        if split_cost.cost.source != AMOUNT:
            query += f" UNION ALL {moved_away_sql(statement, name, lines, split_cost, f'currency, {cell}')}"
    if split_cost.cost.source == AMOUNT and split_cost.amount_micro:
        values = ", ".join(
            map(statement.bind, (split_cost.cost.currency, UNSHARED, split_cost.amount_micro))
        )
        query += (
            f" UNION ALL SELECT * FROM (VALUES ({values})) v WHERE NOT EXISTS (SELECT FROM"
            f" {name}_owners)"
        )
    return query


def _grams(statement: SqlStatement, level: str, run: Period, in_force: Sequence[Intensity]) -> str:
    """SQL of the grams of each line of some days, as accounting.carbon.micrograms rounds them."""
    lines = _lines(statement, run, level)
    factors = {}
    for pool in ("", *(intensity.pool for intensity in in_force)):
        intensity = intensity_of(in_force, pool)
        if intensity is not None:
            factors[pool] = per_kwh(intensity)
    known = statement.bind(json.dumps(factors))
    factor = f"coalesce(({known}::jsonb ->> {POOL})::numeric, ({known}::jsonb ->> '')::numeric)"
    product = (
        f"SELECT currency, {_cell(f'k{len(DIMENSIONS)}')} AS cell, energy_mj * {factor} AS product"
        f" FROM {lines}"
    )
    rest, unit = _rest("product", str(MJ_PER_KWH)), MJ_PER_KWH
    # Half to even.
    return (
        f"SELECT currency, cell, low + (2 * rest > {unit} OR (2 * rest = {unit} AND mod(low, 2) <>"
        f" 0))::int AS micrograms FROM (SELECT q.*, div(product - rest, {unit}) AS low FROM (SELECT"
        f" q.*, {rest} AS rest FROM ({product} WHERE energy_mj IS NOT NULL AND currency IS NOT"
        " NULL) q) q) q"
    )


def _sum(queries: Sequence[str], added: str) -> str:
    """SQL of the sum by currency and cell; empty where there is nothing to add up."""
    union = " UNION ALL ".join(f"({query})" for query in queries)
    return (
        f"SELECT currency, cell, {added} FROM ({union}) q GROUP BY currency, cell"
        if queries
        else ""
    )


def _rest(value: str, unit: str) -> str:
    """SQL of the remainder of a division toward minus infinity."""
    return f"mod(mod({value}, {unit}) + {unit}, {unit})"


def _places(statement: SqlStatement, cell: str) -> str:
    """SQL of the rows of a cell, each amount with its place in its list."""
    units = {currency: minor_unit(currency) for currency in MINOR_DIGITS}
    statement.add(
        "list",
        f"SELECT w.*, coalesce(({statement.bind(json.dumps(units))}::jsonb ->> currency)::numeric, "
        f"{minor_unit('')}) AS unit FROM whole w WHERE (currency, correction_of) IN "
        f"(SELECT currency, correction_of FROM whole WHERE cell = {statement.bind(cell)})",
    )
    divided = ", ".join(
        f"{_rest(exact, str(unit or 'unit'))} AS rest_{exact}, {unit or 'unit'}::numeric AS"
        f" unit_{exact}"
        for _, exact, unit, _ in PRINTED
    )
    statement.add("divided", f"SELECT l.*, {divided} FROM list l")
    earlier = (
        "coalesce(d.cost_micro, 0) > coalesce(o.cost_micro, 0) OR coalesce(d.cost_micro, 0) = "
        + "coalesce(o.cost_micro, 0) AND d.cell < o.cell"
    )
    places = ", ".join(
        f"min(o.{exact}) AS value_{exact}, sum(d.{exact}) AS total_{exact},"
        f" sum(div(d.{exact} - d.rest_{exact}, d.unit_{exact})) AS floors_{exact},"
        f" count(*) FILTER (WHERE d.rest_{exact} > o.rest_{exact} OR d.rest_{exact} ="
        f" o.rest_{exact} AND ({earlier})) AS before_{exact}"
        for exact in _EXACT
    )
    return (
        f"SELECT o.cell, o.currency, o.correction_of, min(o.state) AS state,"
        f" min(o.unknown_ns) AS unknown_ns, {places}"
        " FROM divided o JOIN divided d ON d.currency = o.currency AND d.correction_of ="
        f" o.correction_of WHERE o.cell = {statement.bind(cell)} GROUP BY 1, 2, 3"
    )


def _row(row: Any) -> ReportRow:
    places = {exact: _place(row, exact) for exact in _EXACT}
    return row_of_list(
        (row.cell,), row.currency, row.correction_of, row.state, int(row.unknown_ns), places
    )


def _place(row: Any, exact: str) -> PlaceInList | None:
    cells = {field.name: getattr(row, f"{field.name}_{exact}") for field in fields(PlaceInList)}
    if cells["value"] is None:
        return None
    return PlaceInList(**{name: int(number) for name, number in cells.items()})

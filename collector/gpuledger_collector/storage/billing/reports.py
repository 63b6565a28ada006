"""What reports read of the ledger: summed charges, single charges with their names, conservation
checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from typing import Any

from gpuledger_collector.accounting.adjustments import Adjustment, HeldCost, Place
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.ledger import ChargedLine, ConservationCheck, ExportedCharge
from gpuledger_collector.accounting.ledger_rows import HeldUsage
from gpuledger_collector.accounting.locations import REGION
from gpuledger_collector.accounting.measures import COMPARED, MEASURES, SUMMED
from gpuledger_collector.accounting.node_costs import NodeCost
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.rate_changes import PRICE
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.storage.billing import adjustments, commitments, inference, prices
from gpuledger_collector.storage.billing import node_costs as stored_node_costs
from gpuledger_collector.storage.billing.locations import (
    COMMITMENT_REGION,
    CORRECTED_DAY,
    lines_by_region,
)
from gpuledger_collector.storage.cancellation import admit_lines, line_limit
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    named_cursor,
    select,
    select_as,
    select_dicts,
    select_value,
    select_values,
    to_object,
)
from gpuledger_common.instants import to_ms

LEVEL_COLUMNS = {
    "org": "o.org",
    "team": "o.team",
    "project": "o.project",
    "experiment": "o.experiment",
    "run": "o.run",
    "user": "o.user_name",
}
OWNER_LEVELS = ", ".join(f'{column} AS "{level}"' for level, column in LEVEL_COLUMNS.items())
"""The levels of an owner `o` for a SELECT, each called as in OwnerPath."""
PAID_PRICE = "CASE WHEN commitment_id IS NULL THEN price_id END AS price_id"
"""SQL: the price of the book that a charge paid; of time that a commitment covers none."""
_DAY_DIMENSIONS = {**LEVEL_COLUMNS, "pool": "l.pool", "model": "l.gpu_model"}
_DAY_COLUMNS = "owner_id, state, pool, gpu_model, currency, " + ", ".join(
    (
        "coalesce(list_cost_micro, contracted_cost_micro) AS list_cost_micro"
        if name == "list_cost_micro"
        else name
    )
    for name in MEASURES
)


_IS_COMPARED = "l.contracted_cost_micro IS NOT NULL AND l.state <> 'commitment_unused'"
"""Whether a line's list and contracted cost are known.

What nobody used has none: there is nothing to compare.
"""
COMPARED_COST = "compared_cost_micro"


def sum_of(name: str) -> str:
    """The sum of a measure over lines `l`; of those that are compared with the cost the part that
    is known.
    """
    return f"sum(l.{name}) FILTER (WHERE {_IS_COMPARED})" if name in COMPARED else f"sum(l.{name})"


_ADDED = ", ".join(
    (
        *(f"{sum_of(name)} AS {name}" for name in MEASURES),
        f"sum(l.cost_micro) FILTER (WHERE {_IS_COMPARED}) AS {COMPARED_COST}",
    )
)
_ADDED_AGAIN = ", ".join(f"sum(l.{name}) AS {name}" for name in (*MEASURES, COMPARED_COST))
_ALL = ", ".join(
    (
        *(
            (
                f"CASE WHEN {_IS_COMPARED} THEN l.{name} END AS {name}"
                if name in COMPARED
                else f"l.{name}"
            )
            for name in MEASURES
        ),
        f"CASE WHEN {_IS_COMPARED} THEN l.cost_micro END AS {COMPARED_COST}",
    )
)
# A month of which some line has no contracted cost no longer says which of its days have one: those
# are read instead.
_HAS_MONTH = """(SELECT bool_and(m.currency IS NULL OR m.contracted_cost_micro IS NOT NULL) FROM ledger_month m
        WHERE m.start_ms = %(start)s AND m.end_ms = %(end)s)"""
_MONTH_OR_DAYS = f"""
    SELECT {{own}}, '' AS correction_of, {_ALL} FROM ledger_month l
    WHERE l.start_ms = %(start)s AND l.end_ms = %(end)s AND {_HAS_MONTH}{{only}}
    UNION ALL SELECT {{own}}, l.correction_of, {_ADDED} FROM (
        SELECT {_DAY_COLUMNS}, '' AS correction_of FROM ledger_day WHERE day_ms >= %(start)s AND day_ms < %(end)s
            AND {_HAS_MONTH} IS NOT TRUE{{only}}
        UNION ALL SELECT {_DAY_COLUMNS}, {{amends}} FROM correction
        WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s{{only}}
    ) l GROUP BY {{own}}, l.correction_of"""
"""Lines by `own`: of the ledger of months if it has the period, else of that of days; and
corrections.
"""
_WORKLOAD = "CASE WHEN w.kind = 'imported' THEN w.external_id ELSE w.key END"
CLOSED_WORKLOADS = """ LEFT JOIN billing_period b ON b.start_ms <= l.billed_ms AND b.end_ms > l.billed_ms
    LEFT JOIN closed_workload k ON k.period_start_ms = b.start_ms AND k.workload_id = l.workload_id"""
"""SQL: what was known of workloads `w` when the month of lines `l` was closed."""
CHARGE_DIMENSIONS = {
    **_DAY_DIMENSIONS,
    "node": "l.node",
    "workload": _WORKLOAD,
    # As it was when the month was closed, and a line of its own for what belongs to no job.
    "job": f"coalesce(CASE WHEN k.workload_id IS NULL THEN w.job ELSE k.job END, {_WORKLOAD})",
    "queue": "CASE WHEN k.workload_id IS NULL THEN w.queue ELSE k.queue END",
    COMMITMENT_REGION: (
        "(SELECT m.region FROM commitment m WHERE m.id = l.commitment_id "
        "AND l.state = 'commitment_unused')"
    ),
    CORRECTED_DAY: "l.amended_ms::text",
    PRICE: "l.price_id::text",
}


def reads_closed(by: Sequence[str]) -> bool:
    """Whether lines by these dimensions read what was known of workloads at the close."""
    return "job" in by or "queue" in by


AMENDS = """coalesce((SELECT p.name FROM billing_period p WHERE p.start_ms <= day_ms AND p.end_ms > day_ms),
    to_char(to_timestamp(day_ms / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM'))"""
"""SQL: the closed month that a correction amends."""


def charged_lines(
    connection: Connection,
    period: Period,
    by: Sequence[str],
    *,
    apart: bool = False,
    owner: Mapping[str, str] | None = None,
) -> list[ChargedLine]:
    """Sum what the period bills by these dimensions, state and currency: its days and the
    corrections booked in it.

    `apart` keeps corrections in separate lines, by the closed month that they amend. `owner` (level
    -> value) reads that owner's lines alone.
    """
    if REGION in by:
        return lines_by_region(
            connection, period, by, partial(charged_lines, connection, apart=apart, owner=owner)
        )
    # GROUP BY and ORDER BY positions: the dimensions, then state, currency and the corrected month.
    order = ", ".join(str(at + 1) for at in range(len(by) + 3))
    own = {f"own_{level}": name for level, name in (owner or {}).items()}
    rows = connection.execute(
        f"{lines_query(by, apart=apart, own_levels=tuple(owner or ()))} ORDER BY"
        f" {order}{line_limit()}",
        {"start": period.start_ms, "end": period.end_ms, **own},
    )
    admit_lines(rows.rowcount)
    return [_line(row, len(by)) for row in rows]


def lines_query(by: Sequence[str], *, apart: bool = False, own_levels: Sequence[str] = ()) -> str:
    """SQL of the lines that `charged_lines` reads, in no order: columns k0, k1 and so on, state,
    currency and measures.

    Parameters are `start`, `end` and `own_LEVEL` for each of `own_levels`.

    Reads the ledger of the month when it is complete, else that of days; single charges only for
    dimensions that those lack (workload, node). Days are grouped by owner id first, which is twice
    as fast as by name.
    """
    amends = AMENDS if apart else "''"
    # Lines of days and months know no node and no workload: for those every charge is read.
    daily = all(name in _DAY_DIMENSIONS for name in by)
    dimensions = _DAY_DIMENSIONS if daily else CHARGE_DIMENSIONS
    joins = "LEFT JOIN owner o ON o.id = l.owner_id"
    if "workload" in by or reads_closed(by):
        joins += " LEFT JOIN workload w ON w.id = l.workload_id"
    if reads_closed(by):
        joins += CLOSED_WORKLOADS
    # An array, so that it is known before any line is read: others' lines are neither added up nor
    # joined.
    named = " AND ".join(f"{LEVEL_COLUMNS[level]} = %(own_{level})s" for level in own_levels)
    only = f" AND owner_id = ANY(ARRAY(SELECT o.id FROM owner o WHERE {named}))" if named else ""
    keys = [f"coalesce({dimensions[name]}, '') AS k{at}" for at, name in enumerate(by)]
    if daily:
        kept = "".join(
            f"{_DAY_DIMENSIONS[name]}, " for name in dict.fromkeys(by) if name not in LEVEL_COLUMNS
        )
        lines = _MONTH_OR_DAYS.format(
            own=f"{kept}l.owner_id, l.state, l.currency", amends=amends, only=only
        )
        added = _ADDED_AGAIN
    else:
        added = _ADDED
        columns = f"{_DAY_COLUMNS}, node, workload_id, commitment_id"
        columns += f", {PAID_PRICE}" if PRICE in by else ""
        lines = (
            f"SELECT {columns}, day_ms AS billed_ms, NULL::bigint AS amended_ms, '' AS correction_of"
            f" FROM charge WHERE day_ms >= %(start)s AND day_ms < %(end)s{only} "
            f"UNION ALL SELECT {columns}, booked_day_ms, day_ms, {amends} FROM correction "
            f"WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s{only}"
        )
    groups = ", ".join(str(at + 1) for at in range(len(by) + 3))
    return (
        f"SELECT {''.join(key + ', ' for key in keys)} l.state, l.currency, l.correction_of,"
        f" {added} FROM ({lines}) l {joins} GROUP BY {groups}"
    )


def held_costs(connection: Connection, period: Period) -> dict[Place, HeldCost]:
    """Add up what owners held on the days of a period, with all corrections of them, by what
    adjustments tell apart.
    """
    columns = "day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, cost_micro"
    rows = select(
        connection,
        f"SELECT {OWNER_LEVELS}, l.pool, l.gpu_model, l.currency, sum(l.gpu_ns)::bigint AS gpu_ns, "
        # Held time with a currency has a cost; where somebody removed it, the proof says so and
        # must not fail.
        f"coalesce(sum(l.cost_micro), 0)::bigint AS cost_micro FROM (SELECT {columns} FROM"
        f" ledger_day UNION ALL SELECT {columns} FROM correction) AS l JOIN owner o ON o.id ="
        " l.owner_id WHERE l.day_ms >= %s AND l.day_ms < %s AND l.state = 'held' AND l.currency IS"
        " NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9",
        (period.start_ms, period.end_ms),
    )
    return {
        Place(
            to_object(OwnerPath, row),
            row.pool,
            row.gpu_model,
            row.currency,
        ): HeldCost(row.gpu_ns, row.cost_micro)
        for row in rows
        if row.gpu_ns or row.cost_micro
    }


def imported_ns(
    connection: Connection, period: Period, owner: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Sum the time of a period that was imported as counts of GPUs and is charged, by currency; of
    an owner (level -> value) its own. Nothing is known of what it did.
    """
    levels = owner or {}
    own = "".join(
        f" AND coalesce({LEVEL_COLUMNS[level]}, '') = %(own_{level})s" for level in levels
    )
    rows = select(
        connection,
        "SELECT l.currency, sum(l.unknown_ns)::bigint AS unknown_ns FROM charge l LEFT JOIN owner o ON"
        " o.id = l.owner_id WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s AND l.state = 'held'"
        f" AND l.accelerator_id IS NULL AND l.currency IS NOT NULL{own} GROUP BY 1",
        {
            "start": period.start_ms,
            "end": period.end_ms,
            **{f"own_{level}": name for level, name in levels.items()},
        },
    )
    return {row.currency: row.unknown_ns for row in rows if row.unknown_ns}


def corrections_of(connection: Connection, period: Period, level: str) -> list[ChargedLine]:
    """Sum the corrections of the period's days, wherever they are booked, by a level of the owner
    tree.
    """
    sums = ", ".join(f"{sum_of(name)} AS {name}" for name in SUMMED)
    return [
        ChargedLine((row.owner,), row.state, row.currency, row.month, **sums_of(row))
        for row in select(
            connection,
            f"SELECT coalesce({LEVEL_COLUMNS[level]}, '') AS owner, l.state, l.currency, {AMENDS}"
            f" AS"
            f" month, {sums} FROM correction l LEFT JOIN owner o ON o.id = l.owner_id WHERE"
            f" l.day_ms >="
            " %s AND l.day_ms < %s GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
            (period.start_ms, period.end_ms),
        )
    ]


def sums_of(row: Any) -> dict[str, Any]:
    """What a row has added up of SUMMED, by name; sums come as Decimal."""
    sums = {name: getattr(row, name) for name in SUMMED}
    return {name: None if value is None else int(value) for name, value in sums.items()}


# By place: a report may read a million lines, and named tuples make each of them 12 % slower. The
# columns come from these same constants (`lines_query`), and one too many raises ValueError.
def _line(row: tuple[Any, ...], width: int) -> ChargedLine:
    keys, (state, currency, correction_of), measures = (
        row[:width],
        row[width : width + 3],
        row[width + 3 :],
    )
    amounts: dict[str, Any] = {
        name: None if value is None else int(value)
        for name, value in zip((*MEASURES, COMPARED_COST), measures, strict=True)
    }
    return ChargedLine(keys, state, currency, correction_of, **amounts)


_CHARGE_COLUMNS = (
    *(
        "day_ms",
        "start_ms",
        "end_ms",
        "accelerator_id",
        "workload_id",
        "state",
        "pool",
        "gpu_model",
        "node",
    ),
    *("currency", *MEASURES),
)
"""Columns of a charge that are also attributes of Charge."""
_OWNER_OF_CHARGE = ", ".join(
    f"{column} AS owner_{level}" for level, column in LEVEL_COLUMNS.items()
)
_ROWS_AT_ONCE = 5000
# Names come from the close of the period (`closed_workload`) where there was one, so that an export
# of a closed month stays the same; the order is total, for the same reason. Workloads and periods are
# looked up for these lines first: joined to all of them, the planner reads every workload that there
# ever was, and tries every closed month for each line.
_EXPORTED = f"""
    WITH held AS MATERIALIZED (
        SELECT workload_id, min(coalesce(booked_day_ms, day_ms)) AS first_ms, max(coalesce(booked_day_ms, day_ms))
            AS last_ms FROM ({{lines}}) l GROUP BY workload_id
    ), w AS MATERIALIZED (
        SELECT id, key, name, external_id, user_name, tags FROM workload
        WHERE id = ANY(ARRAY(SELECT workload_id FROM held))
    ), p AS MATERIALIZED (
        SELECT start_ms, end_ms FROM billing_period
        WHERE start_ms <= (SELECT max(last_ms) FROM held) AND end_ms > (SELECT min(first_ms) FROM held)
    ), k AS MATERIALIZED (
        SELECT period_start_ms, workload_id, name, user_name, tags FROM closed_workload
        WHERE period_start_ms = ANY(ARRAY(SELECT start_ms FROM p))
    )
    SELECT {", ".join(f"c.{name}" for name in _CHARGE_COLUMNS)}, c.price_id, c.commitment_id, c.adjustment_id,
        c.node_cost_id, c.inference_id, o.id AS owner_id, {_OWNER_OF_CHARGE},
        a.uuid AS accelerator_uuid, w.key AS workload_key,
        coalesce(nullif(CASE WHEN k.workload_id IS NULL THEN w.name ELSE k.name END, ''), w.external_id)
            AS workload_name,
        CASE WHEN k.workload_id IS NULL THEN w.user_name ELSE k.user_name END AS user,
        coalesce(CASE WHEN k.workload_id IS NULL THEN w.tags ELSE k.tags END, '{{{{}}}}')::text AS tags,
        c.booked_day_ms, a.device_uuid, CASE WHEN c.booked_day_ms IS NULL THEN '' ELSE {AMENDS} END AS correction_of
    FROM ({{lines}}) c LEFT JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN w ON w.id = c.workload_id
    LEFT JOIN owner o ON o.id = c.owner_id
    LEFT JOIN p ON p.start_ms <= coalesce(c.booked_day_ms, c.day_ms)
        AND p.end_ms > coalesce(c.booked_day_ms, c.day_ms)
    LEFT JOIN k ON k.period_start_ms = p.start_ms AND k.workload_id = c.workload_id
    ORDER BY c.booked_day_ms NULLS FIRST, c.day_ms, a.uuid NULLS FIRST, w.key NULLS FIRST, c.state, c.start_ms,
        c.end_ms, c.pool, c.gpu_model, c.node, c.gpu_ns, c.price_id, o.id, c.commitment_id, c.adjustment_id,
        c.node_cost_id, c.inference_id, c.correction_id{{ties}}
"""
_TIES = ", c.currency NULLS FIRST, " + ", ".join(f"c.{name} NULLS FIRST" for name in MEASURES)
"""What tells lines apart that are equal in all else, such as an adjustment of one owner in two
currencies.
"""
_COMMON = ", ".join(
    (
        *_CHARGE_COLUMNS,
        *("owner_id", "price_id", "commitment_id", "adjustment_id", "node_cost_id", "inference_id"),
    )
)
_LINES = (
    f"SELECT {_COMMON}, NULL::bigint AS booked_day_ms, NULL::bigint AS correction_id FROM charge"
    " WHERE "
)
_CORRECTIONS = f"SELECT {_COMMON}, booked_day_ms, id FROM correction WHERE "


def charges(
    connection: Connection, period: Period, *, ties: bool = True
) -> Iterator[ExportedCharge]:
    """Read what the period bills in a fixed order, with the names that an export writes: charges,
    then corrections.

    A correction belongs to the period in which it is booked, whatever day it amends. Names and tags
    of a closed period are those at its close. Without `ties`, lines that differ in currency and
    amounts alone are in no certain order, as they were when 0.1.0 sealed them.
    """
    lines = (
        f"{_LINES} day_ms >= %s AND day_ms < %s UNION ALL {_CORRECTIONS} booked_day_ms >= %s AND"
        " booked_day_ms < %s"
    )
    yield from _read(connection, lines, (period.start_ms, period.end_ms) * 2, _TIES if ties else "")


def billed_so_far(connection: Connection, day_ms: int) -> Iterator[ExportedCharge]:
    """Read what a day has been charged so far: its lines and every correction of it, wherever
    booked.
    """
    yield from _read(
        connection, f"{_LINES} day_ms = %s UNION ALL {_CORRECTIONS} day_ms = %s", (day_ms, day_ms)
    )


def billed_of(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    accelerator_id: int | None,
    workload_id: int | None,
) -> Iterator[ExportedCharge]:
    """Read what an owner (level -> value) and those below are charged for the period's days,
    wherever booked.

    The accelerator and the workload restrict it when given.
    """
    named = " AND ".join(f"{LEVEL_COLUMNS[level]} = %s" for level in owner)
    ids = select_values(connection, f"SELECT o.id FROM owner o WHERE {named}", list(owner.values()))
    where = "day_ms >= %s AND day_ms < %s AND owner_id = ANY(%s)"
    bounds: list[object] = [period.start_ms, period.end_ms, ids]
    for column, number in (("accelerator_id", accelerator_id), ("workload_id", workload_id)):
        if number is not None:
            where += f" AND {column} = %s"
            bounds.append(number)
    yield from _read(connection, f"{_LINES} {where} UNION ALL {_CORRECTIONS} {where}", bounds * 2)


def charged_to_accelerators(
    connection: Connection, period: Period, accelerator_ids: Sequence[int]
) -> Iterator[ExportedCharge]:
    """Read what the time of accelerators on the period's days was charged as, held or not, with the
    corrections of those days, wherever booked.
    """
    where = "day_ms >= %s AND day_ms < %s AND accelerator_id = ANY(%s)"
    bounds = (period.start_ms, period.end_ms, list(accelerator_ids))
    yield from _read(connection, f"{_LINES} {where} UNION ALL {_CORRECTIONS} {where}", bounds * 2)


def _read(
    connection: Connection, lines: str, bounds: Sequence[object], ties: str = _TIES
) -> Iterator[ExportedCharge]:
    cursor = named_cursor(connection)
    cursor.execute(_EXPORTED.format(lines=lines, ties=ties).encode(), [*bounds, *bounds])
    # Declarations, owners and tags are few and made once, instead of being repeated in each of many
    # lines.
    book: dict[int | None, Price] = {}
    covering: dict[int, Commitment] = {}
    adjusting: dict[int | None, Adjustment] = {}
    of_nodes: dict[int, NodeCost] = {}
    sharing: dict[int, InferenceShare] = {}
    owners: dict[int | None, OwnerPath | None] = {None: None}
    tags = lru_cache(maxsize=65536)(json.loads)
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        book |= prices.by_id(connection, sorted({row.price_id for row in rows} - {None, *book}))
        covering |= commitments.COMMITMENTS.by_id(
            connection, sorted({row.commitment_id for row in rows} - {None, *covering})
        )
        adjusting |= adjustments.by_id(
            connection, sorted({row.adjustment_id for row in rows} - {None, *adjusting})
        )
        of_nodes |= stored_node_costs.NODE_COSTS.by_id(
            connection, sorted({row.node_cost_id for row in rows} - {None, *of_nodes})
        )
        sharing |= inference.read_shares(
            connection, sorted({row.inference_id for row in rows} - {None, *sharing})
        )
        for row in rows:
            if row.owner_id not in owners:
                owners[row.owner_id] = OwnerPath(
                    **{level: getattr(row, f"owner_{level}") for level in LEVELS}
                )
            charge = Charge(
                # The query begins with these columns.
                **dict(zip(_CHARGE_COLUMNS, row, strict=False)),
                owner=owners[row.owner_id],
                price=None if row.price_id is None else book[row.price_id],
                commitment=covering.get(row.commitment_id),
                adjustment=adjusting.get(row.adjustment_id),
                node_cost=of_nodes.get(row.node_cost_id),
                inference=sharing.get(row.inference_id),
            )
            yield ExportedCharge(
                charge=charge,
                accelerator_uuid=row.accelerator_uuid,
                workload_key=row.workload_key,
                workload_name=row.workload_name,
                user=row.user,
                tags=tags(row.tags),
                booked_day_ms=row.booked_day_ms,
                device_uuid=row.device_uuid,
                correction_of=row.correction_of,
            )


CHECK_COLUMNS = tuple(field.name for field in fields(ConservationCheck))
"""Columns of the tables of conservation checks, as ConservationCheck names them."""


CHECKS = (
    f"SELECT DISTINCT ON (day_ms) {', '.join(CHECK_COLUMNS)} FROM (SELECT"
    f" {', '.join(CHECK_COLUMNS)}, 0 AS corrected FROM conservation_check UNION ALL SELECT"
    f" {', '.join(CHECK_COLUMNS)}, 1 FROM corrected_day) AS p WHERE day_ms >= %(start)s AND day_ms"
    " < %(end)s ORDER BY day_ms, corrected DESC"
)
"""SQL of the checks of a period's days, by day; for a corrected day the check that includes its
corrections.
"""


def conservation_checks(connection: Connection, period: Period) -> list[ConservationCheck]:
    """Read the checks of the period's days, by day; for a corrected day the check that includes its
    corrections.
    """
    return [
        conservation_check(row)
        for row in select_dicts(
            connection, CHECKS, {"start": period.start_ms, "end": period.end_ms}
        )
    ]


def conservation_check(row: Mapping[str, Any]) -> ConservationCheck:
    """The check of a row that has CHECK_COLUMNS."""
    values: dict[str, Any] = {name: row[name] for name in CHECK_COLUMNS}
    values |= {name: int(value) for name, value in values.items() if name.endswith("_ns")}
    return ConservationCheck(**values)


def rated_at(connection: Connection) -> dict[int, int]:
    """When each rated day (its start) was rated last, without corrections of closed days."""
    return {
        row.day_ms: to_ms(row.proved_at)
        for row in select(connection, "SELECT day_ms, proved_at FROM conservation_check")
    }


def held_by_workloads(connection: Connection, period: Period) -> list[HeldUsage]:
    """Sum what each workload held, by day, place and currency."""
    query = """
        SELECT day_ms, workload_id, pool, node, currency, sum(gpu_ns)::bigint AS gpu_ns,
            sum(cost_micro)::bigint AS cost_micro
        FROM charge WHERE day_ms >= %s AND day_ms < %s AND workload_id IS NOT NULL
        GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        """
    return select_as(connection, HeldUsage, query, (period.start_ms, period.end_ms))


def has_capacity(connection: Connection, period: Period) -> bool:
    """Whether any accelerator was available in the period."""
    query = (
        "SELECT EXISTS (SELECT FROM capacity WHERE in_ms < %s AND (out_ms IS NULL OR out_ms > %s))"
    )
    return bool(select_value(connection, query, (period.end_ms, period.start_ms)))


def displaced_imports(connection: Connection, period: Period) -> list[tuple[str, int]]:
    """List pools whose imported usage overlaps observed accelerators, with the number of workloads."""
    rows = select(
        connection,
        """
        SELECT u.pool, count(DISTINCT u.workload_id) AS workloads FROM imported_usage u JOIN (
            -- Merged: a pool has thousands of accelerators, and imports tens of thousands of rows.
            SELECT pool, range_agg(int8range(in_ms, coalesce(out_ms, %(end)s))) AS observed FROM capacity
            WHERE in_ms < %(end)s AND coalesce(out_ms, %(end)s) > %(start)s GROUP BY 1
        ) c ON c.pool = u.pool AND c.observed && int8range(u.start_ms, coalesce(u.end_ms, %(end)s))
        WHERE u.start_ms < %(end)s AND coalesce(u.end_ms, %(end)s) > %(start)s
        GROUP BY 1 ORDER BY 1
        """,
        {"start": period.start_ms, "end": period.end_ms},
    )
    return [(row.pool, row.workloads) for row in rows]

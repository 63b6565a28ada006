"""Rated days in Postgres: which are to be rated, and their charges, ledger lines and conservation checks."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence

from gpuledger_collector.accounting.ledger import DayLine, Proof
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period
from gpuledger_collector.accounting.ports import RatedDay
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.tags import LEVELS, OwnerPath
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

_OWNER_COLUMNS = "org, team, project, experiment, run, user_name"
_CHARGE_COLUMNS = """day_ms, start_ms, end_ms, accelerator_id, workload_id, owner_id, state, pool, gpu_model, node,
    price_id, gpu_ns, busy_ns, idle_ns, unknown_ns, currency, cost_micro, idle_cost_micro, list_cost_micro, energy_mj,
    commitment_id, contracted_cost_micro"""
_LINE_COLUMNS = """day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns, cost_micro,
    idle_cost_micro, energy_mj, list_cost_micro, contracted_cost_micro"""


def request_recompute(connection: Connection, days_ms: Iterable[int]) -> None:
    """Request that these days be rated again."""
    connection.execute("INSERT INTO day_recompute (day_ms) SELECT unnest(%s::bigint[])", (sorted(days_ms),))


def days_to_rate(connection: Connection, period: Period, now_ms: int) -> Sequence[int]:
    """Days with a mark, or with capacity, a commitment or imported usage and no proof up to their end or now."""
    calendar = zones.calendar(connection)
    first = connection.execute(
        "SELECT min(at) FROM (SELECT min(in_ms) AS at FROM capacity UNION ALL SELECT min(start_ms) "
        "FROM imported_usage UNION ALL SELECT min(day_ms) FROM day_recompute "
        "UNION ALL SELECT min(starts_ms) FROM commitment WHERE superseded_at IS NULL) AS first_evidence"
    ).fetchone()
    end_ms = min(period.end_ms, now_ms)
    if first is None or first[0] is None or max(period.start_ms, first[0]) >= end_ms:
        return []
    if not calendar.is_utc:
        _align_requests(connection, calendar)
    start_ms = calendar.day_of(max(period.start_ms, first[0])).start_ms
    starts = [day.start_ms for day in calendar.days(Period(start_ms, end_ms))]
    ends = [*starts[1:], calendar.day_of(starts[-1]).end_ms]
    rows = connection.execute(
        """
        SELECT d FROM unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS days (d, stop)
        WHERE d IN (SELECT day_ms FROM day_recompute) OR ((
            EXISTS (SELECT FROM capacity c WHERE c.in_ms < least(stop, %(now)s)
                AND (c.out_ms IS NULL OR c.out_ms > d))
            OR EXISTS (SELECT FROM imported_usage u WHERE u.start_ms < least(stop, %(now)s)
                AND (u.end_ms IS NULL OR u.end_ms > d))
            OR EXISTS (SELECT FROM commitment m WHERE m.superseded_at IS NULL
                AND m.starts_ms < least(stop, %(now)s) AND m.ends_ms > d)
        ) AND NOT EXISTS (SELECT FROM conservation_check p WHERE p.day_ms = d AND p.until_ms >= least(stop,
        %(now)s)))
        ORDER BY d
        """,
        {"starts": starts, "ends": ends, "now": now_ms},
    )
    return [int(row[0]) for row in rows]


def _align_requests(connection: Connection, calendar: Calendar) -> None:
    """What marks UTC days (imports, prices, rules) marks the days of the bill that they touch."""
    marks = [int(row[0]) for row in connection.execute("SELECT DISTINCT day_ms FROM day_recompute")]
    known = set(marks)
    missing: set[int] = set()
    foreign: list[int] = []
    for mark in marks:
        first = calendar.day_of(mark)
        if first.start_ms != mark:
            foreign.append(mark)
        missing.add(first.start_ms)
        if first.end_ms < mark + DAY_MS:
            missing.add(first.end_ms)
    if missing - known:
        request_recompute(connection, missing - known)
    if foreign:
        connection.execute("DELETE FROM day_recompute WHERE day_ms = ANY(%s)", (foreign,))


def replace_day(connection: Connection, day_ms: int, rated: RatedDay, now_ms: int) -> None:
    """The day's charges, ledger lines and proof become these; the marks of the day that were seen are removed."""
    for table in ("charge", "ledger_day", "conservation_check", "day_recompute"):
        connection.execute(f"DELETE FROM {table} WHERE day_ms = %s", (day_ms,))
    owners = _owner_ids(connection, {charge.owner for charge in rated.charges if charge.owner is not None})
    with connection.cursor().copy(f"COPY charge ({_CHARGE_COLUMNS}) FROM STDIN") as copy:
        for charge in rated.charges:
            copy.write_row(_charge_cells(charge, owners))
    with connection.cursor().copy(f"COPY ledger_day ({_LINE_COLUMNS}) FROM STDIN") as copy:
        for line in rated.lines:
            copy.write_row(_line_cells(line, owners))
    _insert_proof(connection, "conservation_check", rated.proof, dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC))


def correct_day(
    connection: Connection, rated: RatedDay, lines: Sequence[Charge], booked_day_ms: int, now_ms: int
) -> None:
    """Book these corrections of a closed day, keep the new proof beside the sealed one, and drop its marks."""
    day_ms = rated.proof.day_ms
    owners = _owner_ids(connection, {charge.owner for charge in lines if charge.owner is not None})
    columns = f"booked_day_ms, recorded_ms, {_CHARGE_COLUMNS}"
    with connection.cursor().copy(f"COPY correction ({columns}) FROM STDIN") as copy:
        for charge in lines:
            copy.write_row((booked_day_ms, now_ms, *_charge_cells(charge, owners)))
    connection.execute("DELETE FROM day_recompute WHERE day_ms = %s", (day_ms,))
    if lines:
        connection.execute("DELETE FROM corrected_day WHERE day_ms = %s", (day_ms,))
        at = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        _insert_proof(connection, "corrected_day", rated.proof, at)


def _owner_ids(connection: Connection, owners: set[OwnerPath]) -> dict[OwnerPath, int]:
    columns = [list(column) for column in zip(*(_levels(owner) for owner in owners), strict=True)]
    if not columns:
        return {}
    given = ", ".join(["%s::text[]"] * len(LEVELS))
    connection.execute(
        f"INSERT INTO owner ({_OWNER_COLUMNS}) SELECT * FROM unnest({given}) ON CONFLICT DO NOTHING", columns
    )
    rows = connection.execute(
        f"SELECT o.id, {', '.join('o.' + name.strip() for name in _OWNER_COLUMNS.split(','))} FROM owner o "
        f"JOIN unnest({given}) AS g ({_OWNER_COLUMNS}) USING ({_OWNER_COLUMNS})",
        columns,
    )
    return {OwnerPath(*row[1:]): row[0] for row in rows}


def _levels(owner: OwnerPath) -> tuple[str, ...]:
    return (owner.org, owner.team, owner.project, owner.experiment, owner.run, owner.user)


def _charge_cells(charge: Charge, owners: Mapping[OwnerPath, int]) -> tuple[object, ...]:
    return (
        charge.day_ms,
        charge.start_ms,
        charge.end_ms,
        charge.accelerator_id,
        charge.workload_id,
        None if charge.owner is None else owners[charge.owner],
        charge.state,
        charge.pool,
        charge.gpu_model,
        charge.node,
        None if charge.price is None else charge.price.id,
        charge.gpu_ns,
        charge.busy_ns,
        charge.idle_ns,
        charge.unknown_ns,
        charge.currency,
        charge.cost_micro,
        charge.idle_cost_micro,
        charge.list_cost_micro,
        charge.energy_mj,
        None if charge.commitment is None else charge.commitment.id,
        charge.contracted_cost_micro,
    )


def _line_cells(line: DayLine, owners: Mapping[OwnerPath, int]) -> tuple[object, ...]:
    return (
        line.day_ms,
        None if line.owner is None else owners[line.owner],
        line.state,
        line.pool,
        line.gpu_model,
        line.currency,
        line.gpu_ns,
        line.busy_ns,
        line.idle_ns,
        line.unknown_ns,
        line.cost_micro,
        line.idle_cost_micro,
        line.energy_mj,
        line.list_cost_micro,
        line.contracted_cost_micro,
    )


def _insert_proof(connection: Connection, table: str, proof: Proof, now: dt.datetime) -> None:
    connection.execute(
        f"INSERT INTO {table} (day_ms, capacity_ns, held_ns, unallocated_ns, unavailable_ns, unobserved_ns, "
        "capacity_cost, charged_cost, imported_ns, until_ms, holds, commitments, proved_at, stranded_ns) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s, %s::jsonb, %s, %s)",
        (
            proof.day_ms,
            proof.capacity_ns,
            proof.held_ns,
            proof.unallocated_ns,
            proof.unavailable_ns,
            proof.unobserved_ns,
            json.dumps(dict(proof.capacity_cost)),
            json.dumps(dict(proof.charged_cost)),
            proof.imported_ns,
            proof.until_ms,
            proof.holds,
            json.dumps(dict(proof.commitments)),
            now,
            proof.stranded_ns,
        ),
    )

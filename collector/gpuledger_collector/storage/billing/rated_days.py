"""Rated days in Postgres: which are to be rated, and their charges, ledger lines and conservation
checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.ledger import ConservationCheck, DayLine, RatedDay
from gpuledger_collector.accounting.measures import MEASURES, amounts_of
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.storage.billing import rating_times
from gpuledger_collector.storage.billing.reports import CHECK_COLUMNS, OWNER_LEVELS
from gpuledger_collector.storage.foreign_keys import plan_checks_once
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_value, select_values, to_object
from gpuledger_common.instants import to_datetime

_OWNER_COLUMNS = "org, team, project, experiment, run, user_name"
_GIVEN = (
    "json_to_recordset(%s::json) AS g"
    f" ({', '.join(f'{name.strip()} text' for name in _OWNER_COLUMNS.split(','))})"
)
_PLACE_COLUMNS = ("state", "pool", "gpu_model", "node")
_CHARGE_COLUMNS = ", ".join(
    (
        *(
            "day_ms",
            "start_ms",
            "end_ms",
            "accelerator_id",
            "workload_id",
            "owner_id",
            *_PLACE_COLUMNS,
            "price_id",
        ),
        *("currency", "commitment_id", "adjustment_id", "node_cost_id", "inference_id", *MEASURES),
    )
)
_LINE_COLUMNS = ", ".join(
    ("day_ms", "owner_id", "state", "pool", "gpu_model", "currency", *MEASURES)
)


def request_recompute(
    connection: Connection, days_ms: Iterable[int], *, by_fold: bool = False
) -> None:
    """Request that these days be rated again; `by_fold`: only because usage of them was folded."""
    connection.execute(
        "INSERT INTO day_recompute (day_ms, by_fold) SELECT unnest(%s::bigint[]), %s",
        (sorted(days_ms), by_fold),
    )


def request_recompute_of_rated(connection: Connection, period: Period) -> None:
    """Request that the days of a period that are rated be rated again."""
    connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check WHERE day_ms >="
        " %s AND day_ms < %s",
        (period.start_ms, period.end_ms),
    )


def days_to_rate(connection: Connection, period: Period, now_ms: int) -> Sequence[int]:
    """List days that were requested, and days with capacity, a commitment or imported usage that
    lack a check up to their end (or now). Requests are those for days of the bill
    (`align_requests`).
    """
    calendar = zones.calendar(connection)
    first_ms = select_value(
        connection,
        "SELECT min(at) FROM (SELECT min(in_ms) AS at FROM capacity UNION ALL SELECT min(start_ms)"
        " FROM imported_usage UNION ALL SELECT min(day_ms) FROM day_recompute UNION ALL SELECT"
        " min(starts_ms) FROM commitment WHERE superseded_at IS NULL) AS first_evidence",
    )
    end_ms = min(period.end_ms, now_ms)
    if first_ms is None or max(period.start_ms, first_ms) >= end_ms:
        return []
    start_ms = calendar.day_of(max(period.start_ms, first_ms)).start_ms
    # Bounds of each day, because a day has 23 or 25 hours where clocks change.
    starts = [day.start_ms for day in calendar.days(Period(start_ms, end_ms))]
    ends = [*starts[1:], calendar.day_of(starts[-1]).end_ms]
    # The check first: of a history of years only days that lack one are looked for in the capacity
    # of the fleet, which has no index for that.
    return select_values(
        connection,
        """
        SELECT d FROM unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS days (d, stop)
        WHERE d IN (SELECT day_ms FROM day_recompute) OR (NOT EXISTS (
            SELECT FROM conservation_check p WHERE p.day_ms = d AND p.until_ms >= least(stop, %(now)s)
        ) AND (
            EXISTS (SELECT FROM capacity c WHERE c.in_ms < least(stop, %(now)s)
                AND (c.out_ms IS NULL OR c.out_ms > d))
            OR EXISTS (SELECT FROM imported_usage u WHERE u.start_ms < least(stop, %(now)s)
                AND (u.end_ms IS NULL OR u.end_ms > d))
            OR EXISTS (SELECT FROM commitment m WHERE m.superseded_at IS NULL
                AND m.starts_ms < least(stop, %(now)s) AND m.ends_ms > d)
        ))
        ORDER BY d
        """,
        {"starts": starts, "ends": ends, "now": now_ms},
    )


def due(connection: Connection, day: Period, now_ms: int) -> bool:
    """Whether a day is still requested, or lacks a check up to its end (or now): another process
    may have rated it.
    """
    return (
        connection.execute(
            "SELECT FROM day_recompute WHERE day_ms = %(day)s UNION ALL SELECT WHERE NOT EXISTS"
            " (SELECT FROM conservation_check WHERE day_ms = %(day)s AND until_ms >= %(until)s)"
            " LIMIT 1",
            {"day": day.start_ms, "until": min(day.end_ms, now_ms)},
        ).fetchone()
        is not None
    )


def stands(connection: Connection, day: Period, since_ms: int, accelerators: int) -> bool:
    """Whether the rating of a day that has not ended stands but for usage that has arrived since: it
    was rated up to this instant at least, on a fleet of so many accelerators.

    Whoever changes what else a day is rated by (prices, rules, imports, placements, disputes)
    requests the day as well. Imported usage gives way to what agents report, so a day with any is
    compared with evidence that it was rated from.
    """
    values = {
        "start": day.start_ms,
        "end": day.end_ms,
        "since": since_ms,
        "day": DAY_MS,
        "accelerators": accelerators,
    }
    # A request may name a UTC day that only begins or ends within the day of the bill.
    query = """
        SELECT EXISTS (SELECT FROM conservation_check WHERE day_ms = %(start)s AND until_ms >= %(since)s)
            AND NOT EXISTS (SELECT FROM day_recompute
                WHERE NOT by_fold AND day_ms > %(start)s - %(day)s AND day_ms < %(end)s)
            AND NOT EXISTS (SELECT FROM imported_usage
                WHERE start_ms < %(end)s AND (end_ms IS NULL OR end_ms > %(start)s))
            AND (SELECT count(*) FROM (SELECT FROM capacity WHERE out_ms IS NULL OR out_ms > %(start)s
                LIMIT %(accelerators)s) AS there) >= %(accelerators)s
    """
    return bool(select_value(connection, query, values))


def requests(connection: Connection, day_ms: int) -> list[int]:
    """The ids of the requests to rate a day."""
    return select_values(connection, "SELECT id FROM day_recompute WHERE day_ms = %s", (day_ms,))


def list_requested(connection: Connection, period: Period, calendar: Calendar) -> set[int]:
    """The days of a period that wait to be rated again, also where hours of them wait."""
    marks = select_values(
        connection,
        "SELECT DISTINCT day_ms FROM day_recompute WHERE day_ms > %(start)s - %(day)s AND day_ms <"
        " %(end)s UNION SELECT DISTINCT day_ms + %(day)s - 1 FROM day_recompute WHERE day_ms >"
        " %(start)s - %(day)s AND day_ms < %(end)s UNION SELECT DISTINCT hour_ms FROM"
        " hour_recompute WHERE hour_ms >= %(start)s AND hour_ms < %(end)s",
        {"start": period.start_ms, "end": period.end_ms, "day": DAY_MS},
    )
    return {calendar.day_of(mark).start_ms for mark in marks}


def has_misaligned_requests(connection: Connection, calendar: Calendar) -> bool:
    """Whether a request names a UTC day (imports, prices, rules do) where days of the bill begin
    elsewhere.
    """
    if calendar.is_utc:
        return False
    marks = select_values(connection, "SELECT DISTINCT day_ms FROM day_recompute")
    return any(calendar.day_of(mark).start_ms != mark for mark in marks)


def align_requests(connection: Connection, calendar: Calendar) -> None:
    """Turn requests for UTC days into requests for the days of the bill that they touch; under the
    ledger's lock.
    """
    marks = select_values(connection, "SELECT DISTINCT day_ms FROM day_recompute")
    known = set(marks)
    missing: set[int] = set()
    foreign: list[int] = []
    for mark in marks:
        first = calendar.day_of(mark)
        if first.start_ms != mark:
            foreign.append(mark)
        # A UTC day touches one or two days of the bill.
        missing.add(first.start_ms)
        if first.end_ms < mark + DAY_MS:
            missing.add(first.end_ms)
    if missing - known:
        request_recompute(connection, missing - known)
    if foreign:
        connection.execute("DELETE FROM day_recompute WHERE day_ms = ANY(%s)", (foreign,))


def remove_requests(connection: Connection, ids: Sequence[int]) -> None:
    """Remove exactly these requests to rate a day: those that arrived since they were read stay."""
    connection.execute("DELETE FROM day_recompute WHERE id = ANY(%s)", (ids,))


def replace_day(
    connection: Connection,
    day_ms: int,
    rated: RatedDay,
    owners: Mapping[OwnerPath, int],
    shares: Mapping[InferenceShare, int],
    now_ms: int,
) -> None:
    """Replace the charges, ledger lines and check of a day; `owners` and `shares` are the ids of
    those that it names.
    """
    for table in ("charge", "ledger_day", "conservation_check"):
        connection.execute(f"DELETE FROM {table} WHERE day_ms = %s", (day_ms,))
    plan_checks_once(connection)
    with connection.cursor().copy(f"COPY charge ({_CHARGE_COLUMNS}) FROM STDIN") as copy:
        for charge in rated.charges:
            copy.write_row(_charge_cells(charge, owners, shares))
    with connection.cursor().copy(f"COPY ledger_day ({_LINE_COLUMNS}) FROM STDIN") as copy:
        for line in rated.lines:
            copy.write_row(_line_cells(line, owners))
    _insert_check(
        connection,
        "conservation_check",
        rated.check,
        now_ms,
    )


def count_charges(connection: Connection) -> None:
    """Have Postgres look at how many charges there are, and of what.

    It does so by itself within a minute or so; until then, after a month of a fleet, questions about
    it are planned for the few rows that were there before, and take several times as long. Where
    somebody else looks at it already, nobody waits.
    """
    connection.execute("ANALYZE (SKIP_LOCKED) charge")


def correct_day(
    connection: Connection,
    rated: RatedDay,
    lines: Sequence[Charge],
    owners: Mapping[OwnerPath, int],
    shares: Mapping[InferenceShare, int],
    booked_day_ms: int,
    now_ms: int,
) -> None:
    """Book corrections of a closed day, and store the new check next to the sealed one."""
    day_ms = rated.check.day_ms
    columns = f"booked_day_ms, recorded_ms, {_CHARGE_COLUMNS}"
    plan_checks_once(connection)
    with connection.cursor().copy(f"COPY correction ({columns}) FROM STDIN") as copy:
        for charge in lines:
            copy.write_row((booked_day_ms, now_ms, *_charge_cells(charge, owners, shares)))
    # Without a difference to what was billed, the stored check still holds.
    if lines:
        connection.execute("DELETE FROM corrected_day WHERE day_ms = %s", (day_ms,))
        _insert_check(connection, "corrected_day", rated.check, now_ms)


def owner_ids(connection: Connection, charges: Iterable[Charge]) -> dict[OwnerPath, int]:
    """The ids of the owners of charges; new ones are added, which `connection` had better commit at
    once.

    Each of its statements must see what others have committed, since they may add the same owners
    meanwhile.
    """
    owners = {charge.owner for charge in charges if charge.owner is not None}
    known = _known_owner_ids(connection, owners)
    new = owners - known.keys()
    if new:
        # Most days have no new owner: a conflict costs more than looking it up.
        connection.execute(
            f"INSERT INTO owner ({_OWNER_COLUMNS}) SELECT * FROM {_GIVEN} ON CONFLICT DO NOTHING",
            (_as_json(new),),
        )
        known |= _known_owner_ids(connection, new)
    return known


def _known_owner_ids(connection: Connection, owners: set[OwnerPath]) -> dict[OwnerPath, int]:
    if not owners:
        return {}
    return {
        to_object(OwnerPath, row): row.id
        for row in select(
            connection,
            f"SELECT o.id, {OWNER_LEVELS} FROM owner o JOIN {_GIVEN} USING ({_OWNER_COLUMNS})",
            (_as_json(owners),),
        )
    }


def _as_json(owners: Iterable[OwnerPath]) -> str:
    """Owners as one parameter: arrays of texts are written text by text in Python.

    In order, so that processes that add the same owners do not wait for each other.
    """
    names = [name.strip() for name in _OWNER_COLUMNS.split(",")]
    return json.dumps(
        [dict(zip(names, levels, strict=True)) for levels in sorted(map(_levels, owners))]
    )


def _levels(owner: OwnerPath) -> tuple[str, ...]:
    return (owner.org, owner.team, owner.project, owner.experiment, owner.run, owner.user)


def _charge_cells(
    charge: Charge, owners: Mapping[OwnerPath, int], shares: Mapping[InferenceShare, int]
) -> tuple[object, ...]:
    """Return a charge in the order of _CHARGE_COLUMNS."""
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
        charge.currency,
        None if charge.commitment is None else charge.commitment.id,
        None if charge.adjustment is None else charge.adjustment.id,
        None if charge.node_cost is None else charge.node_cost.id,
        None if charge.inference is None else shares[charge.inference],
        *amounts_of(charge),
    )


def _line_cells(line: DayLine, owners: Mapping[OwnerPath, int]) -> tuple[object, ...]:
    """Return a ledger line in the order of _LINE_COLUMNS."""
    owner_id = None if line.owner is None else owners[line.owner]
    return (
        line.day_ms,
        owner_id,
        line.state,
        line.pool,
        line.gpu_model,
        line.currency,
        *amounts_of(line),
    )


def _insert_check(
    connection: Connection, table: str, check: ConservationCheck, now_ms: int
) -> None:
    values = {name: getattr(check, name) for name in CHECK_COLUMNS}
    costs = {
        name: json.dumps(dict(values[name]))
        for name in ("capacity_cost", "charged_cost", "commitments")
    }
    connection.execute(
        f"INSERT INTO {table} ({', '.join(CHECK_COLUMNS)}, proved_at, times_sha256) "
        f"VALUES ({', '.join(f'%({name})s' for name in CHECK_COLUMNS)}, %(proved_at)s, %(times)s)",
        values
        | costs
        | {
            "proved_at": to_datetime(now_ms),
            "times": rating_times.hash_check(connection, table, check.day_ms, now_ms),
        },
    )

"""Both sides of the ledger's identities, as the database adds them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gpuledger_collector.accounting.identities import DAYS, Mismatch
from gpuledger_collector.accounting.measures import COMPARED, MEASURES
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.storage.database import SORT_MEMORY
from gpuledger_collector.storage.ledger.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.locks import Connection

MOST = 50
"""Lines of each side that are named: one write may change a whole month."""
_KEYS = "day_ms, owner_id, state, pool, gpu_model, currency"
_KEY_COUNT = len(_KEYS.split(", "))
_LIST_COST = "coalesce(list_cost_micro, contracted_cost_micro)"


def _amount(name: str) -> str:
    """A measure of a line as reports read it."""
    return _LIST_COST if name == "list_cost_micro" else name


def _sum(name: str) -> str:
    """The sum of a measure over charges, as rating adds up the lines of a day."""
    if name not in COMPARED:
        return f"sum({name})"
    # A covered part without a contracted cost makes the whole line incomparable.
    unknown = "bool_or(commitment_id IS NOT NULL AND contracted_cost_micro IS NULL)"
    return f"CASE WHEN {unknown} THEN NULL ELSE sum({_amount(name)}) END"


_DAYS = f"""
WITH charged AS MATERIALIZED (
    SELECT {_KEYS}, {", ".join(_sum(name) for name in MEASURES)} FROM charge
    WHERE day_ms >= %(start)s AND day_ms < %(end)s GROUP BY {_KEYS}
), stored AS MATERIALIZED (
    SELECT {_KEYS}, {", ".join(map(_amount, MEASURES))} FROM ledger_day
    WHERE day_ms >= %(start)s AND day_ms < %(end)s
), odd ({_KEYS}, {", ".join(MEASURES)}, is_stored) AS (
    SELECT *, false FROM (TABLE charged EXCEPT ALL TABLE stored) AS missing
    UNION ALL SELECT *, true FROM (TABLE stored EXCEPT ALL TABLE charged) AS added
)
SELECT odd.*, {", ".join(LEVEL_COLUMNS[level] for level in LEVELS)}
FROM odd LEFT JOIN owner o ON o.id = odd.owner_id
ORDER BY {", ".join(f"odd.{key}" for key in _KEYS.split(", "))}, is_stored LIMIT {2 * MOST}
"""


def unlike_days(connection: Connection, period: Period, calendar: Calendar) -> list[Mismatch]:
    """Where the ledger of a period's days is not the sum of its charges; at most MOST places."""
    # For the rest of the transaction: with the default the server sorts a month of charges on disk, twice as slowly.
    connection.execute("SELECT set_config('work_mem', %s, true)", (SORT_MEMORY,))
    lines: dict[tuple[Any, ...], dict[bool, Sequence[Any]]] = defaultdict(dict)
    names: dict[tuple[Any, ...], str] = {}
    for row in connection.execute(_DAYS, {"start": period.start_ms, "end": period.end_ms}):
        key, amounts = row[:_KEY_COUNT], row[_KEY_COUNT : _KEY_COUNT + len(MEASURES)]
        is_stored, levels = row[_KEY_COUNT + len(MEASURES)], row[_KEY_COUNT + len(MEASURES) + 1 :]
        lines[key][is_stored] = amounts
        names[key] = "" if key[1] is None else path_text(OwnerPath(*levels))
    nothing = (None,) * len(MEASURES)
    return [
        Mismatch(
            identity=DAYS,
            place=dict(
                zip(DAYS.keys, (calendar.date_of(key[0]).isoformat(), names[key], *map(_text, key[2:])), strict=True)
            ),
            measure=name,
            expected=None if expected is None else int(expected),
            stored=None if stored is None else int(stored),
        )
        for key, sides in list(lines.items())[:MOST]
        for name, expected, stored in zip(MEASURES, sides.get(False, nothing), sides.get(True, nothing), strict=True)
        if expected != stored
    ]


def path_text(owner: OwnerPath) -> str:
    """An owner as a place of a mismatch: the levels that it has."""
    return "/".join(f"{level}={name}" for level in LEVELS if (name := owner.level(level)))


def _text(value: str | None) -> str:
    return value or ""


Place = tuple[int, str, str, str]
"""Start of a day, pool, model and node."""


def imported_hours(connection: Connection, days: Sequence[Period]) -> dict[Place, int]:
    """Add up imported usage in parts of days: GPU-nanoseconds by day, pool, model and node."""
    rows = connection.execute(
        # A GPU is a million micro-GPUs and a millisecond a million nanoseconds: their product is GPU-nanoseconds.
        "SELECT d.day_ms, u.pool, u.gpu_model, u.node, "
        "sum((least(u.end_ms, d.end_ms) - greatest(u.start_ms, d.day_ms)) * u.gpu_micro)::bigint "
        "FROM unnest(%s::bigint[], %s::bigint[]) AS d (day_ms, end_ms) JOIN imported_usage u "
        "ON u.start_ms < d.end_ms AND coalesce(u.end_ms, d.end_ms) > d.day_ms GROUP BY 1, 2, 3, 4",
        ([day.start_ms for day in days], [day.end_ms for day in days]),
    )
    return {row[:4]: row[4] for row in rows}


def imported_charges(connection: Connection, days_ms: Sequence[int]) -> dict[Place, int]:
    """Add up the charges of imported usage on days, with all corrections: GPU-nanoseconds by the same."""
    columns = "day_ms, pool, gpu_model, node, gpu_ns"
    where = "day_ms = ANY(%(days)s) AND accelerator_id IS NULL AND state = 'held'"
    rows = connection.execute(
        f"SELECT day_ms, pool, gpu_model, node, sum(gpu_ns)::bigint FROM (SELECT {columns} FROM charge WHERE {where} "
        f"UNION ALL SELECT {columns} FROM correction WHERE {where}) l GROUP BY 1, 2, 3, 4",
        {"days": list(days_ms)},
    )
    return {row[:4]: row[4] for row in rows}


def has_imports(connection: Connection, period: Period) -> bool:
    """Whether usage was imported for any time of the period."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM imported_usage WHERE start_ms < %s AND (end_ms IS NULL OR end_ms > %s))",
        (period.end_ms, period.start_ms),
    ).fetchone()
    return row is not None and bool(row[0])


def expired_days(connection: Connection, days: Sequence[Period]) -> set[int]:
    """The starts of those of these days of which retention has removed evidence."""
    rows = connection.execute(
        "SELECT d.day_ms FROM unnest(%s::bigint[], %s::bigint[]) AS d (day_ms, end_ms) WHERE EXISTS "
        "(SELECT FROM expired_day e WHERE e.day_ms < d.end_ms AND e.day_ms + 86400000 > d.day_ms)",
        ([day.start_ms for day in days], [day.end_ms for day in days]),
    )
    return {row[0] for row in rows}


_HOUR = "accelerator_id, hour_ms, state, workload_id"
_HOUR_AMOUNTS = "held_ms, busy_ms, idle_ms, unknown_ms, energy_mj, workload_attributes_id"
_OF_DAY = "hour_ms >= %(start)s AND hour_ms < %(end)s"


def keep_hours(connection: Connection, day: Period) -> None:
    """Keep the hours of a day as they are stored, to be compared by `unlike_hours` in the same transaction."""
    connection.execute(
        f"CREATE TEMPORARY TABLE hour_before AS SELECT {_HOUR}, {_HOUR_AMOUNTS} FROM usage_hour WHERE {_OF_DAY}",
        _bounds(day),
    )


def evident_hours(connection: Connection, day: Period) -> list[tuple[int, int]]:
    """List the accelerators and hours of a day that have evidence or are stored."""
    return connection.execute(
        "SELECT DISTINCT accelerator_id, hour_ms - hour_ms %% 3600000 FROM hour_before UNION "
        "SELECT DISTINCT accelerator_id, hour_ms FROM usage_interval, "
        "generate_series(greatest(start_ms - start_ms %% 3600000, %(start)s - %(start)s %% 3600000), "
        "least(end_ms, %(end)s) - 1, 3600000) AS hour_ms "
        # An agent's interval has a day at most, so that few partitions are looked at.
        "WHERE start_ms >= %(start)s - 86400000 AND start_ms < %(end)s AND end_ms > %(start)s ORDER BY 2, 1",
        _bounds(day),
    ).fetchall()


def unlike_hours(connection: Connection, day: Period) -> tuple[dict[tuple[str, ...], Any], dict[tuple[str, ...], Any]]:
    """Hours of a day that are not as they were kept: as they are now, and as they were; at most MOST of each."""
    now = f"SELECT {_HOUR}, {_HOUR_AMOUNTS} FROM usage_hour WHERE {_OF_DAY}"
    before = f"SELECT {_HOUR}, {_HOUR_AMOUNTS} FROM hour_before"
    sides = []
    for query in (f"({now}) EXCEPT ALL ({before})", f"({before}) EXCEPT ALL ({now})"):
        rows = connection.execute(f"{query} ORDER BY 1, 2, 3, 4 LIMIT {MOST}", _bounds(day))
        sides.append({tuple("" if cell is None else str(cell) for cell in row[:4]): row[4:] for row in rows})
    return sides[0], sides[1]


def _bounds(day: Period) -> dict[str, int]:
    return {"start": day.start_ms, "end": day.end_ms}


def invoiced(connection: Connection, period: Period) -> dict[tuple[str, str], tuple[int, int]]:
    """Read the invoices of a closed month: micro-units and minor units by owner and currency."""
    rows = connection.execute(
        "SELECT owner, currency, micro, minor FROM invoice WHERE period_start_ms = %s", (period.start_ms,)
    )
    return {row[:2]: row[2:] for row in rows}

"""Both sides of the ledger's identities, as the database adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuledger_collector.accounting.identities import BOOKED, Mismatch
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_value, select_values
from gpuledger_collector.storage.telemetry import usage_evidence

MOST = 50
"""Hours of each side that are named."""


def path_text(owner: OwnerPath) -> str:
    """An owner as a place of a mismatch: the levels that it has."""
    return "/".join(f"{level}={name}" for level in LEVELS if (name := owner.level(level)))


Place = tuple[int, str, str, str]
"""Start of a day, pool, model and node."""


def imported_hours(connection: Connection, days: Sequence[Period]) -> dict[Place, int]:
    """Add up imported usage in parts of days: GPU-nanoseconds by day, pool, model and node."""
    rows = select(
        connection,
        # A GPU is a million micro-GPUs and a millisecond a million nanoseconds: their product is
        # GPU-nanoseconds.
        "SELECT d.day_ms, u.pool, u.gpu_model, u.node, "
        "sum((least(u.end_ms, d.end_ms) - greatest(u.start_ms, d.day_ms)) * u.gpu_micro)::bigint"
        " AS gpu_ns "
        "FROM unnest(%s::bigint[], %s::bigint[]) AS d (day_ms, end_ms) JOIN imported_usage u "
        "ON u.start_ms < d.end_ms AND coalesce(u.end_ms, d.end_ms) > d.day_ms GROUP BY 1, 2, 3, 4",
        ([day.start_ms for day in days], [day.end_ms for day in days]),
    )
    return {(row.day_ms, row.pool, row.gpu_model, row.node): row.gpu_ns for row in rows}


def has_imports(connection: Connection, period: Period) -> bool:
    """Whether usage was imported for any time of the period."""
    return bool(
        select_value(
            connection,
            "SELECT EXISTS (SELECT FROM imported_usage WHERE start_ms < %s AND (end_ms IS NULL OR"
            " end_ms > %s))",
            (period.end_ms, period.start_ms),
        )
    )


def expired_days(connection: Connection, days: Sequence[Period]) -> set[int]:
    """The starts of those of these days of which retention has removed evidence."""
    return set(
        select_values(
            connection,
            "SELECT d.day_ms FROM unnest(%s::bigint[], %s::bigint[]) AS d (day_ms, end_ms) WHERE"
            " EXISTS"
            " (SELECT FROM expired_day e WHERE e.day_ms < d.end_ms AND e.day_ms + 86400000 >"
            " d.day_ms)",
            ([day.start_ms for day in days], [day.end_ms for day in days]),
        )
    )


_HOUR = "accelerator_id, hour_ms, state, workload_id"
_HOUR_AMOUNTS = "held_ms, busy_ms, idle_ms, unknown_ms, energy_mj, workload_attributes_id"
# An agent's interval has a day at most, so that few partitions are looked at.
_EVIDENT = f"""
SELECT DISTINCT accelerator_id, hour_ms - hour_ms %% 3600000 FROM hour_before
UNION
SELECT DISTINCT accelerator_id, hour_ms FROM (
    SELECT accelerator_id, generate_series(
        greatest(start_ms - start_ms %% 3600000, %(start)s - %(start)s %% 3600000),
        least(end_ms, %(end)s) - 1, 3600000) AS hour_ms
    FROM {usage_evidence.overlapping("%(start)s", "%(end)s")} AS interval
    WHERE end_ms > %(start)s
) AS evident ORDER BY 2, 1
"""
_OF_DAY = "hour_ms >= %(start)s AND hour_ms < %(end)s"


def copy_hours(connection: Connection, day: Period) -> None:
    """Keep the hours of a day as they are stored, to be compared by `unlike_hours` in the same
    transaction.
    """
    connection.execute(
        f"CREATE TEMPORARY TABLE hour_before AS SELECT {_HOUR}, {_HOUR_AMOUNTS} FROM usage_hour"
        f" WHERE {_OF_DAY}",
        _bounds(day),
    )


def evident_hours(connection: Connection, day: Period) -> list[tuple[int, int]]:
    """List the accelerators and hours of a day that have evidence or are stored."""
    return connection.execute(_EVIDENT.encode(), _bounds(day)).fetchall()


def unlike_hours(
    connection: Connection, day: Period
) -> tuple[dict[tuple[str, ...], Any], dict[tuple[str, ...], Any]]:
    """Hours of a day that are not as they were kept: as they are now, and as they were; at most
    MOST of each.
    """
    now = f"SELECT {_HOUR}, {_HOUR_AMOUNTS} FROM usage_hour WHERE {_OF_DAY}"
    before = f"SELECT {_HOUR}, {_HOUR_AMOUNTS} FROM hour_before"
    sides = []
    for query in (f"({now}) EXCEPT ALL ({before})", f"({before}) EXCEPT ALL ({now})"):
        rows = connection.execute(f"{query} ORDER BY 1, 2, 3, 4 LIMIT {MOST}", _bounds(day))
        sides.append(
            {tuple("" if cell is None else str(cell) for cell in row[:4]): row[4:] for row in rows}
        )
    return sides[0], sides[1]


def _bounds(day: Period) -> dict[str, int]:
    return {"start": day.start_ms, "end": day.end_ms}


def invoiced_amounts(
    connection: Connection, period: Period
) -> dict[tuple[str, str], tuple[int, int]]:
    """Read the invoices of a closed month: micro-units and minor units by owner and currency."""
    return {
        (row.owner, row.currency): (row.micro, row.minor)
        for row in select(
            connection,
            "SELECT owner, currency, micro, minor FROM invoice WHERE period_start_ms = %s",
            (period.start_ms,),
        )
    }


def misbooked_corrections(
    connection: Connection, period: Period, calendar: Calendar
) -> list[Mismatch]:
    """Where corrections of a period's days, or booked on them, are not booked on a day that rating
    would choose.
    """
    rows = connection.execute(
        "SELECT DISTINCT day_ms, booked_day_ms, recorded_ms FROM correction WHERE (day_ms >="
        " %(start)s AND day_ms < %(end)s) OR (booked_day_ms >= %(start)s AND booked_day_ms <"
        " %(end)s) ORDER BY 1, 2, 3",
        _bounds(period),
    ).fetchall()
    closed = (
        {end_ms for (end_ms,) in connection.execute("SELECT end_ms FROM billing_period")}
        if rows
        else set()
    )
    return [
        Mismatch(
            identity=BOOKED,
            place=dict(
                zip(
                    BOOKED.keys,
                    (str(calendar.date_of(at_ms)) for at_ms in (day_ms, booked_ms)),
                    strict=True,
                )
            ),
            measure="booked_day_ms",
            expected=calendar.day_of(recorded_ms).start_ms,
            stored=booked_ms,
        )
        for day_ms, booked_ms, recorded_ms in rows
        if not _is_booking_day(booked_ms, recorded_ms, calendar, closed)
    ]


def _is_booking_day(
    booked_ms: int, recorded_ms: int, calendar: Calendar, closed_ms: set[int]
) -> bool:
    """Whether a correction that was found at an instant may be booked on a day."""
    day = calendar.day_of(booked_ms)
    if day.start_ms != booked_ms:
        return False
    # Another zone moves a booked day to the one that contains its instant, a day earlier or later
    # at most.
    is_its_day = abs((calendar.date_of(recorded_ms) - calendar.date_of(booked_ms)).days) <= 1
    is_end_of_month = calendar.date_of(day.end_ms).day == 1 and day.end_ms <= recorded_ms
    return is_its_day or is_end_of_month or booked_ms in closed_ms

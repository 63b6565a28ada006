"""What statements read: the parts of what owners were billed, and what was corrected.

A part belongs to the period that bills it, as in the chargeback: days of the period, and
corrections booked in it. Several owners are read at once: each of these queries goes over the whole
period, whoever it asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.measures import SUMMED
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.accounting.statement import Contested, OwnerDay, OwnerJob
from gpuledger_collector.storage.billing import disputes, periods
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS, PAID_PRICE, sums_of
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_values

UNKNOWN = "(unknown)"
MAX_MS = 2**62
"""Later than any day."""
_SUMS = ", ".join(f"sum(l.{name}) AS {name}" for name in SUMMED)
_JOB = """coalesce(nullif(CASE WHEN k.workload_id IS NULL THEN w.name ELSE k.name END, ''), w.external_id) AS name,
    coalesce(CASE WHEN k.workload_id IS NULL THEN w.user_name ELSE k.user_name END, '') AS user_name"""
"""Name and user of a workload; as sealed where the month is closed."""
_PAID = ", ".join(f"'{state}'" for state in sorted(PAID_BY_OWNERS))
_DAILY = ", ".join(("owner_id", "state", "gpu_model", "currency", *SUMMED))
_BILLED = """
    SELECT day_ms AS at_ms, NULL::bigint AS amended_ms, {columns} FROM {table}
        WHERE day_ms >= %(start)s AND day_ms < %(end)s
    UNION ALL SELECT booked_day_ms, day_ms, {columns} FROM correction
        WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s
"""

_USED = """
    SELECT day_ms AS at_ms, NULL::bigint AS amended_ms, {columns} FROM {table}
        WHERE day_ms >= %(start)s AND day_ms < %(end)s
    UNION ALL SELECT day_ms, day_ms, {columns} FROM correction WHERE day_ms >= %(start)s AND day_ms < %(end)s
"""
"""What the days of a period have cost so far, whichever month bills their corrections."""


def _owner(level: str) -> str:
    """The owner of a line at a level, as the chargeback names it."""
    return f"coalesce(nullif({LEVEL_COLUMNS[level]}, ''), '{UNATTRIBUTED}')"


def owners(connection: Connection, level: str, period: Period) -> list[str]:
    """Who is billed for something held in the period, at a level, by name; `(unattributed)` where
    nobody is known.
    """
    lines = _BILLED.format(columns=_DAILY, table="ledger_day")
    return select_values(
        connection,
        f"SELECT DISTINCT {_owner(level)} FROM ({lines}) l "
        f"LEFT JOIN owner o ON o.id = l.owner_id WHERE l.state IN ({_PAID}) ORDER BY 1",
        {"start": period.start_ms, "end": period.end_ms},
    )


def months_of(connection: Connection, level: str, owner: str) -> list[str]:
    """The months `YYYY-MM` in which an owner was billed, newest first."""
    days = zones.calendar(connection)
    billed = select_values(
        connection,
        f"SELECT DISTINCT l.at_ms FROM ({_BILLED.format(columns=_DAILY, table='ledger_day')}) l"
        f" LEFT JOIN owner o ON o.id = l.owner_id WHERE l.state IN ({_PAID}) AND {_owner(level)} ="
        " %(owner)s",
        {"start": 0, "end": MAX_MS, "owner": owner},
    )
    return sorted(set(map(days.month_of, billed)), reverse=True)


def parts(
    connection: Connection, level: str, owners: Sequence[str], below: str | None, period: Period
) -> dict[str, list[OwnerDay]]:
    """What each owner was billed, by day, next level below (None: there is none), model and
    currency.
    """
    inner = "''" if below is None else f"coalesce({LEVEL_COLUMNS[below]}, '')"
    lines = _BILLED.format(columns=_DAILY, table="ledger_day")
    rows = select(
        connection,
        f"SELECT {_owner(level)} AS owner, l.at_ms, l.amended_ms, {inner} AS below, l.gpu_model,"
        f" l.currency, {_SUMS} FROM ({lines}) l LEFT JOIN owner o ON o.id = l.owner_id WHERE"
        f" l.state IN ({_PAID}) AND {_owner(level)} = ANY(%(owners)s) GROUP BY 1, 2, 3, 4, 5, 6"
        " ORDER BY 2, 3 NULLS FIRST, 4, 5, 6",
        {"start": period.start_ms, "end": period.end_ms, "owners": list(owners)},
    )
    days: dict[str, list[OwnerDay]] = defaultdict(list)
    for row in rows:
        place = row.at_ms, row.amended_ms, row.below, row.gpu_model, row.currency
        days[row.owner].append(OwnerDay(*place, **sums_of(row)))
    return days


def workloads(
    connection: Connection,
    level: str,
    owners: Sequence[str],
    period: Period,
    *,
    as_used: bool = False,
) -> dict[str, list[OwnerJob]]:
    """What each job of each owner was billed, by name, user, project and model, in a part of one
    month; `as_used`: what its days cost with their corrections, whichever month bills those, and by
    the price of the book that was paid.

    Lines are added up by workload before names are looked up; names are as sealed where the month
    is closed.
    """
    # Held lines without any owner are those of nobody in particular.
    nobody = " OR l.owner_id IS NULL" if UNATTRIBUTED in owners else ""
    belongs = (
        f"(l.owner_id IN (SELECT o.id FROM owner o WHERE {_owner(level)} ="
        f" ANY(%(owners)s)){nobody})"
    )
    source = _USED if as_used else _BILLED
    lines = source.format(columns=f"{_DAILY}, workload_id, {PAID_PRICE}", table="charge")
    price = "l.price_id" if as_used else "NULL::bigint"
    rows = select(
        connection,
        f"""
        WITH held AS MATERIALIZED (
            SELECT l.workload_id, l.owner_id, nullif(l.state, 'held') AS adjusting, l.gpu_model, l.currency,
                -- Periods grow with the years: looked for where a line amends one, and only there.
                coalesce(CASE WHEN l.amended_ms IS NOT NULL THEN (SELECT p.name FROM billing_period p
                    WHERE p.start_ms <= l.amended_ms AND p.end_ms > l.amended_ms) END, '') AS correction_of,
                {price} AS price_id, {_SUMS}
            FROM ({lines}) l WHERE l.state IN ({_PAID}) AND {belongs} GROUP BY 1, 2, 3, 4, 5, 6, 7
        )
        SELECT {_owner(level)} AS owner, l.adjusting, {_JOB}, coalesce(nullif(o.project, ''), o.team, '') AS project,
            l.gpu_model, l.currency, l.correction_of, l.price_id, count(DISTINCT l.workload_id) AS runs, {_SUMS}
        FROM held l LEFT JOIN owner o ON o.id = l.owner_id LEFT JOIN workload w ON w.id = l.workload_id
        LEFT JOIN closed_workload k ON k.workload_id = l.workload_id AND k.period_start_ms = (
            SELECT start_ms FROM billing_period WHERE start_ms <= %(start)s AND end_ms > %(start)s)
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 3, 4, 5, 6, 7, 8, 2, 9
        """,
        {"start": period.start_ms, "end": period.end_ms, "owners": list(owners)},
    )
    jobs: dict[str, list[OwnerJob]] = defaultdict(list)
    for row in rows:
        # An adjustment is no job's: it stands under its kind.
        called = _job_name(row.name) if row.adjusting is None else f"({row.adjusting})"
        place = row.user_name, row.project, row.gpu_model, row.currency, row.correction_of
        jobs[row.owner].append(OwnerJob(called, *place, row.price_id, row.runs, **sums_of(row)))
    return jobs


def imported_ns(
    connection: Connection, level: str, owners: Sequence[str], period: Period
) -> dict[str, dict[str, int]]:
    """Sum the time of a period that each owner was charged for and that was imported as counts of
    GPUs, by owner and currency.
    """
    rows = select(
        connection,
        f"SELECT {_owner(level)} AS owner, l.currency, sum(l.unknown_ns)::bigint AS unknown_ns FROM"
        " charge l LEFT JOIN owner o ON o.id = l.owner_id WHERE l.day_ms >= %(start)s AND l.day_ms <"
        " %(end)s AND l.state = 'held' AND l.accelerator_id IS NULL AND l.currency IS NOT NULL AND"
        f" {_owner(level)} = ANY(%(owners)s) GROUP BY 1, 2",
        {"start": period.start_ms, "end": period.end_ms, "owners": list(owners)},
    )
    sums: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        sums[row.owner][row.currency] = row.unknown_ns
    return sums


def _job_name(name: str | None) -> str:
    """The name of a job; no job is called like the time of which no job is known."""
    return UNKNOWN if name is None else escape_name(name)


def amended_later(
    connection: Connection, level: str, owners: Sequence[str], period: Period
) -> dict[str, dict[str, int]]:
    """Micro-units by owner and currency of corrections of the period's days that are booked after
    it.
    """
    rows = select(
        connection,
        f"SELECT {_owner(level)} AS owner, l.currency, sum(l.cost_micro) AS micro FROM correction l LEFT JOIN owner o"
        " ON o.id = l.owner_id WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s AND"
        f" l.booked_day_ms >= %(end)s AND l.state IN ({_PAID}) AND {_owner(level)} ="
        " ANY(%(owners)s) AND l.currency IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2",
        {"start": period.start_ms, "end": period.end_ms, "owners": list(owners)},
    )
    amended: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        amended[row.owner][row.currency] = int(row.micro)
    return amended


def contested_by_owner(
    connection: Connection, level: str, owners: Sequence[str], period: Period
) -> dict[str, list[Contested]]:
    """The disputes about each owner's time in the period that wait for a decision, by number."""
    names = ["" if owner == UNATTRIBUTED else owner for owner in owners]
    found: dict[str, list[Contested]] = defaultdict(list)
    for dispute in disputes.waiting(connection, period):
        # Of owners that lie in the part of the tree that contests.
        where = "".join(f" AND {LEVEL_COLUMNS[at]} = %s" for at in dispute.owner)
        contesting = select_values(
            connection,
            f"SELECT DISTINCT {_owner(level)} FROM owner o WHERE {LEVEL_COLUMNS[level]} ="
            f" ANY(%s){where}",
            [names, *dispute.owner.values()],
        )
        job = _job_of(connection, dispute.workload, period) if contesting else None
        for owner in contesting:
            found[owner].append(Contested(dispute, job))
    return found


def _job_of(connection: Connection, key: str | None, period: Period) -> tuple[str, str] | None:
    """Name and user of a workload as the tables of a statement have them."""
    rows = select(
        connection,
        f"SELECT {_JOB} FROM workload w LEFT JOIN closed_workload k ON k.workload_id = w.id"
        " AND k.period_start_ms = %s WHERE w.key = %s",
        (period.start_ms, key),
    )
    return next(((_job_name(row.name), row.user_name) for row in rows), None)


def closed_record(connection: Connection, period: Period) -> ClosedPeriod | None:
    """The record of the period when it is closed."""
    return next(
        (
            month
            for month in periods.list_closed(connection)
            if month.period.start_ms == period.start_ms
        ),
        None,
    )

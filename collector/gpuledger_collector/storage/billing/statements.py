"""What the statement of one owner reads: the parts of what it was billed, and what was corrected.

A part belongs to the period that bills it, as in the chargeback: days of the period, and corrections booked in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.measures import SUMMED
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reserved_names import escaped
from gpuledger_collector.accounting.statement import Contested, OwnerDay, OwnerJob
from gpuledger_collector.storage.billing import disputes
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.ledger.reports import LEVEL_COLUMNS, measures_of
from gpuledger_collector.storage.locks import Connection

UNKNOWN = "(unknown)"
_SUMS = ", ".join(f"sum(l.{name}) AS {name}" for name in SUMMED)
_NAMED = f"coalesce(nullif({{column}}, ''), '{UNATTRIBUTED}') = %(owner)s"
_DAILY = ", ".join(("owner_id", "state", "gpu_model", "currency", *SUMMED))
_BILLED = """
    SELECT day_ms AS at_ms, NULL::bigint AS amended_ms, {columns} FROM {table}
        WHERE day_ms >= %(start)s AND day_ms < %(end)s
    UNION ALL SELECT booked_day_ms, day_ms, {columns} FROM correction
        WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s
"""


def _of(level: str) -> str:
    """The condition that a line is held by the owner `%(owner)s` of a level, as the chargeback names it."""
    return f"l.state = 'held' AND {_NAMED.format(column=LEVEL_COLUMNS[level])}"


def owners(connection: Connection, level: str, period: Period) -> list[str]:
    """Who is billed for something held in the period, at a level, by name; `(unattributed)` where nobody is known."""
    lines = _BILLED.format(columns=_DAILY, table="ledger_day")
    rows = connection.execute(
        f"SELECT DISTINCT coalesce(nullif({LEVEL_COLUMNS[level]}, ''), '{UNATTRIBUTED}') FROM ({lines}) l "
        "LEFT JOIN owner o ON o.id = l.owner_id WHERE l.state = 'held' ORDER BY 1",
        {"start": period.start_ms, "end": period.end_ms},
    )
    return [str(row[0]) for row in rows]


def months(connection: Connection) -> list[str]:
    """The months `YYYY-MM` that have a rated day, newest first."""
    days = zones.calendar(connection)
    return sorted({days.month_of(day_ms) for (day_ms,) in connection.execute("SELECT day_ms FROM conservation_check")})[
        ::-1
    ]


def parts(connection: Connection, level: str, owner: str, below: str | None, period: Period) -> list[OwnerDay]:
    """What the owner was billed, by day, next level below (None: there is none), model and currency."""
    inner = "''" if below is None else f"coalesce({LEVEL_COLUMNS[below]}, '')"
    lines = _BILLED.format(columns=_DAILY, table="ledger_day")
    rows = connection.execute(
        f"SELECT l.at_ms, l.amended_ms, {inner}, l.gpu_model, l.currency, {_SUMS} FROM ({lines}) l "
        f"LEFT JOIN owner o ON o.id = l.owner_id WHERE {_of(level)} "
        "GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2 NULLS FIRST, 3, 4, 5",
        {"start": period.start_ms, "end": period.end_ms, "owner": owner},
    )
    return [OwnerDay(*row[:5], **measures_of(row[5:])) for row in rows]


def workloads(connection: Connection, level: str, owner: str, period: Period) -> list[OwnerJob]:
    """What each job of the owner was billed, by name, user, project and model, in a part of one month.

    Lines are added up by workload before names are looked up; names are as sealed where the month is closed.
    """
    ids = f"SELECT o.id FROM owner o WHERE {_NAMED.format(column=LEVEL_COLUMNS[level])}"
    lines = _BILLED.format(columns=f"{_DAILY}, workload_id", table="charge")
    rows = connection.execute(
        f"""
        WITH mine AS MATERIALIZED (
            SELECT l.workload_id, l.owner_id, l.gpu_model, l.currency, coalesce((SELECT p.name FROM billing_period p
                WHERE p.start_ms <= l.amended_ms AND p.end_ms > l.amended_ms), '') AS correction_of, {_SUMS}
            FROM ({lines}) l WHERE l.state = 'held' AND {{belongs}} GROUP BY 1, 2, 3, 4, 5
        )
        SELECT coalesce(nullif(CASE WHEN k.workload_id IS NULL THEN w.name ELSE k.name END, ''), w.external_id),
            coalesce(CASE WHEN k.workload_id IS NULL THEN w.user_name ELSE k.user_name END, ''),
            coalesce(nullif(o.project, ''), o.team, ''), l.gpu_model, l.currency, l.correction_of, {_SUMS}
        FROM mine l LEFT JOIN owner o ON o.id = l.owner_id LEFT JOIN workload w ON w.id = l.workload_id
        LEFT JOIN closed_workload k ON k.workload_id = l.workload_id AND k.period_start_ms = (
            SELECT start_ms FROM billing_period WHERE start_ms <= %(start)s AND end_ms > %(start)s)
        GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
        """.format(belongs=f"(l.owner_id IN ({ids}){_nobody(owner)})"),
        {"start": period.start_ms, "end": period.end_ms, "owner": owner},
    )
    return [
        OwnerJob(_called(name), *key, **measures_of(sums)) for name, *key, sums in ((*row[:6], row[6:]) for row in rows)
    ]


def _called(name: str | None) -> str:
    """The name of a job; no job is called like the time of which no job is known."""
    return UNKNOWN if name is None else escaped(name)


def _nobody(owner: str) -> str:
    """Held lines without any owner are those of nobody in particular."""
    return " OR l.owner_id IS NULL" if owner == UNATTRIBUTED else ""


def amended_later(connection: Connection, level: str, owner: str, period: Period) -> Mapping[str, int]:
    """Micro-units by currency of corrections of the period's days that are booked after it."""
    rows = connection.execute(
        "SELECT l.currency, sum(l.cost_micro) FROM correction l LEFT JOIN owner o ON o.id = l.owner_id "
        f"WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s AND l.booked_day_ms >= %(end)s AND {_of(level)} "
        "AND l.currency IS NOT NULL GROUP BY 1 ORDER BY 1",
        {"start": period.start_ms, "end": period.end_ms, "owner": owner},
    )
    return {str(currency): int(cost) for currency, cost in rows}


def contested(connection: Connection, level: str, owner: str, period: Period) -> list[Contested]:
    """The disputes about the owner's time in the period that wait for a decision, by number."""
    name = "" if owner == UNATTRIBUTED else owner
    contested = []
    for dispute in disputes.waiting(connection, period):
        levels = {**dispute.owner, level: name}
        if dispute.owner.get(level, name) != name:
            continue
        where = " AND ".join(f"{LEVEL_COLUMNS[at]} = %s" for at in levels)
        known = connection.execute(f"SELECT 1 FROM owner o WHERE {where} LIMIT 1", list(levels.values())).fetchone()
        if known is not None:
            contested.append(Contested(dispute, _job_of(connection, dispute.workload, period)))
    return contested


def _job_of(connection: Connection, key: str | None, period: Period) -> tuple[str, str] | None:
    """Name and user of a workload as the tables of a statement have them."""
    row = connection.execute(
        "SELECT coalesce(nullif(CASE WHEN k.workload_id IS NULL THEN w.name ELSE k.name END, ''), w.external_id), "
        "coalesce(CASE WHEN k.workload_id IS NULL THEN w.user_name ELSE k.user_name END, '') "
        "FROM workload w LEFT JOIN closed_workload k ON k.workload_id = w.id AND k.period_start_ms = %s "
        "WHERE w.key = %s",
        (period.start_ms, key),
    ).fetchone()
    return None if row is None else (_called(row[0]), row[1])


def closed(connection: Connection, period: Period) -> ClosedPeriod | None:
    """The record of the period when it is closed."""
    row = connection.execute(
        "SELECT name, closed_ms, closed_by, lines, seal FROM billing_period WHERE start_ms = %s", (period.start_ms,)
    ).fetchone()
    return (
        None
        if row is None
        else ClosedPeriod(
            period=period, **dict(zip(("name", "closed_ms", "closed_by", "lines", "seal"), row, strict=True))
        )
    )

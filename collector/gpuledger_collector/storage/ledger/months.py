"""The ledger of months that are over, added up from that of days: what a bill is read from.

A month has all of its lines in `ledger_month`, or none. Triggers of the database see to it, whoever writes: lines that
are not the sum of the month's days are refused, and a day that changes takes the lines of its month away in the same
transaction. A report then reads days until rating has added the month up again: a month is never wrong, only slower.

One who wrote days meanwhile and has not committed would not be seen here, and would not see this month either. So it is
made alone in writing the ledger, on a snapshot that is taken once nobody else is in the midst of writing days.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from gpuledger_collector.accounting.measures import COMPARED, MEASURES
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.storage.locks import Connection

_KEYS = "owner_id, state, pool, gpu_model, currency"
_COLUMNS = ", ".join((_KEYS, *MEASURES))


def _sum(name: str) -> str:
    """The sum of a measure; of those that are compared with the cost only where every priced part of it is known."""
    if name not in COMPARED:
        return f"sum({name})"
    amount = "coalesce(list_cost_micro, contracted_cost_micro)" if name == "list_cost_micro" else name
    return f"CASE WHEN bool_or(currency IS NOT NULL AND {amount} IS NULL) THEN NULL ELSE sum({amount}) END"


_ADDED = (
    f"SELECT {_KEYS}, {', '.join(_sum(name) for name in MEASURES)} FROM ledger_day "
    f"WHERE day_ms >= %(start)s AND day_ms < %(end)s GROUP BY {_KEYS}"
)
_KEPT = f"SELECT {_COLUMNS} FROM ledger_month WHERE start_ms = %(start)s AND end_ms = %(end)s"


def missing(connection: Connection, calendar: Calendar, now_ms: int) -> Period | None:
    """The latest month that is over and has rated days, and is not added up."""
    first = connection.execute("SELECT min(day_ms) FROM ledger_day").fetchone()
    if first is None or first[0] is None:
        return None
    months = _over(calendar, first[0], now_ms)
    row = connection.execute(
        "SELECT start_ms, end_ms FROM unnest(%s::bigint[], %s::bigint[]) AS m (start_ms, end_ms) "
        "WHERE EXISTS (SELECT FROM ledger_day WHERE day_ms >= m.start_ms AND day_ms < m.end_ms) "
        "AND NOT EXISTS (SELECT FROM ledger_month k WHERE k.start_ms = m.start_ms AND k.end_ms = m.end_ms) "
        "ORDER BY 1 DESC LIMIT 1",
        ([month.start_ms for month in months], [month.end_ms for month in months]),
    ).fetchone()
    return None if row is None else Period(*row)


def add_up(connection: Connection, calendar: Callable[[], Calendar], now_ms: int) -> bool:
    """Add up the latest month that is missing; whether there was one.

    The first statement of a transaction that is alone in writing the ledger. While somebody else writes days nothing
    is done: the next run comes to it.
    """
    try:
        with connection.transaction():
            connection.execute("LOCK TABLE ledger_day IN SHARE MODE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return False
    month = missing(connection, calendar(), now_ms)
    if month is None:
        return False
    connection.execute(
        f"INSERT INTO ledger_month (start_ms, end_ms, {_COLUMNS}) SELECT %(start)s, %(end)s, days.* "
        f"FROM ({_ADDED}) AS days",
        {"start": month.start_ms, "end": month.end_ms},
    )
    return True


def _over(calendar: Calendar, since_ms: int, now_ms: int) -> list[Period]:
    """The months of the bill from the one that holds an instant to the last that is over."""
    months = []
    month = calendar.month(calendar.month_of(since_ms))
    while month.end_ms <= now_ms:
        months.append(month)
        month = calendar.month(calendar.month_of(month.end_ms))
    return months


def untrue(connection: Connection, period: Period) -> list[Period]:
    """The months there that overlap a period and are not the sum of their days; none, unless somebody went around."""
    months = connection.execute(
        "SELECT DISTINCT start_ms, end_ms FROM ledger_month WHERE start_ms < %s AND end_ms > %s ORDER BY 1, 2",
        (period.end_ms, period.start_ms),
    ).fetchall()
    differs = f"SELECT FROM (({_KEPT} EXCEPT ALL {_ADDED}) UNION ALL ({_ADDED} EXCEPT ALL {_KEPT})) AS odd LIMIT 1"
    return [
        Period(start_ms, end_ms)
        for start_ms, end_ms in months
        if connection.execute(differs, {"start": start_ms, "end": end_ms}).fetchone() is not None
    ]

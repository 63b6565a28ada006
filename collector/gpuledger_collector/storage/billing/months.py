"""The ledger of ended months, summed from that of days: what a bill is read from.

A month has all of its lines in `ledger_month`, or none. Triggers of the database enforce it: they
refuse lines that are not the sum of the month's days, and delete the lines of a month when one of
its days changes. Reports then read days until rating has summed the month again: a month is never
wrong, only slower.

A transaction that has written days but not committed is invisible here, and does not see this
month. So months are summed under the ledger lock, in a snapshot taken when no transaction is
writing days.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg

from gpuledger_collector.accounting.measures import COMPARED, MEASURES
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.storage.foreign_keys import insert_selected
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as, select_value

_KEYS = "owner_id, state, pool, gpu_model, currency"
_COLUMNS = ", ".join((_KEYS, *MEASURES))


def _sum(name: str) -> str:
    """The sum of a measure; of those that are compared with the cost only where every priced part
    of it is known.
    """
    if name not in COMPARED:
        return f"sum({name})"
    amount = (
        "coalesce(list_cost_micro, contracted_cost_micro)" if name == "list_cost_micro" else name
    )
    # A sum over a part that is unknown is unknown: it would understate what it is compared with.
    return (
        f"CASE WHEN bool_or(currency IS NOT NULL AND {amount} IS NULL) THEN NULL ELSE"
        f" sum({amount}) END"
    )


# A month's lines computed from its days, and (`_KEPT`) as they are stored.
_ADDED = (
    f"SELECT {_KEYS}, {', '.join(_sum(name) for name in MEASURES)} FROM ledger_day "
    f"WHERE day_ms >= %(start)s AND day_ms < %(end)s GROUP BY {_KEYS}"
)
_KEPT = f"SELECT {_COLUMNS} FROM ledger_month WHERE start_ms = %(start)s AND end_ms = %(end)s"


def missing(connection: Connection, calendar: Calendar, now_ms: int) -> Period | None:
    """Return the latest ended month with rated days that is not summed."""
    first_ms = select_value(connection, "SELECT min(day_ms) FROM ledger_day")
    if first_ms is None:
        return None
    months = _ended_months(calendar, first_ms, now_ms)
    periods = select_as(
        connection,
        Period,
        "SELECT start_ms, end_ms FROM unnest(%s::bigint[], %s::bigint[]) AS m (start_ms, end_ms)"
        " WHERE EXISTS (SELECT FROM ledger_day WHERE day_ms >= m.start_ms AND day_ms < m.end_ms)"
        " AND NOT EXISTS (SELECT FROM ledger_month k WHERE k.start_ms = m.start_ms AND k.end_ms ="
        " m.end_ms) ORDER BY 1 DESC LIMIT 1",
        ([month.start_ms for month in months], [month.end_ms for month in months]),
    )
    return periods[0] if periods else None


def add_up(connection: Connection, calendar: Callable[[], Calendar], now_ms: int) -> bool:
    """Sum the latest missing month; return whether there was one.

    The first statement of a transaction that holds the ledger lock. While others write days it does
    nothing, and the next run does it.
    """
    try:
        # NOWAIT, in a savepoint of its own: a failed lock must not end the transaction that holds
        # the ledger lock. SHARE waits for no reader and conflicts with every transaction that has
        # written days and not committed.
        with connection.transaction():
            connection.execute("LOCK TABLE ledger_day IN SHARE MODE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return False
    month = missing(connection, calendar(), now_ms)
    if month is None:
        return False
    insert_selected(
        connection,
        f"ledger_month (start_ms, end_ms, {_COLUMNS})",
        f"SELECT %(start)s AS start_ms, %(end)s AS end_ms, days.* FROM ({_ADDED}) AS days ({_COLUMNS})",
        {"start": month.start_ms, "end": month.end_ms},
    )
    return True


def forget(connection: Connection, days_ms: Sequence[int]) -> None:
    """Delete the sums of months whose days are about to be rated: transactions that do so at once
    would wait here.
    """
    connection.execute(
        "DELETE FROM ledger_month m USING unnest(%s::bigint[]) AS d WHERE d >= m.start_ms AND d <"
        " m.end_ms",
        (days_ms,),
    )


def _ended_months(calendar: Calendar, since_ms: int, now_ms: int) -> list[Period]:
    """List the months of the bill from the one that contains an instant to the last ended one."""
    months = []
    month = calendar.month(calendar.month_of(since_ms))
    while month.end_ms <= now_ms:
        months.append(month)
        month = calendar.month(calendar.month_of(month.end_ms))
    return months


def inconsistent(connection: Connection, period: Period) -> list[Period]:
    """List summed months that overlap a period and differ from the sum of their days; the triggers
    allow none.
    """
    months = connection.execute(
        "SELECT DISTINCT start_ms, end_ms FROM ledger_month WHERE start_ms < %s AND end_ms > %s"
        " ORDER BY 1, 2",
        (period.end_ms, period.start_ms),
    ).fetchall()
    # Lines that one side has more often than the other; the days are added up once.
    both = (
        f"SELECT 1, {_COLUMNS} FROM ({_KEPT}) AS kept UNION ALL SELECT -1, days.* FROM ({_ADDED})"
        " AS days"
    )
    differs = (
        f"SELECT FROM ({both}) AS line (side, {_COLUMNS}) GROUP BY {_COLUMNS} HAVING sum(side) <> 0"
        " LIMIT 1"
    )
    return [
        Period(start_ms, end_ms)
        for start_ms, end_ms in months
        if connection.execute(differs, {"start": start_ms, "end": end_ms}).fetchone() is not None
    ]

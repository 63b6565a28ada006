"""Closed periods in Postgres: their records, and the corrections of their days."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger_collector.accounting.closing import ClosedPeriod, Invoice
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import sealed_tables
from gpuledger_collector.storage.foreign_keys import insert_selected
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as, select_dicts, select_row, select_value

Marks = tuple[int, int]
"""Ids of requests to rate a day and an hour again: a later request has a larger one."""


def list_closed(connection: Connection) -> list[ClosedPeriod]:
    """Every closed period, by time."""
    return [
        ClosedPeriod(period=Period(row.pop("start_ms"), row.pop("end_ms")), **row)
        for row in select_dicts(
            connection,
            "SELECT name, start_ms, end_ms, closed_ms, closed_by, lines, seal FROM billing_period"
            " ORDER BY start_ms",
        )
    ]


def declarations_at(
    connection: Connection, calendar: Calendar, period: Period
) -> dict[str, int | None]:
    """Return as of when declarations count for each month of a period: its close; None: now."""
    closed_ms = {month.name: month.closed_ms for month in list_closed(connection)}
    names = {calendar.month_of(day.start_ms) for day in calendar.days(period)}
    return {name: closed_ms.get(name) for name in sorted(names)}


def list_marked(connection: Connection, since: Marks = (0, 0)) -> list[Period]:
    """Closed periods with a mark on an hour or a day, by time; not for evidence that retention has
    removed.

    Marks of UTC days may touch a period in another zone that begins up to a day later. `since`:
    only marks that were added after these.
    """
    return select_as(
        connection,
        Period,
        """
        SELECT start_ms, end_ms FROM billing_period p
        WHERE EXISTS (SELECT FROM day_recompute WHERE id > %s
                AND day_ms > p.start_ms - 86400000 AND day_ms < p.end_ms)
            OR EXISTS (SELECT FROM hour_recompute h WHERE id > %s
                AND hour_ms > p.start_ms - 3600000 AND hour_ms < p.end_ms
                AND NOT EXISTS (SELECT FROM expired_day WHERE h.hour_ms >= day_ms AND h.hour_ms < day_ms + 172800000))
        ORDER BY start_ms
        """,
        since,
    )


def last_marks(connection: Connection) -> Marks:
    """The newest marks on a day and on an hour."""
    marks = select_row(
        connection,
        "SELECT coalesce((SELECT max(id) FROM day_recompute), 0) AS day,"
        " coalesce((SELECT max(id) FROM hour_recompute), 0) AS hour",
    )
    return marks.day, marks.hour


def closed_months_marked(connection: Connection, since: Marks) -> tuple[str, ...]:
    """The names of closed periods that were marked after these marks, by time."""
    marked = {period.start_ms for period in list_marked(connection, since)}
    return tuple(month.name for month in list_closed(connection) if month.period.start_ms in marked)


def receipt(connection: Connection, name: str) -> Mapping[str, Any] | None:
    """The receipt of a closed period; None when it is not closed."""
    receipt: Mapping[str, Any] | None = select_value(
        connection, "SELECT receipt FROM billing_period WHERE name = %s", (name,)
    )
    return receipt


def close(
    connection: Connection,
    done: ClosedPeriod,
    invoices: Sequence[Invoice],
    level: str,
    content: Mapping[str, object],
) -> None:
    """Writes the records of a close; the names that its lines show are kept as they are."""
    connection.execute(
        "INSERT INTO billing_period (start_ms, end_ms, name, closed_ms, closed_by, level, lines,"
        " seal, receipt) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)",
        (
            done.period.start_ms,
            done.period.end_ms,
            done.name,
            done.closed_ms,
            done.closed_by,
            level,
            done.lines,
            done.seal,
            json.dumps(content),
        ),
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO invoice (period_start_ms, currency, owner, micro, minor) VALUES (%s, %s,"
            " %s, %s, %s)",
            [
                (
                    done.period.start_ms,
                    invoice.currency,
                    invoice.owner,
                    invoice.micro,
                    invoice.minor,
                )
                for invoice in invoices
            ],
        )
    insert_selected(
        connection,
        "closed_workload (period_start_ms, workload_id, name, user_name, tags, job, job_uid, queue)",
        """
        SELECT %(start)s AS start_ms, w.id, w.name, w.user_name, w.tags, w.job, w.job_uid, w.queue
        FROM workload w WHERE w.id IN (
            SELECT workload_id FROM charge WHERE day_ms >= %(start)s AND day_ms < %(end)s
            UNION SELECT workload_id FROM correction WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s)
        """,
        {"start": done.period.start_ms, "end": done.period.end_ms},
    )
    facts = {
        "closed_by": done.closed_by,
        "level": level,
        "lines": done.lines,
        "seal": done.seal,
        "tables": sealed_tables.digests(connection, done.period),
    }
    audit.record(connection, [audit.Change("close", done.name, None, facts)], done.closed_ms)

"""What a close seals beside its lines: a hash of each table that reports of the month read, kept in
the audit log.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_value

TABLES = {
    "billing_period": "start_ms",
    "invoice": "period_start_ms",
    "closed_workload": "period_start_ms",
    "conservation_check": "day_ms",
}
"""Tables of which no row of a closed month changes, and their column that says of which month it
is.

Ledgers of days and months are not among them: they are compared with the sealed lines.
"""
OPTIONAL = {"closed_inference": "period_start_ms", "closed_inference_server": "period_start_ms"}
"""Tables that a month has rows of where it shares model servers; they are sealed with it then, and
have none later where they had none at the close.
"""
_FACTS = ("closed_by", "level", "lines", "seal")
"""What every close has recorded of its row, also by versions that sealed the lines only."""

Digest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SealedTables:
    """What became of the tables of a closed month: those that changed, and those of which its close
    has no hash.
    """

    changed: Sequence[str]
    uncovered: Sequence[str]


def digests(connection: Connection, period: Period) -> dict[str, Digest]:
    """Hash the rows of a month in each table, with the columns that there are now: a later one is
    not part of it.
    """
    tables = [*TABLES, *(table for table in OPTIONAL if _has_rows(connection, table, period))]
    return {table: _digest(connection, table, period, None) for table in tables}


def _has_rows(connection: Connection, table: str, period: Period) -> bool:
    return bool(
        select_value(
            connection,
            f"SELECT EXISTS (SELECT FROM {table} WHERE {OPTIONAL[table]} >= %s AND"
            f" {OPTIONAL[table]} < %s)",
            (period.start_ms, period.end_ms),
        )
    )


def compare(connection: Connection, closed: ClosedPeriod) -> SealedTables:
    """Compare the tables of a closed month with what its close recorded in the audit log."""
    row = connection.execute(
        "SELECT subject, at_ms, after FROM audit WHERE what = 'close' AND (subject = %s OR"
        " after->>'seal' = %s) ORDER BY subject <> %s, number DESC LIMIT 1",
        (closed.name, closed.seal, closed.name),
    ).fetchone()
    if row is None:
        return SealedTables((), tuple(TABLES))
    name, at_ms, facts = row
    sealed: Mapping[str, Digest] = facts.get("tables", {})
    changed = [
        table
        for table, digest in sealed.items()
        if _digest(connection, table, closed.period, digest["columns"]) != digest
    ]
    changed += [
        table
        for table in OPTIONAL
        if table not in sealed and _has_rows(connection, table, closed.period)
    ]
    if "billing_period" not in changed and not _is_recorded(connection, closed, name, at_ms, facts):
        changed.insert(0, "billing_period")
    return SealedTables(changed, tuple(table for table in TABLES if table not in sealed))


def _is_recorded(
    connection: Connection, closed: ClosedPeriod, name: str, at_ms: int, facts: Mapping[str, Any]
) -> bool:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            f"SELECT name, closed_ms, {', '.join(_FACTS)} FROM billing_period WHERE start_ms = %s",
            (closed.period.start_ms,),
        ).fetchone()
    return row == {"name": name, "closed_ms": at_ms, **{fact: facts.get(fact) for fact in _FACTS}}


def _digest(
    connection: Connection, table: str, period: Period, columns: Sequence[str] | None
) -> Digest:
    """The hash of a month's rows in any order, and the columns that it is of."""
    instant = {**TABLES, **OPTIONAL}[table]
    cursor = connection.execute(
        f"SELECT {', '.join(columns or ('*',))} FROM {table} WHERE {instant} >= %s AND {instant}"
        " < %s",
        (period.start_ms, period.end_ms),
    )
    names = [column.name for column in cursor.description or ()]
    rows = sorted(json.dumps(row, sort_keys=True, default=_text) for row in cursor)
    return {"columns": names, "sha256": hashlib.sha256("\n".join(rows).encode()).hexdigest()}


def _text(value: object) -> str:
    return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else f"{value:f}"

"""Names that nobody uses go: accelerators and workloads that no row of any table refers to.

Whoever holds a node's token can make up names, and each is a row. A name is looked at when it has not been seen for the
time that agents may still send what speaks of it. Everything that refers to it keeps it, whatever it is; then it is not
looked at again before that time has passed once more. All is read in one snapshot, table by table and partition by
partition, and the search ends as soon as no candidate is left: mostly with the first table.

A collector remembers ids for a day at most (ingest/directory.py), and names of which it has ids count as seen.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.telemetry import partitions

Connection = psycopg.Connection[tuple[Any, ...]]
NAMED = {"workload": ("workload_id", "workload_ids"), "accelerator": ("accelerator_id", "accelerator_ids")}
"""Tables of names, and what columns that refer to them are called: one id, or an array of them."""
CANDIDATES = 100_000
"""Names of one run."""
_FIRST = ("usage_hour", "charge", "capacity", "imported_usage")
"""Where most names are found."""


class _GivesWay(Exception):
    """The program stops: what was found is forgotten, and the next run looks again."""


def references(table: str) -> list[tuple[str, str]]:
    """Tables and columns that refer to names of this table, those in which most are found first."""
    found = [
        (other.name, column)
        for other in metadata.sorted_tables
        for column in NAMED[table]
        if column in other.columns and other.name not in (table, f"{table}_attributes")
    ]
    return sorted(found, key=lambda pair: (pair[0] not in _FIRST, pair[0] in partitions.PARTITIONED, pair[0]))


def forget_unused(
    connection: Connection, table: str, before: dt.datetime, gives_way: Callable[[], bool] = lambda: False
) -> int:
    """Remove names of this table that were last seen before an instant and that nothing refers to; how many.

    `connection` is in autocommit. Raises psycopg.errors.SerializationFailure when one was seen meanwhile.
    """
    try:
        # The lock comes before the snapshot: what was imported until then is seen, and nothing is until this has ended.
        with locks.snapshot(connection, Lock.IMPORTS):
            return _forget(connection, table, before, gives_way)
    except _GivesWay:
        return 0


def _forget(connection: Connection, table: str, before: dt.datetime, gives_way: Callable[[], bool]) -> int:
    names = {"table": sql.Identifier(table)}
    with connection.transaction():
        connection.execute("CREATE TEMP TABLE candidate (id bigint PRIMARY KEY) ON COMMIT DROP")
        # Rows of before this was noted: their time begins now.
        connection.execute(
            sql.SQL(
                "UPDATE {table} SET last_seen_at = now() WHERE id = ANY(ARRAY("
                "SELECT id FROM {table} WHERE last_seen_at IS NULL LIMIT %s))"
            ).format(**names),
            (CANDIDATES,),
        )
        looked_at = connection.execute(
            sql.SQL(
                "INSERT INTO candidate SELECT id FROM {table} WHERE last_seen_at < %s ORDER BY last_seen_at LIMIT %s"
            ).format(**names),
            (before, CANDIDATES),
        ).rowcount
        if not looked_at:
            return 0
        connection.execute("CREATE TEMP TABLE examined ON COMMIT DROP AS SELECT id FROM candidate")
        for statement in _statements(connection, table):
            if gives_way():
                raise _GivesWay
            connection.execute(statement)
            if connection.execute("SELECT FROM candidate LIMIT 1").fetchone() is None:
                break
        connection.execute(
            sql.SQL("DELETE FROM {attributes} t USING candidate c WHERE t.{key} = c.id").format(
                attributes=sql.Identifier(f"{table}_attributes"), key=sql.Identifier(f"{table}_id")
            )
        )
        gone = connection.execute(
            sql.SQL("DELETE FROM {table} t USING candidate c WHERE t.id = c.id").format(**names)
        ).rowcount
        connection.execute(
            sql.SQL("UPDATE {table} t SET last_seen_at = now() FROM examined e WHERE t.id = e.id").format(**names)
        )
        return gone


def _statements(connection: Connection, table: str) -> Iterator[sql.Composed]:
    """Take out the candidates that each table, or partition, refers to."""
    parts = partitions.listing(connection)
    for other, column in references(table):
        is_array = isinstance(metadata.tables[other].columns[column].type, sa.ARRAY)
        divided = other in partitions.PARTITIONED
        for place in [part.name for part in parts if part.table == other] if divided else [other]:
            value = sql.SQL("unnest({column})" if is_array else "{column}").format(column=sql.Identifier(column))
            yield sql.SQL(
                "DELETE FROM candidate c USING (SELECT DISTINCT {value} AS id FROM {place}) u WHERE c.id = u.id"
            ).format(value=value, place=sql.Identifier(place))

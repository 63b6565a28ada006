"""Partitions of the big tables, a UTC day each: named `<table>_pYYYYMMDD`, made when first needed.

There is no default partition: a row without a partition is a bug that must be seen, and attaching a day beside a
filled default would scan it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import psycopg
from psycopg import sql

from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Lock

DAY_MS = 86_400_000
PARTITIONED = {"gpu_sample": "at_ms", "stretch": "start_ms"}
"""Partitioned tables and their key."""
JOB_WAIT = "30s"
"""How long the job waits for whoever makes partitions or holds a table; it comes again within the hour."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One day of one table, with its size on disk."""

    table: str
    name: str
    day_ms: int
    bytes: int


def day_of(instant_ms: int) -> int:
    """The start of the UTC day of an instant."""
    return instant_ms - instant_ms % DAY_MS


def partition_name(table: str, day_ms: int) -> str:
    """The name of a table's partition for the day that starts at `day_ms`."""
    return f"{table}_p{dt.datetime.fromtimestamp(day_ms / 1000, dt.UTC):%Y%m%d}"


def ensure(connection: psycopg.Connection[tuple[object, ...]], table: str, days_ms: Iterable[int]) -> list[str]:
    """Make the partitions of these days that do not exist yet; the names of those made. Commits nothing.

    A day is made beside its table and then attached: that waits for no reader and no writer of the table, where
    `CREATE TABLE ... PARTITION OF` would. Call it in a transaction that holds no other lock: two sessions that make
    the same day wait for each other on a lock of this transaction.
    """
    wanted = {partition_name(table, day): day for day in sorted(set(days_ms))}
    if not _missing(connection, table, wanted):
        return []
    with connection.transaction() if connection.autocommit else nullcontext():
        return _make(connection, table, wanted)


def _make(connection: psycopg.Connection[tuple[object, ...]], table: str, wanted: dict[str, int]) -> list[str]:
    locks.take(connection, Lock.PARTITIONS)
    missing = _missing(connection, table, wanted)
    for name in missing:
        day = wanted[name]
        names = {"child": sql.Identifier(name), "parent": sql.Identifier(table)}
        connection.execute(
            sql.SQL("CREATE TABLE {child} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)").format(**names)
        )
        connection.execute(
            sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {child} FOR VALUES FROM ({start}) TO ({end})").format(
                **names, start=sql.Literal(day), end=sql.Literal(day + DAY_MS)
            )
        )
    return missing


def _missing(connection: psycopg.Connection[tuple[object, ...]], table: str, wanted: dict[str, int]) -> list[str]:
    # to_regclass() would answer from this session's cache, and miss what another one has just committed.
    rows = connection.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE NOT EXISTS (SELECT 1 FROM pg_inherits"
        " JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = %s::regclass AND relname = name) ORDER BY name",
        (list(wanted), table),
    )
    return [str(row[0]) for row in rows]


def listing(connection: psycopg.Connection[tuple[object, ...]]) -> list[Partition]:
    """Every partition with its size, by table and day."""
    rows = connection.execute(
        """
        SELECT parent.relname, child.relname, pg_total_relation_size(child.oid)
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
        WHERE parent.relname = ANY(%s) AND child.relkind = 'r' ORDER BY 1, 2
        """,
        (list(PARTITIONED),),
    )
    return [Partition(str(table), str(name), _day_in(str(name)), int(str(size))) for table, name, size in rows]


def _day_in(name: str) -> int:
    day = dt.datetime.strptime(name.rsplit("_p", 1)[1], "%Y%m%d").replace(tzinfo=dt.UTC)
    return int(day.timestamp()) * 1000

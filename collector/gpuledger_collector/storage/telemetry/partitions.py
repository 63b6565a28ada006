"""Partitions of the big tables: one for each UTC day, `<table>_pYYYYMMDD`, and one for an old
month, `<table>_pYYYYMM`.

A query that reaches a partition locks it and its indexes, and planning takes time for each, so
their number must stay small whatever dates agents send. A day's partition is created when it is
first needed; a month that ended COARSE_AFTER_DAYS ago gets a single one, and partition_merge.py
merges the days of such months. There is no default partition: a row without a partition is a bug
that must be seen, and attaching a day would scan a filled default.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from psycopg import sql

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage import distribution, locks
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select, select_value, select_values
from gpuledger_common.instants import to_datetime, to_ms

PARTITIONED = {"gpu_sample": "at_ms", "usage_interval": "start_ms"}
"""Partitioned tables and their key."""
JOB_WAIT = "30s"
"""How long the job waits for a table's lock; it runs again within the hour."""
COARSE_AFTER_DAYS = 62
"""Days after which an ended month is one partition: agents send evidence of up to 37 days ago."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A day or a month of one table, with its size on disk."""

    table: str
    name: str
    day_ms: int
    """Its first day."""
    end_ms: int
    bytes: int

    @property
    def is_day(self) -> bool:
        """Whether it is a single day."""
        return self.end_ms - self.day_ms == DAY_MS


def day_of(instant_ms: int) -> int:
    """The start of the UTC day of an instant."""
    return instant_ms - instant_ms % DAY_MS


def partition_name(table: str, day_ms: int) -> str:
    """The name of a table's partition for the day that starts at `day_ms`."""
    return f"{table}_p{to_datetime(day_ms):%Y%m%d}"


def month_name(table: str, day_ms: int) -> str:
    """The name of a table's partition for the month of a day."""
    return f"{table}_p{to_datetime(day_ms):%Y%m}"


def month_of(day_ms: int) -> tuple[int, int]:
    """Start and end of the UTC month of a day."""
    first = to_datetime(day_ms).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return to_ms(first), to_ms((first + dt.timedelta(days=31)).replace(day=1))


def coarse_before(now_ms: int) -> int:
    """Months that ended by this instant lie in one partition each."""
    return day_of(now_ms) - COARSE_AFTER_DAYS * DAY_MS


def ensure(
    connection: Connection, table: str, days_ms: Iterable[int], coarse_before_ms: int = 0
) -> list[str]:
    """Create the missing partitions of these days; return their names. Commits nothing.

    A day of a month that ended by `coarse_before_ms` gets the whole month, unless other days of it
    have partitions. A partition is created as a table of its own and then attached: unlike `CREATE
    TABLE ... PARTITION OF` that waits for no reader and no writer. Call it in a transaction that
    holds no other lock: two sessions that create the same day wait for each other on a lock of this
    transaction.
    """
    days = sorted(set(days_ms))
    # The usual case takes no lock; the question is asked again under the lock below.
    if not _missing(connection, table, days, coarse_before_ms):
        return []
    with connection.transaction() if connection.autocommit else nullcontext():
        locks.take(connection, Lock.PARTITIONS)
        missing = _missing(connection, table, days, coarse_before_ms)
        for name, (start_ms, end_ms) in missing.items():
            create(connection, table, name)
            attach(connection, table, name, start_ms, end_ms)
        return sorted(missing)


def create(connection: Connection, table: str, name: str, *, indexed: bool = False) -> None:
    """Create a table like the partitioned one, not attached yet; without `indexed` attaching
    creates the indexes.
    """
    parts = sql.SQL("INCLUDING INDEXES" if indexed else "")
    connection.execute(
        sql.SQL(
            "CREATE TABLE {child} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS {parts})"
        ).format(child=sql.Identifier(name), parent=sql.Identifier(table), parts=parts)
    )


def attach(connection: Connection, table: str, name: str, start_ms: int, end_ms: int) -> None:
    """Attach a table as the partition of the keys from one instant (inclusive) to another
    (exclusive).
    """
    connection.execute(
        sql.SQL(
            "ALTER TABLE {parent} ATTACH PARTITION {child} FOR VALUES FROM ({start}) TO ({end})"
        ).format(
            child=sql.Identifier(name),
            parent=sql.Identifier(table),
            start=sql.Literal(start_ms),
            end=sql.Literal(end_ms),
        )
    )


def _missing(
    connection: Connection, table: str, days: list[int], coarse_before_ms: int
) -> dict[str, tuple[int, int]]:
    """Names and bounds of the partitions to create so that each of these days has one."""
    months = {day: month_of(day) for day in days}
    names = {
        *(partition_name(table, day) for day in days),
        *(month_name(table, day) for day in days),
    }
    # left(relname, -2) cuts the digits of the day off a name, which gives the name of its month.
    coarse = {
        month_name(table, day) for day, (_, end_ms) in months.items() if end_ms <= coarse_before_ms
    }
    # to_regclass() would answer from this session's cache and miss what another session has just
    # committed.
    existing = set(
        select_values(
            connection,
            "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE"
            " inhparent = %s::regclass AND (relname = ANY(%s::text[]) OR left(relname, -2) ="
            " ANY(%s::text[]))",
            (table, sorted(names), sorted(coarse)),
        )
    )
    # Months of which some day has a partition: a month's partition would overlap it.
    divided = {name[:-2] for name in existing}
    missing: dict[str, tuple[int, int]] = {}
    for day in days:
        month = month_name(table, day)
        if month in existing or partition_name(table, day) in existing:
            continue
        if month in coarse and month not in divided:
            missing[month] = months[day]
        else:
            missing[partition_name(table, day)] = (day, day + DAY_MS)
    return missing


def listing(connection: Connection, *, sized: bool = False) -> list[Partition]:
    """Every partition by table and time; with its size if `sized`, else 0.

    Citus asks its workers for sizes, which it refuses in a transaction that has written a
    distributed table.
    """
    size = f"{distribution.size_function(connection)}(child.oid::regclass)" if sized else "0"
    return [
        Partition(row.table_name, row.name, *bounds_in(row.name), int(row.bytes))
        for row in select(
            connection,
            f"""
        SELECT parent.relname AS table_name, child.relname AS name, {size} AS bytes
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
        WHERE parent.relname = ANY(%s) AND child.relkind = 'r' ORDER BY 1, 2
        """,
            (list(PARTITIONED),),
        )
    ]


def count(connection: Connection) -> int:
    """How many partitions there are."""
    query = "SELECT count(*) FROM pg_inherits WHERE inhparent = ANY(%s::text[]::regclass[])"
    return int(select_value(connection, query, (list(PARTITIONED),)))


def holding(connection: Connection, table: str, day_ms: int) -> Partition | None:
    """The partition that holds a day, without its size; None when there is none."""
    name: str | None = select_value(
        connection,
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent ="
        " %s::regclass AND relname = ANY(%s::text[])",
        (table, [partition_name(table, day_ms), month_name(table, day_ms)]),
    )
    return None if name is None else Partition(table, name, *bounds_in(name), 0)


def filled_days(connection: Connection, partition: Partition) -> list[int]:
    """The days of a partition that have rows; its first day when none has."""
    if partition.is_day:
        return [partition.day_ms]
    days = select_values(
        connection,
        sql.SQL(
            "SELECT day FROM generate_series(%s::bigint, %s::bigint - 1, %s) AS day WHERE EXISTS"
            " (SELECT FROM {child} WHERE {key} >= day AND {key} < day + %s) ORDER BY day"
        ).format(
            child=sql.Identifier(partition.name), key=sql.Identifier(PARTITIONED[partition.table])
        ),
        (partition.day_ms, partition.end_ms, DAY_MS, DAY_MS),
    )
    return days or [partition.day_ms]


def bounds_in(name: str) -> tuple[int, int]:
    """Start and end of what a partition of this name holds."""
    # Bounds are part of the name, so that no catalog entry has to be parsed.
    digits = name.rsplit("_p", 1)[1]
    if len(digits) == len("YYYYMM"):
        return month_of(to_ms(dt.datetime.strptime(digits, "%Y%m").replace(tzinfo=dt.UTC)))
    day_ms = to_ms(dt.datetime.strptime(digits, "%Y%m%d").replace(tzinfo=dt.UTC))
    return day_ms, day_ms + DAY_MS

"""Days of old months become one partition, so that years of evidence are some dozens of tables and not thousands.

Rows are copied into a table beside, while a session of its own holds writers of those days off; readers go on. The
swap, a moment in which nobody reads or writes the table, waits until every snapshot of before the copy has ended: one
that still lived would find the new partition and see none of its rows. Stopped anywhere, the days are still there, and
the next run begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.server.distribution import has_citus
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_collector.storage.telemetry.day_rows import alone
from gpuledger_collector.storage.telemetry.partitions import PARTITIONED, Partition

Connection = psycopg.Connection[tuple[Any, ...]]
LOCK_WAIT = "5s"
SNAPSHOT_SECONDS = 60.0
"""How long the swap waits for snapshots of before the copy."""
SWAP_TRIES = 5
_MISSED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.QueryCanceled)


class _GivesWay(Exception):
    """The program stops: the month is left to the next run."""


class MergeStore:
    """What the job of merging asks of Postgres (jobs.merge_partitions.MergeStore)."""

    def __init__(self, dsn: str, gives_way: Callable[[], bool] = lambda: False) -> None:
        """`gives_way` is asked between two days: True leaves the month to the next run."""
        self._dsn = dsn
        self._gives_way = gives_way

    def months(self, table: str, before_ms: int) -> list[int]:
        """Starts of the months that ended by an instant and have two partitions of days or more."""
        with open_connection(self._dsn) as connection:
            if has_citus(connection):
                return []  # a filled table cannot become a part of a spread one
            days = [part for part in partitions.listing(connection) if part.table == table and part.is_day]
        months = [partitions.month_of(part.day_ms) for part in days]
        return sorted({start for start, end in months if end <= before_ms and months.count((start, end)) > 1})

    def merge(self, table: str, month_ms: int) -> int:
        """Turn the days of a month into one partition; how many there were, 0 when it has to wait for the next run."""
        with alone(self._dsn) as is_alone:
            if not is_alone:
                return 0
            with open_connection(self._dsn) as holder:
                try:
                    return self._merge(holder, table, month_ms)
                except (*_MISSED, _GivesWay):
                    return 0

    def _merge(self, holder: Connection, table: str, month_ms: int) -> int:
        """Copy with a connection of its own while the holder's transaction keeps writers off, then swap in that."""
        holder.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'; SET LOCAL idle_in_transaction_session_timeout = 0")
        days = _lock_days(holder, table, month_ms)
        if len(days) < 2:
            return 0
        with open_connection(self._dsn, autocommit=True) as copier:
            discard = sql.SQL("DROP TABLE IF EXISTS {}").format(_beside(table))
            copier.execute(discard)  # of a run that was stopped
            try:
                written = _copy(copier, table, days, self._gives_way)
                if _wait_for_snapshots(copier, written) and _swap(holder, table, days):
                    holder.commit()
                    return len(days)
            finally:
                holder.rollback()
                copier.execute(discard)
        return 0


def _beside(table: str) -> sql.Identifier:
    """The table in which a month is put together."""
    return sql.Identifier(f"{table}_merging")


def _lock_days(holder: Connection, table: str, month_ms: int) -> list[Partition]:
    start_ms, end_ms = partitions.month_of(month_ms)
    days = [
        part
        for part in partitions.listing(holder)
        if part.table == table and part.is_day and start_ms <= part.day_ms < end_ms
    ]
    for part in days:
        holder.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(part.name)))
    return days


def _copy(copier: Connection, table: str, days: Sequence[Partition], gives_way: Callable[[], bool]) -> str:
    """Write the rows of these days into a new table; the number of the transaction. Raises _GivesWay."""
    start_ms, end_ms = partitions.month_of(days[0].day_ms)
    key, child = sql.Identifier(PARTITIONED[table]), _beside(table)
    with copier.transaction():
        row = copier.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
        assert row is not None
        partitions.create(copier, table, f"{table}_merging", indexed=True)
        # Attaching believes this constraint, and need not look at every row while all others wait.
        within = sql.SQL("{key} IS NOT NULL AND {key} >= {start} AND {key} < {end}").format(
            key=key, start=sql.Literal(start_ms), end=sql.Literal(end_ms)
        )
        copier.execute(sql.SQL("ALTER TABLE {} ADD CONSTRAINT within CHECK ({})").format(child, within))
        columns = sql.SQL(", ").join(map(sql.Identifier, _columns(copier, table)))
        for day in days:
            if gives_way():
                raise _GivesWay
            copier.execute(
                sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {}").format(
                    child, sql.Identifier(day.name), columns=columns
                )
            )
        copier.execute(sql.SQL("ANALYZE {}").format(child))
    return str(row[0])


def _columns(connection: Connection, table: str) -> list[str]:
    rows = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum",
        (table,),
    )
    return [str(row[0]) for row in rows]


def _wait_for_snapshots(connection: Connection, written: str) -> bool:
    """Whether every snapshot that may not see this transaction has ended in time."""
    deadline = time.monotonic() + SNAPSHOT_SECONDS
    while time.monotonic() < deadline:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND age(backend_xmin) >= age(%s::xid)",
            (written,),
        ).fetchone()
        if row is not None and row[0] == 0:
            return True
        time.sleep(0.2)
    return False


def _swap(holder: Connection, table: str, days: Sequence[Partition]) -> bool:
    """Put the month in the place of its days; False when the locks were not to be had in several tries."""
    start_ms, end_ms = partitions.month_of(days[0].day_ms)
    name = partitions.month_name(table, start_ms)
    for _ in range(SWAP_TRIES):
        try:
            with holder.transaction():
                locks.take(holder, Lock.PARTITIONS)
                if len(_lock_days(holder, table, start_ms)) != len(days):
                    return False  # a day that had none has one now
                for day in days:
                    holder.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(day.name)))
                rename = sql.SQL("ALTER TABLE {} RENAME TO {}").format(_beside(table), sql.Identifier(name))
                holder.execute(rename)
                partitions.attach(holder, table, name, start_ms, end_ms)
                holder.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT within").format(sql.Identifier(name)))
        except _MISSED:
            continue
        return True
    return False

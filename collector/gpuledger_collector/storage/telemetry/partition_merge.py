"""Merge the days of old months into one partition, so that years of evidence are dozens of tables,
not thousands.

Rows are copied into a new table while a session of its own blocks writers of those days; readers
continue. The swap, a moment in which nobody reads or writes the table, waits until every snapshot
from before the copy has ended: a snapshot still in use would find the new partition and see none of
its rows. A run that stopped anywhere leaves the days as they are, and the next run starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.distribution import has_citus
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_value, select_values
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_collector.storage.telemetry.partitions import PARTITIONED, Partition

LOCK_WAIT = "5s"
SNAPSHOT_SECONDS = 60.0
"""How long the swap waits for snapshots from before the copy."""
SWAP_TRIES = 5
_MISSED = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.QueryCanceled,
)


class _Stopping(Exception):
    """The program stops: the month is left to the next run."""


def months(database: Database, table: str, before_ms: int) -> list[int]:
    """Starts of the months that ended by an instant and have two partitions of days or more."""
    with database.connect() as connection:
        if has_citus(connection):
            return []  # a filled table cannot be attached to a distributed one
        days = [
            part for part in partitions.listing(connection) if part.table == table and part.is_day
        ]
    bounds = [partitions.month_of(part.day_ms) for part in days]
    return sorted(
        {start for start, end in bounds if end <= before_ms and bounds.count((start, end)) > 1}
    )


def merge(
    database: Database, table: str, month_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Turn the days of a month into one partition; return how many there were, 0 when the next run
    has to do it.

    `stopping` is asked between two days: True leaves the month to the next run.
    """
    with database.try_hold(Lock.PACKING) as lock_holder, database.connect() as holder:
        if lock_holder is None:
            return 0
        holder.autocommit = False
        try:
            return _merge(database, holder, table, month_ms, stopping)
        except (*_MISSED, _Stopping):
            return 0


def _merge(
    database: Database, holder: Connection, table: str, month_ms: int, stopping: Callable[[], bool]
) -> int:
    """Copy on another connection while the holder's transaction blocks writers, then swap in that
    transaction.
    """
    # The holder stays idle in its transaction while another connection copies.
    holder.execute(
        f"SET LOCAL lock_timeout = '{LOCK_WAIT}'; SET LOCAL idle_in_transaction_session_timeout = 0"
    )
    days = _lock_days(holder, table, month_ms)
    if len(days) < 2:
        return 0
    with database.connect() as copier:
        discard = sql.SQL("DROP TABLE IF EXISTS {}").format(_new_table(table))
        copier.execute(discard)  # of a run that was stopped
        try:
            written = _copy(copier, table, days, stopping)
            if _wait_for_snapshots(copier, written) and _swap(holder, table, days):
                holder.commit()
                return len(days)
        finally:
            # First release the writers, then drop the copy, which nobody else can see.
            holder.rollback()
            copier.execute(discard)
    return 0


def _new_table(table: str) -> sql.Identifier:
    """The table into which a month is copied."""
    return sql.Identifier(f"{table}_merging")


def _lock_days(holder: Connection, table: str, month_ms: int) -> list[Partition]:
    start_ms, end_ms = partitions.month_of(month_ms)
    days = [
        part
        for part in partitions.listing(holder)
        if part.table == table and part.is_day and start_ms <= part.day_ms < end_ms
    ]
    for part in days:
        # SHARE conflicts with writers, not with readers. Days are locked in the order of their
        # names.
        holder.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(part.name)))
    return days


def _copy(
    copier: Connection, table: str, days: Sequence[Partition], stopping: Callable[[], bool]
) -> str:
    """Copy the rows of these days into a new table; return the transaction's id.

    Raises _Stopping.
    """
    start_ms, end_ms = partitions.month_of(days[0].day_ms)
    key, child = sql.Identifier(PARTITIONED[table]), _new_table(table)
    with copier.transaction():
        # The id of the copying transaction: snapshots from before it can be recognized by their
        # age.
        transaction: str = select_value(copier, "SELECT pg_current_xact_id()::xid::text")
        partitions.create(copier, table, f"{table}_merging", indexed=True)
        # Attaching trusts this constraint instead of scanning every row while all others wait.
        within = sql.SQL("{key} IS NOT NULL AND {key} >= {start} AND {key} < {end}").format(
            key=key, start=sql.Literal(start_ms), end=sql.Literal(end_ms)
        )
        copier.execute(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT within CHECK ({})").format(child, within)
        )
        columns = sql.SQL(", ").join(map(sql.Identifier, _columns(copier, table)))
        for day in days:
            if stopping():
                raise _Stopping
            copier.execute(
                sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {}").format(
                    child, sql.Identifier(day.name), columns=columns
                )
            )
        # Before the swap: a query that plans on an empty table's statistics would be slow until
        # autovacuum runs.
        copier.execute(sql.SQL("ANALYZE {}").format(child))
    return transaction


def _columns(connection: Connection, table: str) -> list[str]:
    return select_values(
        connection,
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT"
        " attisdropped ORDER BY attnum",
        (table,),
    )


def _wait_for_snapshots(connection: Connection, written: str) -> bool:
    """Wait until every snapshot that cannot see this transaction has ended; False when that takes
    too long.
    """
    deadline = time.monotonic() + SNAPSHOT_SECONDS
    while time.monotonic() < deadline:
        older = select_value(
            connection,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <>"
            " pg_backend_pid() AND age(backend_xmin) >= age(%s::xid)",
            (written,),
        )
        if older == 0:
            return True
        time.sleep(0.2)
    return False


def _swap(holder: Connection, table: str, days: Sequence[Partition]) -> bool:
    """Replace the days by their month; False when the locks were not available in several tries."""
    start_ms, end_ms = partitions.month_of(days[0].day_ms)
    name = partitions.month_name(table, start_ms)
    for _ in range(SWAP_TRIES):
        try:
            # A savepoint: a failed try releases what it locked and keeps the locks of the days.
            with holder.transaction():
                locks.take(holder, Lock.PARTITIONS)
                if len(_lock_days(holder, table, start_ms)) != len(days):
                    return False  # another day of the month got a partition meanwhile
                for day in days:
                    holder.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(day.name)))
                rename = sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                    _new_table(table), sql.Identifier(name)
                )
                holder.execute(rename)
                partitions.attach(holder, table, name, start_ms, end_ms)
                holder.execute(
                    sql.SQL("ALTER TABLE {} DROP CONSTRAINT within").format(sql.Identifier(name))
                )
        except _MISSED:
            continue
        return True
    return False

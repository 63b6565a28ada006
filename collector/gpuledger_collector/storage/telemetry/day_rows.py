"""The rows of one UTC day of a partitioned table: a partition of their own, or a part of the
partition of its month.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_collector.storage.telemetry.partitions import Partition


@dataclass(frozen=True, slots=True)
class DayRows:
    """Where the rows of a day are: a table, and the condition that selects them in it."""

    partition: Partition
    table: sql.Identifier
    condition: sql.Composable
    """TRUE when the partition holds nothing else."""

    @classmethod
    def in_partition(cls, partition: Partition, day_ms: int) -> DayRows:
        """A day's rows in a partition that holds them."""
        condition: sql.Composable = sql.SQL("TRUE")
        if not partition.is_day:
            condition = sql.SQL("{key} >= {start} AND {key} < {end}").format(
                key=sql.Identifier(partitions.PARTITIONED[partition.table]),
                start=sql.Literal(day_ms),
                end=sql.Literal(day_ms + DAY_MS),
            )
        return cls(partition, sql.Identifier(partition.name), condition)


def find(connection: Connection, table: str, day_ms: int) -> DayRows | None:
    """The rows of a day; None when there is no partition for them."""
    partition = partitions.holding(connection, table, day_ms)
    return None if partition is None else DayRows.in_partition(partition, day_ms)


def days(connection: Connection, table: str) -> list[int]:
    """Days that have a partition, or rows in the partition of their month, by time."""
    parts = [part for part in partitions.listing(connection) if part.table == table]
    return sorted(day for part in parts for day in partitions.filled_days(connection, part))


def drop(connection: Connection, table: str, day_ms: int) -> None:
    """Delete a day: its partition, or its rows in the partition of its month, and that one with the
    last of them.
    """
    rows = find(connection, table, day_ms)
    if rows is None:
        return
    if not rows.partition.is_day:
        # Writers of the month wait, so that no row arrives between the two statements below.
        connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(rows.table))
        connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(rows.table, rows.condition))
        if (
            connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(rows.table)).fetchone()
            is not None
        ):
            return
    connection.execute(sql.SQL("DROP TABLE {}").format(rows.table))

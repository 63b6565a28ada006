"""Delete unused names: accelerators and workloads that no row of any table refers to.

Whoever holds a node's token can invent names, and each is a row. A name is a candidate when it has
not been seen for the time in which agents may still send evidence of it. Any reference keeps it,
and then it is examined again only after that time has passed once more. All tables are read in one
snapshot, partition by partition, until no candidate is left: usually after the first table.

A collector caches ids for a day at most (ingest/batches/attributes.py), and cached names count as
seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from psycopg import sql

from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_values
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.telemetry import partitions, usage_evidence
from gpuledger_common.instants import to_datetime

NAMED = {
    "workload": ("workload_id", "workload_ids"),
    "accelerator": ("accelerator_id", "accelerator_ids"),
}
"""Tables of names -> the names of columns that refer to them: one id, or an array of ids."""
CANDIDATES = 100_000
"""Most names examined in one run."""
_FIRST = ("usage_hour", "charge", "capacity", "imported_usage")
"""Tables that refer to most names; examined first."""


class _Stopping(Exception):
    """The process stops: the transaction is rolled back, and the next run starts over."""


def references(table: str) -> list[tuple[str, str]]:
    """List the tables and columns that refer to names of this table, the most frequent first."""
    columns = [
        (other.name, column)
        for other in metadata.sorted_tables
        for column in NAMED[table]
        if column in other.columns and other.name not in (table, f"{table}_attributes")
    ]
    return sorted(
        columns,
        key=lambda pair: (pair[0] not in _FIRST, pair[0] in partitions.PARTITIONED, pair[0]),
    )


def expire_names(database: Database, before_ms: int, stopping: Callable[[], bool]) -> int:
    """Delete accelerators and workloads last named before an instant that nothing refers to; return
    how many.
    """
    deleted = 0
    for table in NAMED:
        with database.connect() as connection:
            deleted += forget_unused(connection, table, before_ms, stopping)
    return deleted


def forget_unused(
    connection: Connection,
    table: str,
    before_ms: int,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Delete names of this table last seen before an instant that nothing refers to; return how
    many.

    `connection` is in autocommit. Raises psycopg.errors.SerializationFailure when one is seen
    meanwhile.
    """
    try:
        # The lock precedes the snapshot, which shows all finished imports, and no import runs until
        # the end.
        with locks.snapshot(connection, Lock.IMPORTS):
            return _forget(connection, table, before_ms, stopping)
    except _Stopping:
        return 0


def _forget(
    connection: Connection, table: str, before_ms: int, stopping: Callable[[], bool]
) -> int:
    names = {"table": sql.Identifier(table)}
    with connection.transaction():
        connection.execute("CREATE TEMP TABLE candidate (id bigint PRIMARY KEY) ON COMMIT DROP")
        # Without an instant the time starts now.
        connection.execute(
            sql.SQL(
                "UPDATE {table} SET last_seen_at = now() WHERE id = ANY(ARRAY("
                "SELECT id FROM {table} WHERE last_seen_at IS NULL LIMIT %s))"
            ).format(**names),
            (CANDIDATES,),
        )
        looked_at = connection.execute(
            sql.SQL(
                "INSERT INTO candidate SELECT id FROM {table} WHERE last_seen_at < %s ORDER BY"
                " last_seen_at LIMIT %s"
            ).format(**names),
            (to_datetime(before_ms), CANDIDATES),
        ).rowcount
        if not looked_at:
            return 0
        # Remembered before candidates are dropped: all that were examined count as seen now, so
        # that the next run examines others.
        examined = _candidates(connection)
        connection.execute("CREATE TEMP TABLE referred (id bigint) ON COMMIT DROP")
        for statement in _statements(connection, table):
            if stopping():
                raise _Stopping
            # In two steps: Citus deletes nothing from a temporary table by a join to a distributed
            # one.
            connection.execute(statement)
            connection.execute("DELETE FROM candidate c USING referred r WHERE c.id = r.id")
            connection.execute("TRUNCATE referred")
            # Nothing is left to delete: the remaining tables need not be read.
            if connection.execute("SELECT FROM candidate LIMIT 1").fetchone() is None:
                break
        # By arrays: Citus deletes nothing from a replicated table by a join to a temporary one.
        unused = _candidates(connection)
        connection.execute(
            sql.SQL("DELETE FROM {attributes} WHERE {key} = ANY(%s)").format(
                attributes=sql.Identifier(f"{table}_attributes"), key=sql.Identifier(f"{table}_id")
            ),
            (unused,),
        )
        deleted = connection.execute(
            sql.SQL("DELETE FROM {table} WHERE id = ANY(%s)").format(**names), (unused,)
        ).rowcount
        connection.execute(
            sql.SQL("UPDATE {table} SET last_seen_at = now() WHERE id = ANY(%s)").format(**names),
            (examined,),
        )
        return deleted


def _candidates(connection: Connection) -> list[int]:
    return select_values(connection, "SELECT id FROM candidate")


def _statements(connection: Connection, table: str) -> Iterator[sql.Composed]:
    """Yield the statements that collect what a table or partition refers to in `referred`."""
    parts = partitions.listing(connection)
    if table == "workload":
        yield sql.SQL("INSERT INTO referred {}").format(sql.SQL(usage_evidence.WORKLOADS))
    for other, column in references(table):
        is_array = column.endswith("_ids")
        divided = other in partitions.PARTITIONED
        # Partition by partition, so that reading ends as soon as no candidate is left.
        for place in [part.name for part in parts if part.table == other] if divided else [other]:
            value = sql.SQL("unnest({column})" if is_array else "{column}").format(
                column=sql.Identifier(column)
            )
            yield sql.SQL("INSERT INTO referred SELECT DISTINCT {value} FROM {place}").format(
                value=value, place=sql.Identifier(place)
            )

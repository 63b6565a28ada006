"""Retention of minutes and findings: what is too much to keep for ever and too fine to need.

Each accelerator is a statement and a transaction of its own: one key range, which Citus finds on
one worker, and which blocks nobody. Postgres uses the space again; the files do not shrink.
`stopping` is asked between two of them: True leaves the rest to the next run.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_value, select_values

FINDINGS = 10_000
"""Findings deleted in one transaction."""
KEEP_MS = 400 * DAY_MS
"""How long refused batches and scored forecasts stay."""
_MINUTES = "DELETE FROM gpu_minute WHERE accelerator_id = %(id)s AND minute_ms < %(before)s"
# An array of ids with a limit: DELETE has no LIMIT of its own.
_FINDINGS = """
DELETE FROM finding WHERE id = ANY(ARRAY(
    SELECT id FROM finding WHERE resolved_ms < %(before)s AND until_ms < %(before)s LIMIT %(most)s))
"""


def expire_minutes(database: Database, before_ms: int, stopping: Callable[[], bool]) -> int:
    """Delete minutes before an instant; return how many.

    No minutes are made for that time again, whatever comes late.

    The bound never moves back: a longer retention does not restore what was deleted.
    """
    with database.transaction() as connection:
        # Folding holds this lock until its minutes are committed; once it is ours, every later fold
        # sees the bound.
        locks.take(connection, Lock.LEDGER)
        bound_ms: int = select_value(
            connection,
            "INSERT INTO retention_boundary AS old (name, before_ms) VALUES ('gpu_minute', %s) ON"
            " CONFLICT (name) DO UPDATE SET before_ms = greatest(old.before_ms, excluded.before_ms)"
            " RETURNING before_ms",
            (before_ms,),
        )
    deleted = 0
    with database.connect() as connection:
        for accelerator_id in select_values(connection, "SELECT id FROM accelerator ORDER BY id"):
            if stopping():
                break
            deleted += connection.execute(
                _MINUTES, {"id": accelerator_id, "before": bound_ms}
            ).rowcount
    return deleted


def expire_findings(database: Database, before_ms: int, stopping: Callable[[], bool]) -> int:
    """Delete findings that ended before an instant, some at a time; return how many."""
    deleted = 0
    with database.connect() as connection:
        while not stopping():
            count = connection.execute(_FINDINGS, {"before": before_ms, "most": FINDINGS}).rowcount
            deleted += count
            if count < FINDINGS:
                break
    return deleted


def expire_records(connection: Connection, now_ms: int) -> None:
    """Delete refused batches, and forecasts with their scores, that are older than KEEP_MS."""
    before = {"before": now_ms - KEEP_MS}
    connection.execute(
        "DELETE FROM ingest_conflict WHERE received_at < to_timestamp(%(before)s / 1000.0)", before
    )
    connection.execute("DELETE FROM backtest WHERE origin_ms < %(before)s", before)
    for table in ("budget_forecast", "owner_forecast"):
        connection.execute(f"DELETE FROM {table} WHERE made_ms < %(before)s", before)

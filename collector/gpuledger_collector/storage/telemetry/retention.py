"""Retention in Postgres of what is too much to keep for ever and too fine to need: minutes, slow metrics, findings.

An accelerator is a statement and a transaction of its own: one key range, which Citus finds on one worker, and what
holds nobody off. The space is used again by what comes; the files do not get smaller.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.ledger import unused_names as names
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry.node_utilization import NodeUtilizationStore

Connection = psycopg.Connection[tuple[Any, ...]]
FINDINGS = 10_000
KEEP_MS = 400 * DAY_MS
"""How long records stay that nobody looks at any more."""
_MINUTES = "DELETE FROM gpu_minute WHERE accelerator_id = %(id)s AND minute_ms < %(before)s"
_STATES = """
DELETE FROM gpu_state s USING (
    SELECT accelerator_id, metric, max(at_ms) AS holds_ms FROM gpu_state
    WHERE accelerator_id = %(id)s AND at_ms < %(before)s GROUP BY accelerator_id, metric
) k WHERE s.accelerator_id = %(id)s AND s.accelerator_id = k.accelerator_id AND s.metric = k.metric
    AND s.at_ms < k.holds_ms
"""
_FINDINGS = """
DELETE FROM finding WHERE id = ANY(ARRAY(
    SELECT id FROM finding WHERE resolved_ms < %(before)s AND until_ms < %(before)s LIMIT %(most)s))
"""


@dataclass(frozen=True)
class RetentionStore:
    """What the job asks of Postgres (jobs.expired.RetentionStore). True from `gives_way` leaves the rest to the next
    run.
    """

    dsn: str
    gives_way: Callable[[], bool] = lambda: False

    def days_without_node_utilization(self, since_ms: int, now_ms: int) -> list[int]:
        """Days since an instant whose heat was never made as a whole, or not since they ended."""
        return NodeUtilizationStore(self.dsn).days_to_make(since_ms, now_ms)

    def forget_minutes(self, before_ms: int) -> int:
        """Remove minutes of before an instant; how many. None is made again for them, whatever comes late.

        The bound never goes back: what is gone stays unknown when a longer time is set.
        """
        with open_connection(self.dsn) as connection:
            # A fold that does not know the bound yet holds this lock until its minutes are there to be removed.
            locks.take(connection, Lock.LEDGER)
            row = connection.execute(
                "INSERT INTO expired AS old (name, before_ms) VALUES ('gpu_minute', %s) ON CONFLICT (name) DO UPDATE "
                "SET before_ms = greatest(old.before_ms, excluded.before_ms) RETURNING before_ms",
                (before_ms,),
            ).fetchone()
        assert row is not None
        return sum(self._by_accelerator(_MINUTES, int(row[0])))

    def forget_states(self, before_ms: int) -> int:
        """Remove changes of slow metrics before an instant, but for the last of each; how many."""
        return sum(self._by_accelerator(_STATES, before_ms))

    def forget_findings(self, before_ms: int) -> int:
        """Remove findings that ended before an instant, some at a time; how many."""
        gone = 0
        with open_connection(self.dsn, autocommit=True) as connection:
            while not self.gives_way():
                some = connection.execute(_FINDINGS, {"before": before_ms, "most": FINDINGS}).rowcount
                gone += some
                if some < FINDINGS:
                    break
        return gone

    def forget_names(self, before_ms: int) -> int:
        """Remove accelerators and workloads that were last named before an instant and that nothing refers to."""
        gone = 0
        for table in names.NAMED:
            with open_connection(self.dsn, autocommit=True) as connection:
                before = dt.datetime.fromtimestamp(before_ms / 1000, dt.UTC)
                gone += names.forget_unused(connection, table, before, self.gives_way)
        return gone

    def _by_accelerator(self, statement: str, before_ms: int) -> Iterator[int]:
        with open_connection(self.dsn, autocommit=True) as connection:
            ids = [row[0] for row in connection.execute("SELECT id FROM accelerator ORDER BY id")]
            for number in ids:
                if self.gives_way():
                    return
                yield connection.execute(statement.encode(), {"id": number, "before": before_ms}).rowcount


def forget_old(connection: Connection, now_ms: int) -> None:
    """Let refused batches go, and forecasts with what came of them, that are older than KEEP_MS."""
    before = {"before": now_ms - KEEP_MS}
    connection.execute("DELETE FROM ingest_conflict WHERE received_at < to_timestamp(%(before)s / 1000.0)", before)
    connection.execute("DELETE FROM backtest WHERE origin_ms < %(before)s", before)

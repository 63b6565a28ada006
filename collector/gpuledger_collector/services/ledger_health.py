"""What is most likely wrong with a ledger: its agents, jobs and declarations over the last days, and
the protection of its database.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.export import proof
from gpuledger_collector.insight.ledger_health import Examination
from gpuledger_collector.insight.nodes import SILENT_MS
from gpuledger_collector.services.inference_costs import read_days
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.scheduler_queues import examine_queues
from gpuledger_collector.storage import distribution, row_level_security
from gpuledger_collector.storage.access import readers
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.health import read_declarations, read_health
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.server import schema_rights

DAYS = 7


def worker_problem(database: Database) -> str | None:
    """Which worker of a Citus cluster does not answer; without it no evidence can be read."""
    with database.connect() as connection:
        return distribution.worker_problem(connection)


def examine_ledger(database: Database, clock_ms: Callable[[], int]) -> Examination:
    """Look for what is most likely wrong. Changes nothing."""
    now_ms = clock_ms()
    since_ms = now_ms - DAYS * DAY_MS
    with database.transaction() as connection:
        health = read_health(connection, now_ms, since_ms, SILENT_MS)
        # Read again: the clocks of collector and database are compared.
        declared_ms = clock_ms()
        is_protected = row_level_security.is_enabled(connection)
        return Examination(
            server_version=connection.info.parameter_status("server_version") or "",
            health=health,
            declared=read_declarations(connection, declared_ms, declared_ms - DAYS * DAY_MS),
            declared_ms=declared_ms,
            viewers_remedy="" if is_protected else row_level_security.advice(connection),
            unfiltered=tuple(sorted(row_level_security.unfiltered_tables(connection))),
            unlimited_readers=tuple(readers.not_held(connection)),
            broken_proofs=_broken_proofs(connection, Period(since_ms, now_ms)),
            missing_grant=schema_rights.missing(connection),
            unmatched_tokens=_unmatched_tokens(connection, since_ms, now_ms),
            queues=examine_queues(connection, now_ms, DAYS),
        )


def _unmatched_tokens(connection: Connection, since_ms: int, now_ms: int) -> tuple[str, ...]:
    """Tokens, workloads and tenants of shared model servers that move nothing."""
    try:
        calendar = zones.calendar(connection)
        period = Period(calendar.day_of(since_ms).start_ms, calendar.day_of(now_ms).end_ms)
        return tuple(read_days(connection, period).notes)
    except ValueError:  # as below
        return ()


def _broken_proofs(connection: Connection, period: Period) -> tuple[str, ...]:
    """What is stated twice and differently; nothing where the days of the ledger have no bounds."""
    try:
        return tuple(proof.failures(reconcile(connection, period, anew=False)))
    except ValueError:  # a billing zone that this machine does not know has a finding of its own
        return ()

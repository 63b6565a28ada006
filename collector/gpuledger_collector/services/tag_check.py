"""Check which tags and rules attribute the usage of a period, and what is unattributed."""

from __future__ import annotations

from gpuledger_collector.accounting.attribution import Attribution
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.tag_check import TagCheck, match_usage
from gpuledger_collector.storage.billing import reports
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Lock


def check_tags(database: Database, period: Period, level: str) -> TagCheck:
    """Match what was held in a period, while nobody rates it."""
    with database.transaction(Lock.LEDGER) as connection:
        held = reports.held_by_workloads(connection, period)
        known = workloads.facts(connection, sorted({usage.workload_id for usage in held}))
        return match_usage(held, known, Attribution(rules.current(connection)), level)

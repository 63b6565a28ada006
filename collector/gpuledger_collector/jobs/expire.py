"""Delete minutes, slow metrics, findings and names that are older than the settings keep them.

Minutes expire by whole days, and only when the node utilization of every day before was computed
from them. The bound is stored before the first minute is deleted: from then on no minutes are
computed before it, so that late evidence leaves no day with only a few of its minutes. The last
value of a slow metric before the bound stays, since it still holds. A run that stopped anywhere is
completed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, day_of
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import unused_names
from gpuledger_collector.storage.telemetry import node_utilization, retention
from gpuledger_common.plurals import plural


@dataclass(frozen=True, slots=True)
class RetentionDays:
    """How many days each kind of record is kept; 0: for ever."""

    minutes: int = 0
    node_utilization: int = 0
    states: int = 0
    findings: int = 0
    names: int = 0


@dataclass(frozen=True, slots=True)
class Expired:
    """How many records of each kind a run deleted."""

    minutes: int = 0
    states: int = 0
    findings: int = 0
    names: int = 0

    def __str__(self) -> str:
        return (
            f"{plural(self.minutes, 'minute')}, {plural(self.states, 'change')} of slow metrics, "
            f"{plural(self.findings, 'finding')} and {plural(self.names, 'unused name')} deleted"
        )


def expire(
    database: Database,
    keep: RetentionDays,
    now_ms: int,
    stopping: Callable[[], bool] = lambda: False,
) -> Expired:
    """Delete what is older than its retention, counted from the start of today (UTC)."""
    today_ms = day_of(now_ms).start_ms

    def bound(days: int) -> int:
        return today_ms - days * DAY_MS

    minutes = states = findings = names = 0
    if keep.minutes:
        since_ms = bound(keep.node_utilization) if keep.node_utilization else 0
        with database.connect() as connection:
            # Node utilization of these days is still to be computed: nothing from the earliest of
            # them on is deleted.
            needed = node_utilization.days_to_recompute(connection, since_ms, now_ms)
        minutes = retention.expire_minutes(
            database, min(bound(keep.minutes), *needed, today_ms), stopping
        )
    if keep.states:
        states = retention.expire_states(database, bound(keep.states), stopping)
    if keep.findings:
        findings = retention.expire_findings(database, bound(keep.findings), stopping)
    if keep.names:
        names = unused_names.expire_names(database, bound(keep.names), stopping)
    return Expired(minutes, states, findings, names)

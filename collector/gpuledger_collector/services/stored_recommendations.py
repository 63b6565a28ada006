"""Whether the recommendations of the last run are still what a new run would give, so that they can
be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger_collector import __version__
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage.findings import findings, recommendations
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

if TYPE_CHECKING:
    from gpuledger_collector.insight.recommendations.energy import Tariff

WINDOW_DAYS, DEMAND_DAYS = 28, 90
"""Days whose usage recommendations are about, and days of demand that buying is advised from."""


def evidence_hash(connection: Connection, end_ms: int, tariff: Tariff | None) -> str:
    """Hash what the recommendations of a window that ends there rest on: evidence, declarations,
    decisions, version.
    """
    return recommendations.evidence_hash(
        connection, end_ms - DEMAND_DAYS * DAY_MS, end_ms, f"{__version__} {tariff}"
    )


def still_hold(connection: Connection, now_ms: int, max_age_ms: int, tariff: Tariff | None) -> bool:
    """Whether the last run is younger than `max_age_ms`, of this day, and nothing that it rests on
    has changed.

    Usage must be folded and rated before. Realized savings are measured by whole days, so a run of
    yesterday is old.
    """
    run = recommendations.last_run(connection)
    if run is None or not run["made_ms"] <= now_ms < run["made_ms"] + max_age_ms:
        return False
    calendar = zones.calendar(connection)
    return (
        calendar.day_of(now_ms) == calendar.day_of(run["made_ms"])
        and findings.late_evidence(connection, "idle") is None
        and evidence_hash(connection, run["end_ms"], tariff) == run["evidence_hash"]
    )

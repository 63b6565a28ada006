"""What to do about waste: the recommendations that a reader may see, decisions on them, and whether
those of the last search are still what a new one would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuledger_collector import __version__
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.insight.recommendation_record import (
    RecommendationRun,
    StoredRecommendation,
)
from gpuledger_collector.services.findings import Viewer
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.access.audit import person
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import late_evidence, recommendations
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

if TYPE_CHECKING:
    from gpuledger_collector.insight.recommendations.energy import Tariff

WINDOW_DAYS, DEMAND_DAYS = 28, 90
"""Days whose usage recommendations are about, and days of demand that buying is advised from."""


@dataclass(frozen=True, slots=True)
class RecommendationList:
    """Recommendations, those that save most first, and the search that they come from; None: none
    ran yet.
    """

    items: Sequence[StoredRecommendation]
    run: RecommendationRun | None


class LaterRun(Exception):
    """Recommendations were made for a later instant already."""

    def __init__(self, end_ms: int) -> None:
        super().__init__(end_ms)
        self.end_ms = end_ms


def list_recommendations(
    connection: Connection, states: Sequence[str], viewer: Viewer
) -> RecommendationList:
    """List what is recommended in these states, read with the rights of a viewer.

    What all of it saves together and what could not be judged concern the entire fleet: one
    owner's viewer is told neither.
    """
    with as_viewer(connection, viewer.owner):
        items = [
            item
            for item in recommendations.list_stored(connection, states)
            if viewer.sees(item.owner, item.team)
        ]
    run = recommendations.last_run(connection)
    if run is not None and viewer.owner is not None:
        run = replace(run, joint={}, not_evaluated=())
    return RecommendationList(items, run)


def decide_recommendation(
    database: Database, number: int, state: str, reason: str, at_ms: int, *, dry_run: bool = False
) -> str | None:
    """Accept or reject an open recommendation under the name of whoever runs this; return the state
    it had before, None when it does not exist.
    """
    with database.transaction(dry_run=dry_run) as connection:
        return recommendations.decide(connection, number, state, person(), reason, at_ms)


def refresh_recommendations(
    database: Database, now_ms: int, max_age_ms: int, tariff: Tariff | None, *, fresh: bool
) -> None:
    """Bring recommendations up to date with everything that has arrived; a read replica has the last
    ones.

    `fresh` makes them again also where the last ones still hold. Raises LaterRun.
    """
    if database.standby:
        return
    with database.transaction() as connection:
        before = recommendations.last_run(connection)
    if before is not None and now_ms < before.end_ms:
        raise LaterRun(before.end_ms)
    refresh(database, Period(now_ms - (WINDOW_DAYS + 1) * DAY_MS, now_ms), now_ms)
    if not fresh:
        with database.transaction(read_only=True) as connection:
            if still_hold(connection, now_ms, max_age_ms, tariff):
                return
    # Here, because they take longer to import than the stored recommendations to be read.
    from gpuledger_collector.services.idle_search import find_idle
    from gpuledger_collector.services.recommendation_search import recommend

    find_idle(database, now_ms)
    recommend(database, now_ms, tariff)


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
    if run is None or not run.made_ms <= now_ms < run.made_ms + max_age_ms:
        return False
    calendar = zones.calendar(connection)
    return (
        calendar.day_of(now_ms) == calendar.day_of(run.made_ms)
        and late_evidence.first_hour(connection) is None
        and evidence_hash(connection, run.end_ms, tariff) == run.evidence_hash
    )

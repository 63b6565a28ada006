"""Recommend savings: propose changes from the evidence of the last weeks, price them, and measure
accepted ones.

A second run writes the same: a recommendation is identified by its kind and subject. Decisions of
people stay; open recommendations whose evidence is gone expire; the saving of accepted ones is
measured by the ledger.
"""

from __future__ import annotations

from gpuledger_collector.insight.recommendation_record import RecommendationRun
from gpuledger_collector.insight.recommendations import propose
from gpuledger_collector.insight.recommendations.energy import Tariff
from gpuledger_collector.services.realized_savings import measure_savings
from gpuledger_collector.services.recommendation_pricing import PricedProposals
from gpuledger_collector.services.recommendation_window import ObservedWindow
from gpuledger_collector.services.recommendations import evidence_hash
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import recommendations
from gpuledger_collector.storage.locks import Lock


def recommend(database: Database, now_ms: int, tariff: Tariff | None = None) -> int:
    """Write the recommendations of the weeks up to now; return how many there are."""
    with database.transaction(Lock.RECOMMENDATIONS) as connection:
        recommendations.update_realized(connection, measure_savings(connection, now_ms))
        observed = ObservedWindow(connection, now_ms)
        if observed.window is None:
            return 0
        proposals, gaps = propose(observed.window)
        decided = recommendations.decided_keys(connection, now_ms)
        priced = PricedProposals(
            observed, [each for each in proposals if each.key not in decided], tariff
        ).without_losses()
        worthwhile = priced.recommendations()
        run = RecommendationRun(
            now_ms,
            observed.period.start_ms,
            observed.period.end_ms,
            priced.joint(),
            [{"kind": gap.kind, "subject": gap.subject, "reason": gap.reason} for gap in gaps],
            evidence_hash(connection, observed.period.end_ms, tariff),
        )
        recommendations.upsert(connection, worthwhile, run)
        return len(worthwhile)

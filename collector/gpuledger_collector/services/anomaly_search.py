"""Find anomalous spending: a finding for each episode, with its team, start, cause and cost.

Each team's hours are priced three times: at the first rates, which isolates usage and is what the
detector sees; at the rates in force; and at those of three days before, which shows from the price
book alone how much dearer the same usage has become. The cost of an episode is exact: what its
hours cost, less what the same hours cost a week (or days) before, split into price, volume and mix.
The cause comes from the runs themselves (insight.anomalies.causes); a storm of short runs is found
from them alone, however little it costs, as an episode with the state `storm`. An hour without
evidence is unknown: neither a saving nor an anomaly.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.insight.anomalies import detect
from gpuledger_collector.insight.anomalies.spending_findings import BY_MINUTES, KIND, judge_team
from gpuledger_collector.insight.anomalies.team_spending import (
    COMPARED_MS,
    TeamSpending,
    spending_by_team,
)
from gpuledger_collector.insight.findings import Finding, WorkloadUsage
from gpuledger_collector.services.rating import Owners
from gpuledger_collector.storage.billing import prices
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minutes

HISTORY_DAYS = 42
"""Days of spending that are read; all but the first three of them are judged."""
SETTLED_DAYS = 15
"""Findings that began within the first days of the history stay as they are: their context is no
longer read.
"""


def find_anomalies(database: Database, now_ms: int) -> int:
    """Judge every team's hours; return how many episodes there are.

    A read replica leaves it to the primary.
    """
    if database.standby:
        return 0
    end_ms = now_ms // HOUR_MS * HOUR_MS
    period = Period(end_ms - HISTORY_DAYS * DAY_MS, end_ms)
    with database.transaction(Lock.FINDINGS) as connection:
        usage = minutes.hourly_use(connection, period.start_ms, period.end_ms)
        if not usage:
            return 0
        coverage = minutes.coverage(connection, period.start_ms, period.end_ms)
        known = findings.overlapping(connection, KIND, period.start_ms, period.end_ms)
        current: dict[str, Finding] = {}
        for team in team_spending(connection, usage):
            detection = detect(*team.hourly(end_ms, coverage))
            current |= {each.key: each for each in judge_team(team, detection, known, period)}
        # Findings of the settled days are kept, and so are those from minutes that no hour has
        # confirmed yet.
        vanished = [
            finding.key
            for finding in known
            if finding.key not in current
            and finding.since_ms >= period.start_ms + SETTLED_DAYS * DAY_MS
            and BY_MINUTES not in finding.evidence
        ]
        findings.drop(connection, vanished)
        findings.set_progress(connection, KIND, end_ms)
        return findings.upsert(connection, current.values())


def team_spending(connection: Connection, usage: Sequence[WorkloadUsage]) -> list[TeamSpending]:
    """What each team spent, by currency, at the prices and by the rules in force."""
    facts = workloads.facts(connection, sorted({use.workload_id for use in usage}))
    owners = Owners(rules.current(connection), facts)

    def team_of(use: WorkloadUsage) -> str:
        at = owners.owners_at(use.pool, use.node)
        return at(use.workload_id, use.rating_interval_ms, None).team

    starts = [use.rating_interval_ms for use in usage]
    period = Period(min(starts) - COMPARED_MS, max(starts) + HOUR_MS) if starts else None
    return spending_by_team(usage, prices.price_book(connection, period), facts, team_of)

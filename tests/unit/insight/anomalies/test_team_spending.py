"""What a team spent by the hour: at the first rates, and the part of long-running workloads."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.insight.anomalies.detector import detect
from gpuledger_collector.insight.anomalies.spending_findings import BY_LONG_RUNNING, judge_team
from gpuledger_collector.insight.anomalies.team_spending import spending_by_team
from gpuledger_collector.insight.findings import WorkloadUsage

HOURS = 30


def use(hour: int, workload: int, gpus: int) -> WorkloadUsage:
    return WorkloadUsage(hour * HOUR_MS, workload, "pool", "H100", "n1", gpus * HOUR_MS * 1_000_000)


def test_what_has_run_for_twelve_hours_is_told_apart():
    """From its thirteenth hour on, at the first rate; before that no age is known."""
    book = PriceBook(
        [
            Price(None, "", "H100", "on_demand", Decimal(rate), "USD", since)
            for rate, since in (("2", -10 * DAY_MS), ("3", 20 * HOUR_MS))
        ]
    )
    usage = [use(hour, 1, 1) for hour in range(HOURS)]
    usage += [use(hour, 2, 4) for hour in range(5, HOURS)]
    facts = {key: WorkloadFacts(key, "slurm", None, None, "job", {}) for key in (1, 2)}
    (team,) = spending_by_team(usage, book, facts, lambda _: "vision")
    coverage = {("pool", hour * HOUR_MS): 1.0 for hour in range(HOURS)}
    spending = team.hourly(HOURS * HOUR_MS, coverage)
    micro = spending.series.values[0] / 2
    assert np.isnan(spending.long_running[:12]).all()
    assert (spending.long_running[12:17] == 2 * micro).all()
    assert (spending.long_running[17:] == 10 * micro).all()
    assert (spending.series.values[5:] == 10 * micro).all()
    assert spending.price.tolist() == [False] * 20 + [True] * 10


def test_a_finding_says_where_it_shows():
    """A job of a team in bursts that goes on is found by what has run for long, and the sentence
    says so; the same job of a calm team shows in its total.
    """
    hours = 24 * 24
    bursts = np.random.default_rng(3).pareto(2.0, hours)
    for is_calm, said in ((False, True), (True, False)):
        usage = []
        for hour in range(hours):
            usage.append(use(hour, 1, 10))
            short = 30 if is_calm else 1 + round(30 * float(bursts[hour]))
            usage.append(use(hour, 100 + hour, short))
            if hour >= 500:
                usage.append(use(hour, 2, 25))
        facts = {
            key: WorkloadFacts(key, "slurm", None, None, f"job-{key % 100}", {})
            for key in {each.workload_id for each in usage}
        }
        book = PriceBook([Price(None, "", "H100", "on_demand", Decimal(2), "USD", -10 * DAY_MS)])
        (team,) = spending_by_team(usage, book, facts, lambda _: "vision")
        coverage = {("pool", hour * HOUR_MS): 1.0 for hour in range(hours)}
        spending = team.hourly(hours * HOUR_MS, coverage)
        findings = judge_team(team, detect(*spending), [], Period(0, hours * HOUR_MS))
        seen = [
            finding.evidence.get(BY_LONG_RUNNING, False)
            for finding in findings
            if finding.until_ms > 500 * HOUR_MS and finding.state != "storm"
        ]
        assert seen
        assert any(seen) == said

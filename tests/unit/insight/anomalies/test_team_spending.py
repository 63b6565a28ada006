"""What a team spent by the hour: at the first rates, and the part of long-running workloads."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price, PriceBook
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

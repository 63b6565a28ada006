"""What teams spent, as the search for unusual spending judges it: each hour at the first rates, at
the rates in force and at those of three days before, and the runs behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.budgets import HolderSpend
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.insight.anomalies.causes import WorkloadRun
from gpuledger_collector.insight.anomalies.detector import LONG_RUNNING_HOURS, PRICE_RISE
from gpuledger_collector.insight.findings import WorkloadUsage
from gpuledger_collector.insight.series import Flags, Floats, Series

MIN_COVERAGE = 0.9


@dataclass(frozen=True, slots=True)
class PricedUsage:
    """One workload's usage in a rating interval with its exact cost, and its cost at the first
    rates.
    """

    usage: WorkloadUsage
    label: tuple[str, ...]
    cost_micro: int
    at_first_rates: float
    before_micro: int
    """At the rates of three days before."""
    rate: str

    def to_holder_spend(self) -> HolderSpend:
        """The usage as the comparison of two periods takes it."""
        return HolderSpend(self.label, self.usage.gpu_model, self.usage.gpu_ns, self.cost_micro)


class HourlySpending(NamedTuple):
    """What a team spent in each hour at the first rates, NaN without enough evidence; the hours in
    which rates have risen; and the part that long-running workloads made of each hour.
    """

    series: Series
    price: Flags
    long_running: Floats


@dataclass
class TeamSpending:
    """What one team spent in one currency."""

    name: str
    currency: str
    usage: list[PricedUsage] = field(default_factory=list)
    runs: list[WorkloadRun] = field(default_factory=list)
    """By start; filled once all of `usage` is known."""
    pools: set[str] = field(default_factory=set)
    first_rates: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By pool, model and node: the rate at which the series is judged."""

    @property
    def label(self) -> str:
        """The team as people read it."""
        return self.name or "(unattributed)"

    def hourly(self, end_ms: int, coverage: Mapping[tuple[str, int], float]) -> HourlySpending:
        """What the team spent by the hour, as `detect` judges it."""
        first_ms = self._first_uses()
        start_ms = min(first_ms.values()) // HOUR_MS * HOUR_MS
        hours = (end_ms - start_ms) // HOUR_MS
        first, actual, before, long_running = (np.zeros(hours) for _ in range(4))
        for priced in self.usage:
            use = priced.usage
            hour = (use.rating_interval_ms - start_ms) // HOUR_MS
            first[hour] += priced.at_first_rates
            actual[hour] += priced.cost_micro
            before[hour] += priced.before_micro
            if use.rating_interval_ms - first_ms[use.workload_id] >= LONG_RUNNING_HOURS * HOUR_MS:
                long_running[hour] += priced.at_first_rates
        # How long the workloads of the first hours had run before is not known.
        long_running[:LONG_RUNNING_HOURS] = np.nan
        # An hour that is seen in part only would look cheap: unknown is better than too low.
        for hour in range(hours):
            if any(
                coverage.get((pool, start_ms + hour * HOUR_MS), 0.0) < MIN_COVERAGE
                for pool in self.pools
            ):
                first[hour] = np.nan
        # A rise of the rate is visible in any hour, also in one with too little evidence to judge
        # usage.
        return HourlySpending(
            Series(self.name, start_ms, HOUR_MS, first), actual > PRICE_RISE * before, long_running
        )

    def _first_uses(self) -> dict[int, int]:
        """When each workload was first seen, unix ms."""
        first_ms: dict[int, int] = {}
        for priced in self.usage:
            use = priced.usage
            known_ms = first_ms.get(use.workload_id, use.rating_interval_ms)
            first_ms[use.workload_id] = min(known_ms, use.rating_interval_ms)
        return first_ms


COMPARED_MS = 3 * DAY_MS
"""A rate is compared with that of so long before."""


def spending_by_team(
    usage: Iterable[WorkloadUsage],
    book: PriceBook,
    facts: Mapping[int, WorkloadFacts],
    team_of: Callable[[WorkloadUsage], str],
) -> list[TeamSpending]:
    """What each team spent, by currency; usage without a price is left out."""
    teams: dict[tuple[str, str], TeamSpending] = {}
    first_prices: dict[tuple[str, str, str], Price] = {}
    last_ms = 0
    for use in usage:
        last_ms = max(last_ms, use.rating_interval_ms)
        price = book.price_at(use.pool, use.gpu_model, use.node, use.rating_interval_ms)
        if price is None:
            continue
        place = use.pool, use.gpu_model, use.node
        # The series is judged at the first rates: a price change must not look like a change of
        # usage.
        first_rate = float(first_prices.setdefault(place, price).rate)
        # Without a rate then, nothing has become dearer.
        earlier = book.price_at(*place, use.rating_interval_ms - COMPARED_MS) or price
        name = team_of(use)
        team = teams.setdefault((name, price.currency), TeamSpending(name, price.currency))
        team.first_rates[place] = first_rate
        team.pools.add(use.pool)
        team.usage.append(
            PricedUsage(
                use,
                (facts[use.workload_id].name or str(use.workload_id),),
                cost_micro(use.gpu_ns, price.rate),
                use.gpu_ns / GPU_NS_PER_HOUR * first_rate,
                cost_micro(use.gpu_ns, earlier.rate),
                f"{price.rate.normalize():f}",
            )
        )
    for team in teams.values():
        team.runs = list_runs(team.usage, last_ms)
    return [teams[key] for key in sorted(teams)]


def list_runs(usage: Iterable[PricedUsage], last_ms: int) -> list[WorkloadRun]:
    """Runs of workloads, by start; those that held up to the end of the last hour are ongoing.

    The ledger says how long a workload held in each rating interval, not from when: a run is
    assumed to fill its first interval to the end and its last from the start, as every run over an
    edge does. Runs of one name within a single rating interval are placed one after the other.
    """
    by_workload: dict[int, list[PricedUsage]] = defaultdict(list)
    for priced in usage:
        by_workload[priced.usage.workload_id].append(priced)
    runs = []
    taken: dict[tuple[str, int], int] = defaultdict(int)
    for workload_id, rows in by_workload.items():
        longest: dict[int, int] = defaultdict(int)
        gpus: dict[int, int] = defaultdict(int)
        for priced in rows:
            at_ms = priced.usage.rating_interval_ms
            longest[at_ms] = max(longest[at_ms], priced.usage.longest_ms)
            gpus[at_ms] += priced.usage.gpu_micro
        name, first, last = rows[0].label[0], min(longest), max(longest)
        start_ms, end_ms = max(first, first + HOUR_MS - longest[first]), last + longest[last]
        if first == last:
            start_ms = first + min(taken[name, first], HOUR_MS - longest[first])
            end_ms = start_ms + longest[first]
            taken[name, first] = end_ms - first
        runs.append(
            WorkloadRun(
                name=name,
                start_ms=start_ms,
                end_ms=end_ms,
                gpu_micro=max(gpus.values()),
                gpu_ns=sum(priced.usage.gpu_ns for priced in rows),
                busy_ms=sum(priced.usage.busy_ms for priced in rows),
                idle_ms=sum(priced.usage.idle_ms for priced in rows),
                cost_micro=sum(priced.cost_micro for priced in rows),
                ongoing=end_ms >= last_ms // HOUR_MS * HOUR_MS + HOUR_MS,
                workload_id=workload_id,
            )
        )
    return sorted(runs, key=lambda run: (run.start_ms, run.name))

"""Warm replicas at the level of their service: how many are held, and how many a week's busiest minutes need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from gpuledger_collector.accounting.attribution import Rule, WorkloadFacts
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price, PriceBook, PurchaseChoice
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.insight.idle.kinds import is_serving
from gpuledger_collector.insight.idle.serving_replicas import (
    DAYS,
    ReplicaAssessment,
    assess_service,
    count_replicas,
    service_name,
)
from gpuledger_collector.insight.idle.states import IDLE_RULES
from gpuledger_collector.services.rating import Owners

Held = Mapping[tuple[int, str, str], tuple[float, Sequence[tuple[int, int, int]]]]


class ServicesUnit(Protocol):
    """One transaction over one snapshot."""

    def prices(self) -> Sequence[Price]:
        """The price book in force."""

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""

    def rules(self) -> Sequence[Rule]:
        """The attribution rules in force."""

    def workloads(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """Facts of these workloads."""

    def holders(self, start_ms: int, end_ms: int) -> Sequence[int]:
        """Workloads that held anything in the period."""

    def replicas(self, start_ms: int, end_ms: int, service_name: Mapping[int, int], busy_above: float) -> Held:
        """By service, pool and model: mean replicas held, and (minute, seen, busy)."""


class Services(Protocol):
    """Where usage is kept."""

    def unit(self) -> AbstractContextManager[ServicesUnit]:
        """A transaction."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service on one kind of accelerator. `per_day_micro`: what a day of its spare replicas costs; None: unknown."""

    name: str
    team: str
    pool: str
    model: str
    verdict: ReplicaAssessment
    currency: str | None
    per_day_micro: int | None


def judge_services(store: Services, now_ms: int) -> list[Service]:
    """Every service of the last seven full days of hours, those that hold most to spare first."""
    end = now_ms // HOUR_MS * HOUR_MS
    start = end - DAYS * DAY_MS
    with store.unit() as unit:
        facts = unit.workloads(unit.holders(start, end))
        serving = {number: one for number, one in facts.items() if is_serving(one.kind, one.name or "", one.tags)}
        owners = Owners(unit.rules(), serving)
        names = {
            number: (service_name(one.name or str(number), one.tags), owners.at("", "")(number, end - 1, None).team)
            for number, one in serving.items()
        }
        known = sorted(set(names.values()))
        if not known:
            return []
        numbers = {number: known.index(name) for number, name in names.items()}
        book = PriceBook(unit.prices(), unit.purchase_choices())
        held = unit.replicas(start, end, numbers, IDLE_RULES.busy_above)
    made = []
    for (number, pool, model), (replicas, rows) in held.items():
        verdict = assess_service(count_replicas(rows, replicas))
        price = book.price_at(pool, model, "", "", end - 1)
        day = None
        if price is not None and verdict.spare is not None:
            day = cost_micro(24 * GPU_NS_PER_HOUR * verdict.spare, price.rate)
        made.append(Service(*known[number], pool, model, verdict, None if price is None else price.currency, day))
    return sorted(made, key=lambda one: (-(one.per_day_micro or 0), -(one.verdict.spare or 0), one.name, one.model))

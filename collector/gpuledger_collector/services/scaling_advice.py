"""What pools should hold: decisions as they are made, recorded and announced, those of the past with
their outcomes, and what a policy would have cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, format_instant
from gpuledger_collector.insight.demand import DEMAND_DAYS
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.insight.pool_backtest import PoolBacktest, backtest_pool
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.insight.scaling.pools import (
    DEFAULT_LEAD_MS,
    ModelHeadroom,
    PoolDemand,
    RecordedDecision,
    ScalingDecision,
    ScalingTerms,
    decide,
    explain_no_decision,
    headroom_of_model,
    judge_decision,
)
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.capacity import scaling
from gpuledger_collector.storage.capacity.demand import capacity_by_model, models_of_pool
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.notifications import outbox
from gpuledger_common.plurals import plural

OUTCOME_DAYS = 28
MIXED = 2
"""From so many models on, a pool has a headroom of each."""
MAX_WAIT_MS = 2 * DAY_MS
"""Demand that is unknown for so long stays unknown: the outcome then says how much of it was known.
"""


class UnknownPool(LookupError):
    """A pool that the ledger does not know; the message says so."""

    def __init__(self, pool: str) -> None:
        super().__init__(f"no pool {pool!r} held GPUs in the last {DEMAND_DAYS} days")


class NoAdvice(Exception):
    """The recent demand of a pool is not known; the message says why."""


def decide_pools(
    connection: Connection,
    now_ms: int,
    pool: str | None = None,
    lead_s: int | None = None,
    default_lead_s: int = 0,
) -> dict[str, ScalingDecision | str]:
    """Decide for every pool, or for one, by its own limits and earlier decisions.

    The lead time is `lead_s`, else the pool's own, else `default_lead_s`. A pool whose recent
    demand is unknown gets a sentence instead. Raises UnknownPool.
    """
    defaults = ScalingTerms("", lead_ms=default_lead_s * 1000 or DEFAULT_LEAD_MS)
    demands = scaling.demand(connection, now_ms, pool)
    if pool is not None and not demands:
        raise UnknownPool(pool)
    declared = scaling.terms(connection)
    decisions: dict[str, ScalingDecision | str] = {}
    for demand in demands:
        terms = declared.get(demand.pool) or replace(defaults, pool=demand.pool)
        if lead_s is not None:
            terms = replace(terms, lead_ms=lead_s * 1000)
        # Read only where a money limit needs it.
        rate = (
            None if terms.money_per_hour is None else scaling.rate(connection, demand.pool, now_ms)
        )
        past = scaling.past(connection, demand.pool, now_ms)
        decisions[demand.pool] = decide(demand, terms, now_ms, rate, past) or explain_no_decision(
            demand
        )
    return decisions


def decide_pool(
    connection: Connection, now_ms: int, pool: str, lead_s: int | None = None
) -> ScalingDecision:
    """Decide for one pool. Raises UnknownPool, NoAdvice."""
    decision = decide_pools(connection, now_ms, pool, lead_s)[pool]
    if isinstance(decision, str):
        raise NoAdvice(decision)
    return decision


def desired_gpus(connection: Connection, now_ms: int, default_lead_s: int) -> Mapping[str, float]:
    """Desired GPUs by pool, without pools whose recent demand is unknown.

    `default_lead_s` is for pools that declare no lead time.
    """
    decisions = decide_pools(connection, now_ms, default_lead_s=default_lead_s)
    return {
        pool: decision.advice.desired_gpus
        for pool, decision in decisions.items()
        if not isinstance(decision, str)
    }


def outcome_gpu_seconds(connection: Connection, now_ms: int) -> Mapping[tuple[str, str], float]:
    """GPU-seconds of the last 28 days by pool and kind, had the decisions been followed."""
    return scaling.sums(connection, now_ms - OUTCOME_DAYS * DAY_MS)


def advise_scaling(
    database: Database, now_ms: int, only: str | None = None
) -> dict[str, ScalingDecision | None]:
    """Decide for every pool (or for one), record and announce it, and judge earlier decisions; None
    for a pool without recent demand.

    A decision is recorded when its inputs or its target have changed. If the pool's mode is `act`,
    a changed target is put into the outbox in the same transaction, under a key that names the
    decision, so it is announced once. Outcomes wait until the demand of their time is known.
    """
    with database.transaction(Lock.SCALING) as connection:
        terms, demand = scaling.terms(connection), scaling.demand(connection, now_ms)
        decisions = {
            each.pool: _decide_and_store(
                connection, each, terms.get(each.pool, ScalingTerms(each.pool)), now_ms
            )
            for each in demand
            if only in {None, each.pool}
        }
        _judge(connection, {each.pool: each.series for each in demand}, now_ms)
    return decisions


def _decide_and_store(
    connection: Connection, demand: PoolDemand, terms: ScalingTerms, now_ms: int
) -> ScalingDecision | None:
    """Decide for a pool; insert the decision, and its message to a webhook, where it changes
    something or its inputs did. Returns the decision either way.
    """
    rate = scaling.rate(connection, terms.pool, now_ms)
    decision = decide(demand, terms, now_ms, rate, scaling.past(connection, terms.pool, now_ms))
    if decision is not None and (
        decision.is_change
        or scaling.last_inputs_hash(connection, terms.pool) != decision.inputs_hash
    ):
        decision_id = scaling.insert(connection, decision)
        if decision.webhook:
            outbox.insert(connection, _message(decision, decision_id))
    return decision


def _message(decision: ScalingDecision, decision_id: int) -> Message:
    """The message to the pool's webhook."""
    advice = decision.advice
    facts: dict[str, object] = {
        "id": decision_id,
        "pool": decision.pool,
        "desired_gpus": advice.desired_gpus,
        "desired_nodes": advice.desired_nodes,
        "before_gpus": decision.before_gpus,
        "demand_gpus": advice.demand_now,
        "as_of": format_instant(advice.as_of_ms),
        "valid_until": format_instant(advice.valid_until_ms),
    }
    subject = f"{decision.pool}: hold {plural(f'{advice.desired_gpus:g}', 'GPU')}"
    content = Content(subject, advice.reason, attachments={"decision.json": json.dumps(facts)})
    at_ms, recipient = decision.made_ms, f"webhook:{decision.webhook}"
    return Message(
        f"scaling:{decision_id}", "scaling", recipient, content, at_ms, at_ms, urgent=True
    )


def _judge(connection: Connection, demand: Mapping[str, Series], now_ms: int) -> None:
    for pending in scaling.pending_outcomes(connection, now_ms):
        series = demand.get(pending.pool)
        if series is None:
            continue
        outcome = judge_decision(
            series, pending.from_ms, pending.until_ms, pending.desired_gpus, pending.reactive_gpus
        )
        is_complete = outcome.known_ms >= pending.until_ms - pending.from_ms
        if is_complete or now_ms - pending.until_ms > MAX_WAIT_MS:
            rate = scaling.rate(connection, pending.pool, pending.from_ms)
            scaling.insert_outcome(connection, pending, outcome, rate, now_ms)


def headroom_by_model(
    connection: Connection, now_ms: int, pool: str, lead_ms: int = DEFAULT_LEAD_MS
) -> list[ModelHeadroom]:
    """The headroom of each model of a pool of several by the hour, the scarcest first; empty of a
    pool of one.
    """
    present = capacity_by_model(connection, now_ms, pool)
    if len(present) < MIXED:
        return []
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - OUTCOME_DAYS * DAY_MS
    demand = {each.name: each for each in models_of_pool(connection, start_ms, end_ms, pool)}
    models = [
        headroom_of_model(name, gpus, demand.get(name), lead_ms, now_ms)
        for name, gpus in sorted(present.items())
    ]
    return sorted(models, key=lambda model: model.scarcity)


@dataclass(frozen=True)
class Pools:
    """Demand and declared terms of the pools at an instant, for trying other terms on them."""

    database: Database
    now_ms: int
    demand: Mapping[str, PoolDemand]
    declared: Mapping[str, ScalingTerms]

    def terms(self, pool: str, lead_ms: int | None, limits: Mapping[str, Any]) -> ScalingTerms:
        """The pool's own terms, with other limits or lead time where they are given."""
        own = self.declared.get(pool, ScalingTerms(pool))
        return replace(own, limits=replace(own.limits, **limits), lead_ms=lead_ms or own.lead_ms)

    def rate(self, pool: str) -> GpuHourRate | None:
        """The pool's rate now."""
        with self.database.connect() as connection:
            return scaling.rate(connection, pool, self.now_ms)

    def models(self, pool: str, lead_ms: int | None) -> list[ModelHeadroom]:
        """The headroom of each model of the pool within its lead time; empty of one model alone."""
        with self.database.connect() as connection:
            return headroom_by_model(
                connection, self.now_ms, pool, self.terms(pool, lead_ms, {}).lead_ms
            )

    def try_decisions(
        self, only: str | None, lead_ms: int | None, limits: Mapping[str, Any]
    ) -> dict[str, ScalingDecision | None]:
        """The decisions under other limits; nothing is recorded, and nobody is notified."""
        return {
            name: decide(demand, self.terms(name, lead_ms, limits), self.now_ms, self.rate(name))
            for name, demand in self.demand.items()
            if only in {None, name}
        }

    def backtest(self, pool: str, lead_ms: int | None, limits: Mapping[str, Any]) -> PoolBacktest:
        """The back-test of a pool's last 28 days."""
        return backtest_pool(
            self.demand[pool].series, self.terms(pool, lead_ms, limits), self.rate(pool)
        )


def refresh_pools(database: Database, now_ms: int) -> Pools:
    """Bring usage up to date, and return the pools that held GPUs in the last weeks."""
    end_ms = now_ms // HOUR_MS * HOUR_MS  # demand is read by full hours
    refresh(database, Period(end_ms - DEMAND_DAYS * DAY_MS, end_ms), now_ms)
    with database.connect() as connection:
        demand = {entry.pool: entry for entry in scaling.demand(connection, now_ms)}
        return Pools(database, now_ms, demand, scaling.terms(connection))


def backtest_as_declared(database: Database, now_ms: int, pool: str) -> PoolBacktest:
    """Back-test a pool under its own terms, with the best reactive settings; takes seconds."""
    with database.connect() as connection:
        demands = scaling.demand(connection, now_ms, pool)
        terms = scaling.terms(connection).get(pool, ScalingTerms(pool))
        rate = scaling.rate(connection, pool, now_ms)
    if not demands:
        return PoolBacktest(terms, None, f"no demand in the last {DEMAND_DAYS} days", rate)
    return backtest_pool(demands[0].series, terms, rate, with_front=True)


def require_known_pool(connection: Connection, pool: str) -> None:
    """Raise UnknownPool for a pool that never had capacity, usage or a forecast."""
    if not scaling.is_known(connection, pool):
        raise UnknownPool(pool)


def list_decisions(
    connection: Connection, pool: str | None, period: Period, most: int
) -> Sequence[RecordedDecision]:
    """Decisions made in a period with their outcomes, newest first, of the newest `most` since it
    began.
    """
    decisions = scaling.history(connection, pool, period.start_ms, most)
    return [decision for decision in decisions if decision.made_ms < period.end_ms]


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool now: its last decision, its declared terms, and the queue that is not read any more,
    in a sentence.
    """

    latest: RecordedDecision | None
    terms: ScalingTerms | None
    silence: str


def pool_state(connection: Connection, now_ms: int, pool: str) -> PoolState:
    """Read how a pool is now."""
    recent = scaling.history(connection, pool, now_ms - OUTCOME_DAYS * DAY_MS, 1)
    terms = scaling.terms(connection).get(pool)
    return PoolState(
        recent[0] if recent else None, terms, scaling.silence(connection, pool, now_ms)
    )

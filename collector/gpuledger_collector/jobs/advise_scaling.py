"""Decide how many GPUs each pool should hold, record it, tell whom it concerns, and judge what was decided before.

A decision is recorded when what it is made from has changed, or what is desired has. Where a pool's mode is `act` a
change of target is put into the outbox in the same transaction, under a key that names the decision: it is told once.
A pool whose demand is not known of late gets no decision. Outcomes wait until the demand of their time is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.insight.scaling.advice import PastTarget
from gpuledger_collector.insight.scaling.pools import (
    DecisionOutcome,
    PendingOutcome,
    PoolDemand,
    ScalingDecision,
    ScalingTerms,
    decide,
    judge_decision,
)
from gpuledger_collector.insight.series import Series
from gpuledger_collector.storage.notifications.messages import Content, Message
from gpuledger_common.plurals import plural

GIVEN_UP_MS = 2 * DAY_MS
"""Demand of a time so long ago that is still not known never will be: the outcome says how much was."""


class ScalingUnit(Protocol):
    """One transaction, alone in deciding."""

    def terms(self) -> Mapping[str, ScalingTerms]:
        """The terms in force by pool."""

    def demand(self, now_ms: int) -> Sequence[PoolDemand]:
        """Demand of every pool."""

    def past(self, pool: str, now_ms: int) -> Sequence[PastTarget]:
        """What was desired of late, oldest first."""

    def rate(self, pool: str, at_ms: int) -> GpuHourRate | None:
        """The pool's rate at an instant."""

    def last_hash(self, pool: str) -> str | None:
        """What the last decision of a pool was made from."""

    def put(self, decision: ScalingDecision, message: Callable[[int], Message | None]) -> int:
        """Write a decision, and the message that tells of it; its number."""

    def unjudged(self, now_ms: int) -> Sequence[PendingOutcome]:
        """Decisions that have served out and have no outcome yet."""

    def put_outcome(
        self, waiting: PendingOutcome, came: DecisionOutcome, rate: GpuHourRate | None, now_ms: int
    ) -> None:
        """Write what came of a decision."""


class Scaling(Protocol):
    """Where decisions are kept."""

    def unit(self) -> AbstractContextManager[ScalingUnit]:
        """A transaction, alone in deciding."""


def advise_scaling(store: Scaling, now_ms: int, only: str | None = None) -> dict[str, ScalingDecision | None]:
    """The decisions of now by pool, None for a pool whose demand is not known of late; `only` names one pool."""
    made: dict[str, ScalingDecision | None] = {}
    with store.unit() as unit:
        terms, demand = unit.terms(), unit.demand(now_ms)
        for one in demand:
            if only in {None, one.pool}:
                made[one.pool] = _decided(unit, one, terms.get(one.pool, ScalingTerms(one.pool)), now_ms)
        _judge(unit, {one.pool: one.series for one in demand}, now_ms)
    return made


def _decided(unit: ScalingUnit, demand: PoolDemand, terms: ScalingTerms, now_ms: int) -> ScalingDecision | None:
    rate = unit.rate(terms.pool, now_ms)
    decision = decide(demand, terms, now_ms, rate, unit.past(terms.pool, now_ms))
    if decision is not None and (decision.changed or unit.last_hash(terms.pool) != decision.inputs_hash):
        unit.put(decision, lambda number: message_of(decision, number))
    return decision


def message_of(decision: ScalingDecision, number: int) -> Message | None:
    """What the pool's webhook is told of a decision; None where nobody is told."""
    if not decision.webhook:
        return None
    advice = decision.advice
    facts: dict[str, object] = {
        "id": number,
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
    return Message(f"scaling:{number}", "scaling", recipient, content, at_ms, at_ms, urgent=True)


def _judge(unit: ScalingUnit, demand: Mapping[str, Series], now_ms: int) -> None:
    for waiting in unit.unjudged(now_ms):
        series = demand.get(waiting.pool)
        if series is None:
            continue
        came = judge_decision(series, waiting.from_ms, waiting.until_ms, waiting.desired_gpus, waiting.reactive_gpus)
        whole = came.known_ms >= waiting.until_ms - waiting.from_ms
        if whole or now_ms - waiting.until_ms > GIVEN_UP_MS:
            unit.put_outcome(waiting, came, unit.rate(waiting.pool, waiting.from_ms), now_ms)

"""Decide how many GPUs each pool should hold, record and announce it, and judge earlier decisions.

A decision is recorded when its inputs or its target have changed. If the pool's mode is `act`, a
changed target is put into the outbox in the same transaction, under a key that names the decision,
so it is announced once. A pool without recent demand gets no decision. Outcomes wait until the
demand of their time is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.insight.scaling.pools import (
    PoolDemand,
    ScalingDecision,
    ScalingTerms,
    decide,
    judge_decision,
)
from gpuledger_collector.insight.series import Series
from gpuledger_collector.storage.capacity import scaling
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.notifications import outbox
from gpuledger_common.plurals import plural

MAX_WAIT_MS = 2 * DAY_MS
"""Demand that is unknown for so long stays unknown: the outcome then says how much of it was known.
"""


def advise_scaling(
    database: Database, now_ms: int, only: str | None = None
) -> dict[str, ScalingDecision | None]:
    """Decide for every pool (or for one); None for a pool without recent demand."""
    with database.transaction(Lock.SCALING) as connection:
        terms, demand = scaling.terms(connection), scaling.demand(connection, now_ms)
        decisions = {
            each.pool: _decide(
                connection, each, terms.get(each.pool, ScalingTerms(each.pool)), now_ms
            )
            for each in demand
            if only in {None, each.pool}
        }
        _judge(connection, {each.pool: each.series for each in demand}, now_ms)
    return decisions


def _decide(
    connection: Connection, demand: PoolDemand, terms: ScalingTerms, now_ms: int
) -> ScalingDecision | None:
    rate = scaling.rate(connection, terms.pool, now_ms)
    decision = decide(demand, terms, now_ms, rate, scaling.past(connection, terms.pool, now_ms))
    if decision is not None and (
        decision.changed or scaling.last_inputs_hash(connection, terms.pool) != decision.inputs_hash
    ):
        decision_id = scaling.put(connection, decision)
        if decision.webhook:
            outbox.put(connection, _message(decision, decision_id))
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
            scaling.put_outcome(connection, pending, outcome, rate, now_ms)

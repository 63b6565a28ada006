"""What pools should hold now, as the API, the pages and the metrics answer it; nothing is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.scaling.pools import (
    DEFAULT_LEAD_MS,
    ScalingDecision,
    ScalingTerms,
    decide,
    explain_no_decision,
)
from gpuledger_collector.storage.capacity import scaling
from gpuledger_collector.storage.locks import Connection

OUTCOME_DAYS = 28


class UnknownPool(LookupError):
    """A pool that the ledger does not know; the message says so."""

    def __init__(self, pool: str) -> None:
        super().__init__(f"no pool {pool!r} held GPUs in the last {scaling.DEMAND_DAYS} days")


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

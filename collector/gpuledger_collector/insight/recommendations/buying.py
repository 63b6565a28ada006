"""The same GPUs purchased otherwise: spot for what can be restarted, reservations for steady
demand.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.counterfactual import PERMILLE, GpuReservation
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.insight.idle.kinds import FALSE, is_interactive
from gpuledger_collector.insight.recommendations.evidence import (
    Holding,
    InsufficientEvidence,
    Window,
    require_days,
    require_observed,
    require_unprotected,
)
from gpuledger_collector.insight.recommendations.proposals import Estimate, Proposal
from gpuledger_collector.insight.recommendations.signature import Signature, holding_proposal
from gpuledger_collector.insight.recommendations.sizing import estimate_moved
from gpuledger_collector.insight.series import Floats
from gpuledger_common.plurals import plural

RESTARTABLE = ("restartable", "preemptible", "checkpoint", "checkpoints")
"""Tags that declare a workload as interruptible."""
INTERRUPTIONS_PER_DAY = (6.0, 1.0, 0.0)
"""Assumed by the low, expected and high estimate; no reading predicts them."""
LOST_HOURS = 0.5 + 1 / 6
"""An interruption costs half of an hourly checkpoint interval and ten minutes of restart."""
MIN_DEMAND_DAYS = 60
"""A reservation is a commitment of months: a shorter history of demand does not justify one."""


@dataclass(frozen=True)
class _SpotCandidate:
    """A batch workload that says it is restartable, or (`tag` None) all those of a pool and model
    that do not say.
    """

    holdings: Sequence[Holding]
    tag: str | None
    price: Price
    spot: Price


def _spot_candidates(window: Window) -> Iterator[tuple[str, _SpotCandidate]]:
    untagged: dict[tuple[str, str], list[Holding]] = defaultdict(list)
    for holding in window.holdings:
        rates = _rates(window, holding.pool, holding.model, None, "spot")
        interactive = is_interactive(holding.kind, holding.name, holding.tags)
        if rates is None or rates[0].purchase != "on_demand" or holding.serving or interactive:
            continue
        tag = next(
            (name for name in RESTARTABLE if holding.tags.get(name, "").lower() not in FALSE), None
        )
        if tag is None:
            untagged[holding.pool, holding.model].append(holding)
        else:
            yield holding.key, _SpotCandidate([holding], tag, *rates)
    for (pool, model), holdings in sorted(untagged.items()):
        rates = _rates(window, pool, model, None, "spot")
        if rates is not None:
            yield f"{pool}/{model}", _SpotCandidate(holdings, None, *rates)


def _rates(
    window: Window, pool: str, model: str, purchase: str | None, cheaper: str
) -> tuple[Price, Price] | None:
    """Rates of two ways to purchase a model at the window's end, if the second is cheaper in the
    same currency.

    `purchase` None: as the price book decides.
    """
    price, rate = (
        window.book.price_at(pool, model, "", window.end_ms - 1, way) for way in (purchase, cheaper)
    )
    if price is None or rate is None or rate.currency != price.currency or rate.rate >= price.rate:
        return None
    return price, rate


def _spot_evidence(window: Window, candidate: _SpotCandidate) -> float:
    """GPU-hours of the workload."""
    hours = sum(holding.held_ms for holding in candidate.holdings) / HOUR_MS
    if candidate.tag is None:
        count = plural(len(candidate.holdings), "workload")
        raise InsufficientEvidence(
            f"no tag {RESTARTABLE[0]} says whether {count} with {hours:.0f} GPU-hours can be"
            " restarted"
        )
    (holding,) = candidate.holdings
    require_unprotected(holding)
    require_observed(
        min(window.accelerators[interval.accelerator_id].seen for interval in holding.usage)
    )
    return hours


def _propose_spot(candidate: _SpotCandidate, hours: float) -> Proposal:
    """E[cost] = spot rate x time x (1 + interruptions per hour x (lost work + restart))."""
    (holding,), price, rate = candidate.holdings, candidate.price, candidate.spot
    return holding_proposal(
        "spot",
        holding,
        f"run {holding.name} on spot: it can be restarted (tag {candidate.tag}), at"
        f" {rate.rate.normalize():f} instead of {price.rate.normalize():f} {rate.currency}",
        [
            estimate_moved(holding, rate, round(PERMILLE * per_day / 24 * LOST_HOURS))
            for per_day in INTERRUPTIONS_PER_DAY
        ],
        {
            "tag": candidate.tag,
            "gpu_hours": round(hours, 2),
            "assumed": {
                "interruptions_a_day": INTERRUPTIONS_PER_DAY,
                "lost_hours_each": LOST_HOURS,
            },
            "guards": "the book's own spot rate of this model; never a flat discount",
        },
    )


spot = Signature("spot", _spot_candidates, _spot_evidence, _propose_spot)


@dataclass(frozen=True)
class _Reservable:
    """A pool and model with its hourly demand, its on-demand rate and a cheaper reserved one."""

    pool: str
    model: str
    demand_ns: Mapping[int, int]
    price: Price
    reserved: Price


def _reservable(window: Window) -> Iterator[tuple[str, _Reservable]]:
    for (pool, model), demand_ns in sorted(window.demand_ns.items()):
        rates = _rates(window, pool, model, "on_demand", "reserved")
        if rates is not None:
            yield f"{pool}/{model}", _Reservable(pool, model, demand_ns, *rates)


def _hourly_gpus(window: Window, subject: _Reservable) -> tuple[float, Floats]:
    """Days of known demand, and GPUs wanted in each of their hours."""
    first_ms = min(subject.demand_ns, default=window.end_ms)
    days = (window.end_ms - first_ms) / DAY_MS
    require_days(days, MIN_DEMAND_DAYS, "of demand ")
    require_observed(window.observed_share(subject.pool, subject.model))
    # Every hour since the first demand, also those without any: an hour without demand still pays
    # for a reservation.
    hours = range(first_ms - first_ms % HOUR_MS, window.end_ms - window.end_ms % HOUR_MS, HOUR_MS)
    return days, np.array([subject.demand_ns.get(hour, 0) for hour in hours], dtype=float) / (
        GPU_MICRO * HOUR_MS
    )


def _propose_reservation(subject: _Reservable, demand: tuple[float, Floats]) -> Proposal | None:
    """The newsvendor optimum over measured demand, with its regret in a walk forward.

    A reserved GPU costs its rate in every hour and saves the on-demand rate in the hours in which
    it is wanted, so the best count is the quantile 1 - reserved rate / on-demand rate of hourly
    demand (break-even utilization).
    """
    days, gpus = demand
    rate = subject.reserved
    break_even = float(rate.rate / subject.price.rate)
    best = newsvendor(gpus, break_even)
    if not best:
        return None
    # Judged on hours that the choice has not seen: chosen and judged on the same ones, every count
    # looks right.
    cut = len(gpus) * 2 // 3
    before, after = gpus[:cut], gpus[cut:]
    regret = cost(after, newsvendor(before, break_even), break_even)
    regret -= cost(after, newsvendor(after, break_even), break_even)
    p5, p50, p95 = (float(np.quantile(gpus, level)) for level in (0.05, 0.5, 0.95))
    # Low: only what was wanted in nearly every hour, so that the reservation is used whatever
    # comes.
    safe = min(best, math.floor(p5))
    low, expected = (
        Estimate(
            reservation=GpuReservation(
                subject.pool, subject.model, count, rate.rate, rate.currency, rate.id
            )
        )
        for count in (safe, best)
    )
    return Proposal(
        kind="reserve",
        subject=f"{subject.pool}/{subject.model}",
        text=(
            f"reserve {best} {subject.model} for pool {subject.pool}: wanted more than"
            f" {break_even:.0%} of the time"
        ),
        low=low,
        expected=expected,
        high=expected,
        scope={"pool": subject.pool, "model": subject.model},
        evidence={
            "break_even": round(break_even, 4),
            "days": round(days, 1),
            "hours": len(gpus),
            "demand_p5": round(p5, 2),
            "demand_p50": round(p50, 2),
            "demand_p95": round(p95, 2),
            "safe": safe,
            "regret_on_demand_hours": round(regret, 2),
            "judged_hours": len(after),
            "guards": (
                "a model ages while it is reserved; regret: chosen on 2/3, judged on the rest"
            ),
        },
    )


reserve = Signature("reserve", _reservable, _hourly_gpus, _propose_reservation)


def newsvendor(gpus: Floats, break_even: float) -> int:
    """Return the count of least cost: the largest that is wanted in at least `break_even` of the
    hours.

    Ties go to the smaller count (critical fractile of the newsvendor problem, Arrow, Harris and
    Marschak 1951).
    """
    # The cost is convex: the first GPU more that saves nothing is the first that none after it
    # makes up for.
    return bisect_left(
        range(math.ceil(float(gpus.max(initial=0.0)))),
        True,
        key=lambda count: cost(gpus, count + 1, break_even) >= cost(gpus, count, break_even) - 1e-9,
    )


def cost(gpus: Floats, count: int, break_even: float) -> float:
    """Return the cost of `count` reserved GPUs and the rest on demand, in on-demand GPU-hours."""
    return float(count * break_even * len(gpus) + np.maximum(gpus - count, 0.0).sum())

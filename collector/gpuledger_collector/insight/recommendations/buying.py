"""The same GPUs bought otherwise: spot for what can be restarted, reservations for what is always wanted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuledger_collector.accounting.counterfactual import PERMILLE, Change, Reservation, dearer
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.insight.idle.kinds import FALSE, is_interactive, is_serving
from gpuledger_collector.insight.recommendations.advice import Estimate, Found, NotEvaluated, Proposal
from gpuledger_collector.insight.recommendations.evidence import MIN_KNOWN, Holding, Window
from gpuledger_collector.insight.series import Floats
from gpuledger_common.plurals import plural

RESTARTABLE = ("restartable", "preemptible", "checkpoint", "checkpoints")
"""Tags that say that a workload can be interrupted."""
INTERRUPTIONS_A_DAY = (6.0, 1.0, 0.0)
"""Assumed for the low, expected and high estimate; no reading tells them beforehand."""
LOST_HOURS = 0.5 + 1 / 6
"""An interruption costs half of an hourly checkpoint interval and ten minutes of starting again."""
DEMAND_DAYS = 60
"""Less demand than this is no ground for a reservation."""


def spot(window: Window) -> Found:
    """Workloads that say that they can be restarted, at the book's own spot rate with what interruptions cost.

    E[cost] = spot rate x time x (1 + interruptions per hour x (lost work + restart)).
    """
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    silent: dict[tuple[str, str], list[Holding]] = defaultdict(list)
    for one in window.holdings:
        price = window.book.price_at(one.pool, one.model, "", "", window.end_ms - 1)
        rate = window.book.price_at(one.pool, one.model, "", "", window.end_ms - 1, "spot")
        batch = not is_serving(one.kind, one.name, one.tags) and not is_interactive(one.kind, one.name, one.tags)
        if price is None or price.purchase != "on_demand" or rate is None or not batch:
            continue
        if rate.currency != price.currency or rate.rate >= price.rate:
            continue
        tag = next((name for name in RESTARTABLE if one.tags.get(name, "").lower() not in FALSE), None)
        if tag is None:
            silent[one.pool, one.model].append(one)
        elif one.protected_by is not None:
            gaps.append(NotEvaluated("spot", one.key, f"its tag {one.protected_by} says that it is to stay"))
        elif (
            min(window.places[rating_interval.accelerator_id].seen for rating_interval in one.rating_intervals)
            < MIN_KNOWN
        ):
            gaps.append(NotEvaluated("spot", one.key, f"less than {MIN_KNOWN:.0%} of the time of its GPUs was seen"))
        else:
            overhead = [round(PERMILLE * a_day / 24 * LOST_HOURS) for a_day in INTERRUPTIONS_A_DAY]
            low, expected, high = (
                Estimate(
                    [
                        Change(a.accelerator_id, one.workload_id, a.at_ms, moved_to=dearer(rate, permille))
                        for a in one.rating_intervals
                    ]
                )
                for permille in overhead
            )
            advice.append(
                Proposal(
                    kind="spot",
                    subject=one.key,
                    text=f"run {one.name} on spot: it can be restarted (tag {tag}), and {rate.rate.normalize():f} "
                    f"{rate.currency} stands against {price.rate.normalize():f}",
                    low=low,
                    expected=expected,
                    high=high,
                    owner=one.owner,
                    scope={"workload_id": one.workload_id},
                    evidence={
                        "tag": tag,
                        "gpu_hours": round(one.held_ms / HOUR_MS, 2),
                        "assumed": {"interruptions_a_day": INTERRUPTIONS_A_DAY, "lost_hours_each": LOST_HOURS},
                        "guards": "the book's own spot rate of this model; never a flat discount",
                    },
                )
            )
    for (pool, model), ones in sorted(silent.items()):
        hours = sum(one.held_ms for one in ones) / HOUR_MS
        reason = f"nothing says whether {plural(len(ones), 'workload')} with {hours:.0f} GPU-hours can be restarted"
        gaps.append(NotEvaluated("spot", f"{pool}/{model}", f"{reason} (tag {RESTARTABLE[0]})"))
    return advice, gaps


def reserve(window: Window) -> Found:
    """How many GPUs to reserve: the newsvendor optimum over measured demand, with its regret in a walk forward.

    A reserved GPU costs its rate in every hour and saves the on-demand rate in those hours in which it is wanted, so
    the best count is the quantile 1 - reserved rate / on-demand rate of hourly demand (the break-even utilisation).
    """
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    for (pool, model), demand in sorted(window.demand_ns.items()):
        price = window.book.price_at(pool, model, "", "", window.end_ms - 1, "on_demand")
        rate = window.book.price_at(pool, model, "", "", window.end_ms - 1, "reserved")
        if price is None or rate is None or rate.currency != price.currency or rate.rate >= price.rate:
            continue
        subject = f"{pool}/{model}"
        first = min(demand, default=window.end_ms)
        days = (window.end_ms - first) / DAY_MS
        if days < DEMAND_DAYS:
            reason = f"{days:.0f} days of demand are known, {DEMAND_DAYS} are needed"
            gaps.append(NotEvaluated("reserve", subject, reason))
            continue
        seen = [place.seen for place in window.places.values() if (place.pool, place.model) == (pool, model)]
        if min(seen, default=0.0) < MIN_KNOWN:
            reason = f"only {min(seen, default=0.0):.1%} of the time of some GPU was seen, {MIN_KNOWN:.0%} is needed"
            gaps.append(NotEvaluated("reserve", subject, reason))
            continue
        hours = range(first - first % HOUR_MS, window.end_ms - window.end_ms % HOUR_MS, HOUR_MS)
        gpus = np.array([demand.get(hour, 0) for hour in hours], dtype=float) / (GPU_MICRO * HOUR_MS)
        break_even = float(rate.rate / price.rate)
        best = newsvendor(gpus, break_even)
        if not best:
            continue
        cut = len(gpus) * 2 // 3
        before, after = gpus[:cut], gpus[cut:]
        regret = cost(after, newsvendor(before, break_even), break_even)
        regret -= cost(after, newsvendor(after, break_even), break_even)
        safe = min(best, math.floor(float(np.quantile(gpus, 0.05))))
        made = {
            count: Estimate(reservation=Reservation(pool, model, count, rate.rate, rate.currency, rate.id))
            for count in {best, safe}
        }
        advice.append(
            Proposal(
                kind="reserve",
                subject=subject,
                text=f"reserve {best} {model} for pool {pool}: wanted more than {break_even:.0%} of the time",
                low=made[safe],
                expected=made[best],
                high=made[best],
                scope={"pool": pool, "model": model},
                evidence={
                    "break_even": round(break_even, 4),
                    "days": round(days, 1),
                    "hours": len(gpus),
                    "demand_p5": round(float(np.quantile(gpus, 0.05)), 2),
                    "demand_p50": round(float(np.quantile(gpus, 0.5)), 2),
                    "demand_p95": round(float(np.quantile(gpus, 0.95)), 2),
                    "safe": safe,
                    "regret_on_demand_hours": round(regret, 2),
                    "judged_hours": len(after),
                    "guards": "a model ages while it is reserved; regret: chosen on 2/3, judged on the rest",
                },
            )
        )
    return advice, gaps


def newsvendor(gpus: Floats, break_even: float) -> int:
    """The count of least cost over hourly demand: the largest that is wanted in at least `break_even` of the hours.

    Ties go to the smaller count (critical fractile of the newsvendor problem, Arrow, Harris and Marschak 1951).
    """
    counts = range(1, math.ceil(float(gpus.max(initial=0.0))) + 1)
    best, least = 0, cost(gpus, 0, break_even)
    for count in counts:
        now = cost(gpus, count, break_even)
        if now < least - 1e-9:
            best, least = count, now
    return best


def cost(gpus: Floats | Sequence[float], count: int, break_even: float) -> float:
    """Cost of so many reserved GPUs and the rest on demand, in on-demand GPU-hours."""
    wanted = np.asarray(gpus, dtype=float)
    return float(count * break_even * len(wanted) + np.maximum(wanted - count, 0.0).sum())

"""A smaller GPU, a slice of one, or one shared: from the memory and activity that were measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuledger_collector.accounting.counterfactual import PERMILLE, RENTED, Change, dearer
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.insight.idle.kinds import is_serving
from gpuledger_collector.insight.recommendations.advice import NOTHING, Estimate, Found, NotEvaluated, Proposal
from gpuledger_collector.insight.recommendations.evidence import MIN_KNOWN, Holding, ReadingStats, Window
from gpuledger_collector.insight.recommendations.models import GIB, GPU_SPECS, MIG, GpuSpec, gpu_spec

LEAST_MS = 24 * HOUR_MS
"""Less held time than this says little about peaks."""
MEMORY_SHARE, WORK_SHARE = 0.9, 0.8
"""Of the smaller card: memory, and throughput or bandwidth, that the measured p99 may fill."""
MOST_TOGETHER = 4


def activity(holding: Holding) -> ReadingStats | None:
    """SM activity, or utilisation where it is not read: never below it, so a bound on the safe side."""
    return known(holding, "sm_active_ratio") or known(holding, "utilization_ratio")


def known(holding: Holding, name: str) -> ReadingStats | None:
    """A reading that nearly every minute carries, None otherwise."""
    reading = holding.readings.get(name)
    return None if reading is None or reading.known < MIN_KNOWN else reading


def candidates(window: Window, kind: str) -> tuple[list[Holding], list[NotEvaluated]]:
    """Workloads on one GPU at a time that were held for long enough, and those that cannot be judged."""
    fit: list[Holding] = []
    gaps: list[NotEvaluated] = []
    for one in window.holdings:
        if one.held_ms < LEAST_MS or one.most_at_once != 1:
            continue
        if one.protected_by is not None:
            gaps.append(NotEvaluated(kind, one.key, f"its tag {one.protected_by} says that it is to stay"))
        elif one.known_share < MIN_KNOWN:
            reason = f"activity is known for {one.known_share:.1%} of its time, {MIN_KNOWN:.0%} is needed"
            gaps.append(NotEvaluated(kind, one.key, reason))
        elif not one.readings:
            gaps.append(NotEvaluated(kind, one.key, "it never had its GPU to itself, so its readings are not its own"))
        elif known(one, "memory_used_bytes") is None or activity(one) is None:
            gaps.append(NotEvaluated(kind, one.key, f"memory and activity are not read in {MIN_KNOWN:.0%} of minutes"))
        else:
            fit.append(one)
    return fit, gaps


def mig_slice(window: Window) -> Found:
    """The smallest MIG slice that holds p99 of memory and activity. It frees the rest, which saves no cash by itself.

    Low: nobody takes the rest; expected: it is worth something in the hours in which no whole GPU was free.
    """
    fit, gaps = candidates(window, "mig_slice")
    advice = []
    for one in fit:
        card = gpu_spec(one.model)
        memory, work = known(one, "memory_used_bytes"), activity(one)
        if card is None or not card.mig or "mig" in one.model.lower() or memory is None or work is None:
            continue
        if is_serving(one.kind, one.name, one.tags) and "latency_slo" not in one.tags:
            gaps.append(NotEvaluated("mig_slice", one.key, "it serves requests, and no tag latency_slo says how fast"))
            continue
        room = MEMORY_SHARE * card.memory_gib * GIB
        fits = [(part, eighths) for part, eighths in MIG if memory.p99 <= room * eighths / 8 and work.p99 <= part / 7]
        if not fits:
            continue
        part, eighths = fits[0]
        spare = PERMILLE - math.ceil(PERMILLE * max(part / 7, eighths / 8))
        full = window.full_hours(one.pool, one.model)
        wanted = [
            rating_interval for rating_interval in one.rating_intervals if rating_interval.at_ms // HOUR_MS in full
        ]
        profile = f"{part}g.{int(card.memory_gib * eighths / 8)}gb"
        advice.append(
            Proposal(
                kind="mig_slice",
                subject=one.key,
                text=f"run {one.name} on a {profile} slice: p99 of memory {memory.p99 / GIB:.1f} GiB, of activity "
                f"{work.p99:.0%}",
                low=NOTHING,
                expected=Estimate([Change(a.accelerator_id, one.workload_id, a.at_ms, 0, spare) for a in wanted]),
                high=Estimate(
                    [Change(a.accelerator_id, one.workload_id, a.at_ms, 0, spare) for a in one.rating_intervals]
                ),
                owner=one.owner,
                scope={"workload_id": one.workload_id},
                evidence={
                    **_measured(memory, work),
                    "slice": profile,
                    "hours_wanted": len(wanted),
                    "guards": "frees capacity only; the rest is worth something where somebody takes it",
                },
            )
        )
    return advice, gaps


def _measured(memory: ReadingStats, work: ReadingStats) -> dict[str, float]:
    return {
        "memory_p95_bytes": round(memory.p95),
        "memory_p99_bytes": round(memory.p99),
        "activity_p95": round(work.p95, 4),
        "activity_p99": round(work.p99, 4),
        "known": round(min(memory.known, work.known), 4),
    }


def right_size(window: Window) -> Found:
    """A cheaper model that holds p99 of memory, and 0.8 of whose throughput and bandwidth hold p99 of both.

    The roofline is necessary, not sufficient: the range goes from no slowdown to that of the slower of both bounds.
    """
    fit, gaps = candidates(window, "right_size")
    advice = []
    for one in fit:
        card, memory, work = gpu_spec(one.model), known(one, "memory_used_bytes"), activity(one)
        price = window.book.price_at(one.pool, one.model, "", "", window.end_ms - 1)
        if card is None or memory is None or work is None or price is None or price.purchase not in RENTED:
            continue
        smaller = [(other, rate) for other in GPU_SPECS if (rate := _rate(window, one.pool, other, price)) is not None]
        smaller = [(other, rate) for other, rate in smaller if memory.p99 <= MEMORY_SHARE * other.memory_gib * GIB]
        if not smaller:
            continue
        tensor, dram = known(one, "tensor_active_ratio"), known(one, "dram_active_ratio")
        if tensor is None or dram is None:
            gaps.append(
                NotEvaluated("right_size", one.key, "tensor and DRAM activity are not read (profiling metrics)")
            )
            continue
        able = [
            (other, rate)
            for other, rate in smaller
            if tensor.p99 * card.teraflops <= WORK_SHARE * other.teraflops
            and dram.p99 * card.bandwidth <= WORK_SHARE * other.bandwidth
        ]
        if able:
            advice.append(_moved(one, card, *min(able, key=lambda pair: pair[1].rate), memory, work))
    return advice, gaps


def _rate(window: Window, pool: str, other: GpuSpec, price: Price) -> Price | None:
    """The rate of another model in the book, when it is cheaper and bought alike."""
    found = window.book.price_at(pool, other.word.upper(), "", "", window.end_ms - 1, price.purchase)
    named = found is not None and other.word in found.gpu_model.lower()
    cheaper = found is not None and found.currency == price.currency and found.rate < price.rate
    return found if named and cheaper else None


def _moved(
    one: Holding, card: GpuSpec, other: GpuSpec, rate: Price, memory: ReadingStats, work: ReadingStats
) -> Proposal:
    bound = max(1.0, card.teraflops / other.teraflops, card.bandwidth / other.bandwidth)
    slow = [round((factor - 1) * PERMILLE) for factor in (bound, math.sqrt(bound), 1.0)]
    low, expected, high = (
        Estimate(
            [
                Change(a.accelerator_id, one.workload_id, a.at_ms, moved_to=dearer(rate, permille))
                for a in one.rating_intervals
            ]
        )
        for permille in slow
    )
    return Proposal(
        kind="right_size",
        subject=one.key,
        text=f"try {one.name} on {other.word.upper()}: p99 of memory {memory.p99 / GIB:.1f} GiB fits, and so do its "
        "throughput and bandwidth",
        low=low,
        expected=expected,
        high=high,
        owner=one.owner,
        scope={"workload_id": one.workload_id},
        evidence={
            **_measured(memory, work),
            "from": card.word,
            "to": other.word,
            "slowdown_at_most": round(bound, 3),
            "guards": "necessary, not sufficient: check the number format, and make a trial run",
        },
    )


def pack(window: Window) -> Found:
    """Two to four workloads of one pool and model on one GPU: p99 of activity at most 1/k each, p99 of memory fits."""
    fit, gaps = candidates(window, "pack")
    groups: dict[tuple[str, str], list[Holding]] = defaultdict(list)
    for one in fit:
        if not is_serving(one.kind, one.name, one.tags):
            groups[one.pool, one.model].append(one)
    advice = []
    for (pool, model), members in sorted(groups.items()):
        card = gpu_spec(model)
        if card is None:
            continue
        for together in _groups(members, card):
            made = _packed(pool, model, together)
            if made is not None:
                advice.append(made)
    return advice, gaps


def _groups(members: Sequence[Holding], card: GpuSpec) -> Iterable[list[Holding]]:
    """Greedy: the largest first, each with those that still fit beside it."""
    left = sorted(members, key=lambda one: (-_p99(one, "memory_used_bytes"), one.key))
    while left:
        group = [left.pop(0)]
        for other in list(left):
            wanted = [*group, other]
            memory = sum(_p99(one, "memory_used_bytes") for one in wanted)
            busiest = max((work.p99 for one in wanted if (work := activity(one)) is not None), default=1.0)
            small = busiest <= 1 / len(wanted) and memory <= MEMORY_SHARE * card.memory_gib * GIB
            if small and len(wanted) <= MOST_TOGETHER and group[0].owner.get("team") == other.owner.get("team"):
                group.append(other)
                left.remove(other)
        if len(group) > 1:
            yield group


def _p99(one: Holding, name: str) -> float:
    reading = known(one, name)
    return math.inf if reading is None else reading.p99


def _packed(pool: str, model: str, group: Sequence[Holding]) -> Proposal | None:
    """In every hour in which several of the group held a GPU, all but the first give theirs back."""
    changes = []
    hosts: set[int] = set()
    for one in group:
        mine = {rating_interval.at_ms // HOUR_MS for rating_interval in one.rating_intervals if rating_interval.held_ms}
        changes += [
            Change(rating_interval.accelerator_id, one.workload_id, rating_interval.at_ms, PERMILLE)
            for rating_interval in one.rating_intervals
            if rating_interval.at_ms // HOUR_MS in hosts
        ]
        hosts |= mine
    if len(changes) < LEAST_MS // HOUR_MS:
        return None
    names = ", ".join(one.name for one in group)
    return Proposal(
        kind="pack",
        subject="+".join(sorted(one.key for one in group)),
        text=f"run {names} on one {model} of pool {pool}",
        low=NOTHING,
        expected=Estimate(changes),
        high=Estimate(changes),
        owner={level: value for level, value in group[0].owner.items() if level in {"org", "team"}},
        scope={"workload_ids": [one.workload_id for one in group]},
        evidence={
            "workloads": [one.key for one in group],
            "hours_together": len(changes),
            "activity_p99": [round(work.p99, 4) for one in group if (work := activity(one)) is not None],
            "memory_p99_bytes": [round(_p99(one, "memory_used_bytes")) for one in group],
            "guards": "one team only; a trial run shows whether they slow each other down (low: they do)",
        },
    )

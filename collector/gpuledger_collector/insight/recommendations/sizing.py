"""A smaller GPU, a slice of one, or a shared one, from the measured memory and activity of
single-GPU workloads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.counterfactual import PERMILLE, RENTED, UsageChange, dearer
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.insight.recommendations.evidence import (
    MIN_KNOWN,
    Holding,
    InsufficientEvidence,
    IntervalUsage,
    ReadingStats,
    Window,
    require_observed,
    require_unprotected,
)
from gpuledger_collector.insight.recommendations.gpu_specs import (
    GIB,
    GPU_SPECS,
    MIG_SLICES,
    GpuSpec,
    gpu_spec,
)
from gpuledger_collector.insight.recommendations.proposals import NOTHING, Estimate, Proposal
from gpuledger_collector.insight.recommendations.signature import (
    Judged,
    Signature,
    holding_proposal,
    measure_subjects,
    spare_time,
)

MIN_HELD_MS = 24 * HOUR_MS
"""Peaks of memory and activity show only over a day or more."""
MEMORY_SHARE, WORK_SHARE = 0.9, 0.8
"""Shares of the smaller GPU's memory, and of its throughput or bandwidth, that the measured p99 may
fill.
"""
MAX_SHARING = 4


@dataclass(frozen=True)
class Sizing:
    """Memory and activity of a workload, and the data sheet of its GPU (None: unknown model)."""

    memory: ReadingStats
    activity: ReadingStats
    spec: GpuSpec | None

    def facts(self) -> dict[str, object]:
        """The figures as evidence."""
        return {
            "memory_p95_bytes": round(self.memory.p95),
            "memory_p99_bytes": round(self.memory.p99),
            "activity_p95": round(self.activity.p95, 4),
            "activity_p99": round(self.activity.p99, 4),
            "known": round(min(self.memory.known, self.activity.known), 4),
        }


def single_gpu_holdings(window: Window) -> Iterator[tuple[str, Holding]]:
    """Workloads on one GPU at a time that were held long enough."""
    for holding in window.holdings:
        if holding.held_ms >= MIN_HELD_MS and holding.max_accelerators == 1:
            yield holding.key, holding


def measure_sizing(_window: Window, holding: Holding) -> Sizing:
    """Memory and activity of a workload that had its GPU to itself."""
    require_unprotected(holding)
    require_observed(holding.known_share, "its activity")
    if not holding.readings:
        raise InsufficientEvidence("shared GPU: cannot be measured alone")
    memory, activity = holding.reading("memory_used_bytes"), holding.activity()
    if memory is None or activity is None:
        raise InsufficientEvidence(
            f"memory and activity are not read in {MIN_KNOWN:.0%} of its minutes"
        )
    return Sizing(memory, activity, gpu_spec(holding.model))


def _measure_slice(window: Window, holding: Holding) -> tuple[Sizing, list[IntervalUsage]] | None:
    """Sizing, and the usage in hours in which no whole GPU was free."""
    sizing = measure_sizing(window, holding)
    # Unknown models, models without MIG and MIG instances themselves cannot be cut further.
    if sizing.spec is None or not sizing.spec.mig or "mig" in holding.model.lower():
        return None
    if holding.serving and "latency_slo" not in holding.tags:
        raise InsufficientEvidence("it serves requests and has no tag latency_slo")
    full = window.full_hours(holding.pool, holding.model)
    return sizing, [interval for interval in holding.usage if interval.at_ms // HOUR_MS in full]


def _propose_slice(
    holding: Holding, measured: tuple[Sizing, list[IntervalUsage]]
) -> Proposal | None:
    """The smallest MIG slice that holds p99 of memory and activity.

    It frees the rest, which saves no cash by itself.

    Low: nobody uses the rest; expected: it has value in the hours in which no whole GPU was free.
    """
    sizing, wanted = measured
    if sizing.spec is None:
        return None
    memory, activity, memory_gib = sizing.memory, sizing.activity, sizing.spec.memory_gib
    usable = MEMORY_SHARE * memory_gib * GIB
    fits = (
        (sevenths, eighths)
        for sevenths, eighths in MIG_SLICES
        # MIG cuts compute into sevenths and memory into eighths; a slice must be enough in both.
        if memory.p99 <= usable * eighths / 8 and activity.p99 <= sevenths / 7
    )
    sevenths, eighths = next(fits, (0, 0))
    if not sevenths:
        return None
    # The larger share is what a slice takes of the board, as in rating; rounded up, so that no
    # saving is overstated.
    spare = PERMILLE - math.ceil(PERMILLE * max(sevenths / 7, eighths / 8))
    profile = f"{sevenths}g.{int(memory_gib * eighths / 8)}gb"
    return holding_proposal(
        "mig_slice",
        holding,
        f"run {holding.name} on a {profile} slice: p99 of memory {memory.p99 / GIB:.1f} GiB, of"
        f" activity {activity.p99:.0%}",
        (NOTHING, spare_time(holding, wanted, spare), spare_time(holding, holding.usage, spare)),
        {
            **sizing.facts(),
            "slice": profile,
            "hours_wanted": len(wanted),
            "guards": "frees capacity only; the rest has value where another workload uses it",
        },
    )


mig_slice = Signature("mig_slice", single_gpu_holdings, _measure_slice, _propose_slice)


@dataclass(frozen=True)
class _SmallerGpu:
    """The cheapest model whose memory, throughput and bandwidth hold the measured p99."""

    sizing: Sizing
    spec: GpuSpec
    smaller: GpuSpec
    rate: Price


def _measure_smaller(window: Window, holding: Holding) -> _SmallerGpu | None:
    sizing = measure_sizing(window, holding)
    # The rate at the end of the window: a proposal is about the future, not about prices that have
    # ended.
    price = window.book.price_at(holding.pool, holding.model, "", window.end_ms - 1)
    # A smaller GPU saves money only where the larger one stops being paid for.
    if sizing.spec is None or price is None or price.purchase not in RENTED:
        return None
    cheaper = (
        (spec, _cheaper_rate(window, holding.pool, spec, price))
        for spec in GPU_SPECS
        if sizing.memory.p99 <= MEMORY_SHARE * spec.memory_gib * GIB
    )
    roomy = [(spec, rate) for spec, rate in cheaper if rate is not None]
    if not roomy:
        return None
    tensor, dram = holding.reading("tensor_active_ratio"), holding.reading("dram_active_ratio")
    if tensor is None or dram is None:
        raise InsufficientEvidence("tensor and DRAM activity are not read (profiling metrics)")
    able = [
        (spec, rate)
        for spec, rate in roomy
        if tensor.p99 * sizing.spec.teraflops <= WORK_SHARE * spec.teraflops
        and dram.p99 * sizing.spec.bandwidth <= WORK_SHARE * spec.bandwidth
    ]
    return (
        _SmallerGpu(sizing, sizing.spec, *min(able, key=lambda pair: pair[1].rate))
        if able
        else None
    )


def _cheaper_rate(window: Window, pool: str, spec: GpuSpec, price: Price) -> Price | None:
    """Rate of another model in the price book, if it is cheaper and purchased alike."""
    rate = window.book.price_at(pool, spec.word.upper(), "", window.end_ms - 1, price.purchase)
    # The book may answer with a rate for any model.
    if rate is None or spec.word not in rate.gpu_model.lower():
        return None
    return rate if rate.currency == price.currency and rate.rate < price.rate else None


def _propose_smaller(holding: Holding, fit: _SmallerGpu) -> Proposal:
    """The roofline is necessary, not sufficient: the range is from the slower of both bounds to no
    slowdown.
    """
    bound = max(
        1.0, fit.spec.teraflops / fit.smaller.teraflops, fit.spec.bandwidth / fit.smaller.bandwidth
    )
    return holding_proposal(
        "right_size",
        holding,
        f"try {holding.name} on {fit.smaller.word.upper()}: p99 of memory"
        f" {fit.sizing.memory.p99 / GIB:.1f} GiB fits, and so do its throughput and bandwidth",
        # A slower GPU is held for longer: low as slow as its worst bound, high as fast as before,
        # expected in between.
        [
            estimate_moved(holding, fit.rate, round((slow - 1) * PERMILLE))
            for slow in (bound, math.sqrt(bound), 1.0)
        ],
        {
            **fit.sizing.facts(),
            "from": fit.spec.word,
            "to": fit.smaller.word,
            "slowdown_at_most": round(bound, 3),
            "guards": "necessary, not sufficient: check the number format, and make a trial run",
        },
    )


def estimate_moved(holding: Holding, rate: Price, overhead_permille: int) -> Estimate:
    """Estimate of all usage at another rate, with so much more time."""
    to = dearer(rate, overhead_permille)
    return Estimate(
        [
            UsageChange(u.accelerator_id, holding.workload_id, u.at_ms, moved_to=to)
            for u in holding.usage
        ]
    )


right_size = Signature("right_size", single_gpu_holdings, _measure_smaller, _propose_smaller)


def pack(window: Window) -> Judged:
    """Propose one GPU for two to four workloads of one pool, model and team.

    They fit when p99 of each one's activity is at most 1/k of the GPU and the sum of p99 of memory
    fits.
    """
    fit, gaps = measure_subjects("pack", window, single_gpu_holdings(window), measure_sizing)
    kinds: dict[tuple[str, str], list[tuple[Holding, Sizing]]] = defaultdict(list)
    for holding, sizing in fit:
        if not holding.serving and sizing.spec is not None:
            kinds[holding.pool, holding.model].append((holding, sizing))
    groups = (group for _, members in sorted(kinds.items()) for group in _groups(members))
    proposals = (_propose_packing(group) for group in groups)
    return [proposal for proposal in proposals if proposal is not None], gaps


def _groups(members: Sequence[tuple[Holding, Sizing]]) -> Iterator[list[tuple[Holding, Sizing]]]:
    """Greedy: the largest workload first, by the 99th percentile of its memory, each with those that
    still fit on its GPU; only groups of two or more.
    """
    left = sorted(members, key=lambda member: (-member[1].memory.p99, member[0].key))
    while left:
        group = [left.pop(0)]
        for candidate in list(left):
            if _fits(group, candidate):
                group.append(candidate)
                left.remove(candidate)
        if len(group) > 1:
            yield group


def _fits(group: Sequence[tuple[Holding, Sizing]], candidate: tuple[Holding, Sizing]) -> bool:
    together = [sizing for _, sizing in (*group, candidate)]
    spec = together[0].spec
    return (
        spec is not None
        and len(together) <= MAX_SHARING
        and group[0][0].owner.get("team") == candidate[0].owner.get("team")
        # Even if all of them are busy at the same time, each gets the activity that it needs.
        and max(sizing.activity.p99 for sizing in together) <= 1 / len(together)
        and sum(sizing.memory.p99 for sizing in together) <= MEMORY_SHARE * spec.memory_gib * GIB
    )


def _propose_packing(group: Sequence[tuple[Holding, Sizing]]) -> Proposal | None:
    """In every hour in which several of the group held a GPU, all but the first give theirs back."""
    changes = []
    hours: set[int] = set()
    for holding, _ in group:
        changes += [
            UsageChange(usage.accelerator_id, holding.workload_id, usage.at_ms, PERMILLE)
            for usage in holding.usage
            # The first of the group that held a GPU in an hour keeps it; those after it join.
            if usage.at_ms // HOUR_MS in hours
        ]
        hours |= {usage.at_ms // HOUR_MS for usage in holding.usage if usage.held_ms}
    if len(changes) < MIN_HELD_MS // HOUR_MS:
        return None
    holdings = [holding for holding, _ in group]
    first = holdings[0]
    return Proposal(
        kind="pack",
        subject="+".join(sorted(holding.key for holding in holdings)),
        text=(
            f"run {', '.join(holding.name for holding in holdings)} on one {first.model} of pool"
            f" {first.pool}"
        ),
        low=NOTHING,
        expected=Estimate(changes),
        high=Estimate(changes),
        owner={level: value for level, value in first.owner.items() if level in {"org", "team"}},
        scope={"workload_ids": [holding.workload_id for holding in holdings]},
        evidence={
            "workloads": [holding.key for holding in holdings],
            "hours_together": len(changes),
            "activity_p99": [round(sizing.activity.p99, 4) for _, sizing in group],
            "memory_p99_bytes": [round(sizing.memory.p99) for _, sizing in group],
            "guards": (
                "one team only; a trial run shows whether they slow each other down (low: they do)"
            ),
        },
    )

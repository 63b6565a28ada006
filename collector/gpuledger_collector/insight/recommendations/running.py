"""The same GPUs run otherwise: off when nobody works, capped, fed faster."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict

from gpuledger_collector.accounting.counterfactual import PERMILLE, Change
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.bottlenecks import DRAM_LIGHT, INEFFECTIVE, RESIDENT, ROOM
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.idle.kinds import is_serving, watts
from gpuledger_collector.insight.recommendations.advice import NOTHING, Estimate, Found, NotEvaluated, Proposal
from gpuledger_collector.insight.recommendations.evidence import MIN_KNOWN, Holding, IntervalUsage, Window
from gpuledger_collector.insight.recommendations.models import GIB, gpu_spec
from gpuledger_collector.insight.recommendations.sizing import LEAST_MS, activity, known

NIGHT, MORNING = 20, 6
"""Hours (UTC) at which the night begins and ends; Saturdays and Sundays are off as a whole."""
MOST_BUSY, LEAST_DAYS = 0.05, 28
CAP_SAVES = (0.0, 0.07, 0.15)
"""Energy that a power cap saves: nothing to 15 % (arXiv 2205.09646 measured up to 15 % for little more time)."""
CAPPED_SHARE, NEAR_FULL = 0.5, 0.9
EFFECTIVE = 0.8
"""SM activity that effective use needs at least (DCGM user guide, profiling metrics)."""


def off_hours(window: Window) -> Found:
    """Pools in which hardly anything works at night and on weekends, over four weeks at least."""
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    kinds = sorted({(place.pool, place.model) for place in window.places.values()})
    for pool, model in kinds:
        subject = f"{pool}/{model}"
        mine = [one for one in window.holdings if (one.pool, one.model) == (pool, model)]
        free = window.free.get((pool, model))
        everything = [
            (one, rating_interval)
            for one in [*mine, *([] if free is None else [free])]
            for rating_interval in one.rating_intervals
        ]
        off = [(one, rating_interval) for one, rating_interval in everything if is_off(rating_interval.at_ms)]
        held = sum(rating_interval.held_ms for _, rating_interval in off)
        busy = sum(rating_interval.busy_ms for _, rating_interval in off)
        by_day = sum(rating_interval.busy_ms for _, rating_interval in everything) - busy
        if not held or busy > MOST_BUSY * held or not by_day or not mine:
            continue
        if window.days < LEAST_DAYS:
            gaps.append(
                NotEvaluated("off_hours", subject, f"{window.days:.0f} days are known, {LEAST_DAYS} are needed")
            )
            continue
        seen = min(place.seen for place in window.places.values() if (place.pool, place.model) == (pool, model))
        unknown = sum(rating_interval.unknown_ms for _, rating_interval in off) / held
        if min(seen, 1 - unknown) < MIN_KNOWN:
            reason = f"only {min(seen, 1 - unknown):.1%} of its time was seen, {MIN_KNOWN:.0%} is needed"
            gaps.append(NotEvaluated("off_hours", subject, reason))
            continue
        kept = next((one for one in mine if one.protected_by is not None), None)
        if kept is not None:
            gaps.append(NotEvaluated("off_hours", subject, f"{kept.key} is to stay (tag {kept.protected_by})"))
            continue
        advice.append(
            Proposal(
                kind="off_hours",
                subject=subject,
                text=f"switch {model} of pool {pool} off at night and on weekends: {busy / held:.1%} of it worked",
                low=Estimate(
                    [
                        _off(one, rating_interval)
                        for one, rating_interval in off
                        if one.workload_id is None and rating_interval.held_ms
                    ]
                ),
                expected=Estimate(
                    [
                        _off(one, rating_interval)
                        for one, rating_interval in off
                        if not rating_interval.busy_ms and rating_interval.held_ms
                    ]
                ),
                high=Estimate([_off(one, rating_interval) for one, rating_interval in off if rating_interval.held_ms]),
                scope={"pool": pool, "model": model},
                evidence={
                    "busy_share": round(busy / held, 4),
                    "gpu_hours": round(held / HOUR_MS, 2),
                    "hours_off": f"{NIGHT}:00 to {MORNING}:00 UTC and weekends",
                    "seen": round(seen, 4),
                    "guards": "what is owned saves energy only; who is on call needs an exception",
                },
            )
        )
    return advice, gaps


def is_off(at_ms: int) -> bool:
    """Whether an instant lies in the night or on a weekend (UTC)."""
    at = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    return at.weekday() >= 5 or at.hour >= NIGHT or at.hour < MORNING


def _off(one: Holding, rating_interval: IntervalUsage) -> Change:
    return Change(rating_interval.accelerator_id, one.workload_id, rating_interval.at_ms, PERMILLE)


def power_cap(window: Window) -> Found:
    """Workloads whose clocks the power limit holds down: a lower cap costs them little. Energy only."""
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    for one in window.holdings:
        slowed, power = one.readings.get("slowed_ratio"), one.readings.get("power_watts")
        limit = watts(one.model)[1]
        if one.held_ms < LEAST_MS or slowed is None or power is None:
            continue
        if slowed.mean < CAPPED_SHARE or not power.p50 >= NEAR_FULL * limit:
            continue
        if min(slowed.known, power.known, one.known_share) < MIN_KNOWN:
            gaps.append(NotEvaluated("power_cap", one.key, f"power is not read in {MIN_KNOWN:.0%} of its minutes"))
            continue
        energies = [
            rating_interval.energy_mj
            for rating_interval in one.rating_intervals
            if rating_interval.energy_mj is not None
        ]
        if len(energies) < MIN_KNOWN * len(one.rating_intervals):
            gaps.append(NotEvaluated("power_cap", one.key, f"energy is not measured in {MIN_KNOWN:.0%} of its hours"))
            continue
        kwh = sum(energies) / 3.6e9
        low, expected, high = (Estimate(kwh=share * kwh) for share in CAP_SAVES)
        advice.append(
            Proposal(
                kind="power_cap",
                subject=one.key,
                text=f"try a lower power cap for {one.name}: its limit slows it {slowed.mean:.0%} of the time",
                low=low,
                expected=expected,
                high=high,
                owner=one.owner,
                scope={"workload_id": one.workload_id},
                evidence={
                    "power_p50_watts": round(power.p50, 1),
                    "limited_share": round(slowed.mean, 4),
                    "kwh": round(kwh, 3),
                    "assumed": {"saved_share": CAP_SAVES},
                    "guards": "measure throughput per watt in a trial; saves no GPU-hours",
                },
            )
        )
    return advice, gaps


def input_pipeline(window: Window) -> Found:
    """Workloads that wait for their data: at their own p90 of activity they would have needed less GPU time."""
    starved: dict[int, list[Finding]] = defaultdict(list)
    for finding in window.findings:
        if finding.state == "data_starved" and finding.workload_id is not None:
            starved[finding.workload_id].append(finding)
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    for one in window.holdings:
        findings = [
            finding
            for finding in starved.get(one.workload_id or 0, [])
            if (place := window.places.get(finding.accelerator_id or 0)) is not None
            and (place.pool, place.model) == (one.pool, one.model)
        ]
        if not findings:
            continue
        work = known(one, "utilization_ratio") or activity(one)
        if work is None or one.known_share < MIN_KNOWN or not work.p90:
            gaps.append(
                NotEvaluated("input_pipeline", one.key, f"activity is not known in {MIN_KNOWN:.0%} of its time")
            )
            continue
        hours = {(finding.accelerator_id, int(at)) for finding in findings for at in finding.evidence["wasted_gpu_ns"]}
        touched = [
            rating_interval
            for rating_interval in one.rating_intervals
            if (rating_interval.accelerator_id, rating_interval.at_ms) in hours
        ]
        spare = round(PERMILLE * max(0.0, 1 - work.mean / work.p90))
        if not spare or not touched:
            continue
        made = [
            Estimate([Change(a.accelerator_id, one.workload_id, a.at_ms, 0, permille) for a in touched])
            for permille in (spare // 2, spare)
        ]
        advice.append(
            Proposal(
                kind="input_pipeline",
                subject=one.key,
                text=f"feed {one.name} faster: {work.mean:.0%} active on average, {work.p90:.0%} when data is there",
                low=NOTHING,
                expected=made[0],
                high=made[1],
                owner=one.owner,
                scope={"workload_id": one.workload_id},
                evidence={
                    "activity_mean": round(work.mean, 4),
                    "activity_p90": round(work.p90, 4),
                    "findings": sorted(finding.key for finding in findings),
                    "gpu_hours": len(touched),
                    "guards": "high: always at its own p90; expected: half way there",
                },
            )
        )
    return advice, gaps


def batch_size(window: Window) -> Found:
    """Workloads that always run and do little at once, with room in memory: a larger batch would take less time.

    The rule is that of the bottleneck `batch` (insight.bottlenecks). At the 0.8 of SM activity that NVIDIA's DCGM guide
    asks of effective use the same work would take mean / 0.8 of the time: that is the high estimate, half way there
    the expected one, for no reading tells how a model's throughput grows with its batch.
    """
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    for one in window.holdings:
        card = gpu_spec(one.model)
        busy, active = one.readings.get("utilization_ratio"), one.readings.get("sm_active_ratio")
        if one.workload_id is None or one.held_ms < LEAST_MS or one.most_at_once != 1 or card is None or busy is None:
            continue
        if busy.mean < RESIDENT or is_serving(one.kind, one.name, one.tags) or one.protected_by is not None:
            continue
        read = [known(one, name) for name in ("sm_active_ratio", "dram_active_ratio", "memory_used_bytes")]
        work, dram, memory = read
        if work is None or dram is None or memory is None or one.known_share < MIN_KNOWN:
            if active is None or active.mean < INEFFECTIVE:
                reason = f"activity of SMs and DRAM and memory are not read in {MIN_KNOWN:.0%} of its minutes"
                gaps.append(NotEvaluated("batch_size", one.key, reason))
            continue
        room = memory.p99 / (card.memory_gib * GIB)
        if not (0 < work.mean < INEFFECTIVE and dram.mean < DRAM_LIGHT and room <= ROOM):
            continue
        spare = round(PERMILLE * (1 - work.mean / EFFECTIVE))
        made = [
            Estimate([Change(a.accelerator_id, one.workload_id, a.at_ms, 0, permille) for a in one.rating_intervals])
            for permille in (spare // 2, spare)
        ]
        advice.append(
            Proposal(
                kind="batch_size",
                subject=one.key,
                text=f"try a larger batch for {one.name}: {work.mean:.0%} of SMs work, {room:.0%} of memory is used",
                low=NOTHING,
                expected=made[0],
                high=made[1],
                owner=one.owner,
                scope={"workload_id": one.workload_id},
                evidence={
                    "utilization_mean": round(busy.mean, 4),
                    "sm_active_mean": round(work.mean, 4),
                    "dram_active_mean": round(dram.mean, 4),
                    "memory_p99_share": round(room, 4),
                    "assumed": {"effective_sm_active": EFFECTIVE},
                    "guards": "one GPU, no serving; throughput must be tried; never together with a slice of it",
                },
            )
        )
    return advice, gaps

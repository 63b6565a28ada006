"""The same GPUs run otherwise: switched off at night, with a lower power cap, fed faster, with a
larger batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.counterfactual import PERMILLE, UsageChange
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.bottlenecks import DRAM_LIGHT, INEFFECTIVE, RESIDENT, ROOM
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.idle.kinds import watts
from gpuledger_collector.insight.recommendations.evidence import (
    MIN_KNOWN,
    Holding,
    InsufficientEvidence,
    IntervalUsage,
    ReadingStats,
    Window,
    require_days,
    require_observed,
    require_unprotected,
)
from gpuledger_collector.insight.recommendations.gpu_specs import GIB, gpu_spec
from gpuledger_collector.insight.recommendations.proposals import NOTHING, Estimate, Proposal
from gpuledger_collector.insight.recommendations.signature import (
    Signature,
    holding_proposal,
    spare_time,
)
from gpuledger_collector.insight.recommendations.sizing import MIN_HELD_MS
from gpuledger_common.instants import to_datetime

NIGHT, MORNING = 20, 6
"""Hours (UTC) at which the night begins and ends; Saturdays and Sundays count as off."""
MAX_BUSY, MIN_DAYS = 0.05, 28
CAP_SAVES = (0.0, 0.07, 0.15)
"""Energy that a power cap saves: nothing to 15 % (arXiv 2205.09646 measured up to 15 % for little
more time).
"""
CAPPED_SHARE, NEAR_FULL = 0.5, 0.9
"""A cap matters when it slows at least half of the minutes and the median power is near the limit.
"""
EFFECTIVE = 0.8
"""SM activity that effective use needs at least (DCGM user guide, profiling metrics)."""


@dataclass(frozen=True)
class _Nights:
    """Usage of a pool and model at night and on weekends, with its holders; unallocated time is a
    holder, too.
    """

    pool: str
    model: str
    holdings: Sequence[Holding]
    off: Sequence[tuple[Holding, IntervalUsage]]
    held_ms: int
    busy_ms: int


def _quiet_nights(window: Window) -> Iterator[tuple[str, _Nights]]:
    """Pools that work by day and hardly ever at night or on weekends."""
    for pool, model in sorted({(card.pool, card.model) for card in window.accelerators.values()}):
        holdings = [
            holding for holding in window.holdings if (holding.pool, holding.model) == (pool, model)
        ]
        free = window.free.get((pool, model))
        holders = [*holdings, *([] if free is None else [free])]
        usage = [(holder, interval) for holder in holders for interval in holder.usage]
        off = [(holder, interval) for holder, interval in usage if is_off(interval.at_ms)]
        held = sum(interval.held_ms for _, interval in off)
        busy = sum(interval.busy_ms for _, interval in off)
        # A pool that is never busy is a matter for reclaiming; this is about pools that work by
        # day.
        by_day = sum(interval.busy_ms for _, interval in usage) - busy
        if holdings and held and by_day and busy <= MAX_BUSY * held:
            yield f"{pool}/{model}", _Nights(pool, model, holdings, off, held, busy)


def _observed_nights(window: Window, nights: _Nights) -> float:
    require_days(window.days, MIN_DAYS)
    seen = window.observed_share(nights.pool, nights.model)
    unknown = sum(interval.unknown_ms for _, interval in nights.off) / nights.held_ms
    require_observed(min(seen, 1 - unknown), "its activity")
    for holding in nights.holdings:
        require_unprotected(holding)
    return seen


def _propose_nights_off(nights: _Nights, seen: float) -> Proposal:
    """Low: only unallocated time is switched off; expected: hours without work; high: all of it."""
    held = [(holder, interval) for holder, interval in nights.off if interval.held_ms]

    def give_back(usage: Sequence[tuple[Holding, IntervalUsage]]) -> Estimate:
        return Estimate(
            [
                UsageChange(u.accelerator_id, holder.workload_id, u.at_ms, PERMILLE)
                for holder, u in usage
            ]
        )

    busy_share = nights.busy_ms / nights.held_ms
    return Proposal(
        kind="off_hours",
        subject=f"{nights.pool}/{nights.model}",
        text=(
            f"switch {nights.model} of pool {nights.pool} off at night and on weekends:"
            f" {busy_share:.1%} was busy"
        ),
        low=give_back(
            [(holder, interval) for holder, interval in held if holder.workload_id is None]
        ),
        expected=give_back(
            [(holder, interval) for holder, interval in held if not interval.busy_ms]
        ),
        high=give_back(held),
        scope={"pool": nights.pool, "model": nights.model},
        evidence={
            "busy_share": round(busy_share, 4),
            "gpu_hours": round(nights.held_ms / HOUR_MS, 2),
            "hours_off": f"{NIGHT}:00 to {MORNING}:00 UTC and weekends",
            "seen": round(seen, 4),
            "guards": "owned capacity saves energy only; people on call need an exception",
        },
    )


off_hours = Signature("off_hours", _quiet_nights, _observed_nights, _propose_nights_off)


def is_off(at_ms: int) -> bool:
    """Whether an instant lies in the night or on a weekend (UTC)."""
    at = to_datetime(at_ms)
    return at.weekday() >= 5 or at.hour >= NIGHT or at.hour < MORNING


def _power_limited(window: Window) -> Iterator[tuple[str, Holding]]:
    """Workloads whose clocks are held down by the power limit."""
    for holding in window.holdings:
        slowed, power = holding.readings.get("slowed_ratio"), holding.readings.get("power_watts")
        if (
            holding.held_ms < MIN_HELD_MS
            or slowed is None
            or power is None
            or slowed.mean < CAPPED_SHARE
        ):
            continue
        # False for a model whose limit is unknown (NaN).
        if power.p50 >= NEAR_FULL * watts(holding.model)[1]:
            yield holding.key, holding


def _measured_kwh(_window: Window, holding: Holding) -> float:
    slowed, power = holding.readings["slowed_ratio"], holding.readings["power_watts"]
    if min(slowed.known, power.known, holding.known_share) < MIN_KNOWN:
        raise InsufficientEvidence(f"power is not read in {MIN_KNOWN:.0%} of its minutes")
    energies = [interval.energy_mj for interval in holding.usage if interval.energy_mj is not None]
    if len(energies) < MIN_KNOWN * len(holding.usage):
        raise InsufficientEvidence(f"energy is not measured in {MIN_KNOWN:.0%} of its hours")
    return sum(energies) / 3.6e9


def _propose_power_cap(holding: Holding, kwh: float) -> Proposal:
    """A lower cap costs a workload at its power limit little time. Saves energy only."""
    slowed, power = holding.readings["slowed_ratio"], holding.readings["power_watts"]
    return holding_proposal(
        "power_cap",
        holding,
        f"try a lower power cap for {holding.name}: its limit slows it {slowed.mean:.0%} of the"
        " time",
        [Estimate(kwh=share * kwh) for share in CAP_SAVES],
        {
            "power_p50_watts": round(power.p50, 1),
            "limited_share": round(slowed.mean, 4),
            "kwh": round(kwh, 3),
            "assumed": {"saved_share": CAP_SAVES},
            "guards": "measure throughput per watt in a trial; saves no GPU-hours",
        },
    )


power_cap = Signature("power_cap", _power_limited, _measured_kwh, _propose_power_cap)


def _data_starved(window: Window) -> Iterator[tuple[str, tuple[Holding, Sequence[Finding]]]]:
    for holding in window.holdings:
        findings = window.findings_of(holding, ("data_starved",))
        if findings:
            yield holding.key, (holding, findings)


def _starved_activity(_window: Window, starved: tuple[Holding, Sequence[Finding]]) -> ReadingStats:
    holding, _ = starved
    activity = holding.reading("utilization_ratio") or holding.activity()
    if activity is None or holding.known_share < MIN_KNOWN or not activity.p90:
        raise InsufficientEvidence(f"activity is not known in {MIN_KNOWN:.0%} of its time")
    return activity


def _propose_pipeline(
    starved: tuple[Holding, Sequence[Finding]], activity: ReadingStats
) -> Proposal | None:
    """At its own p90 of activity the workload would have needed less GPU time."""
    holding, findings = starved
    hours = {
        (finding.accelerator_id, int(at))
        for finding in findings
        for at in finding.evidence["wasted_gpu_ns"]
    }
    touched = [
        interval for interval in holding.usage if (interval.accelerator_id, interval.at_ms) in hours
    ]
    spare = round(PERMILLE * max(0.0, 1 - activity.mean / activity.p90))
    if not spare or not touched:
        return None
    return holding_proposal(
        "input_pipeline",
        holding,
        f"feed {holding.name} faster: {activity.mean:.0%} active on average, {activity.p90:.0%}"
        " when data is there",
        (NOTHING, spare_time(holding, touched, spare // 2), spare_time(holding, touched, spare)),
        {
            "activity_mean": round(activity.mean, 4),
            "activity_p90": round(activity.p90, 4),
            "findings": sorted(finding.key for finding in findings),
            "gpu_hours": len(touched),
            "guards": "high: always at its own p90; expected: half way there",
        },
    )


input_pipeline = Signature("input_pipeline", _data_starved, _starved_activity, _propose_pipeline)


@dataclass(frozen=True)
class _SmallBatch:
    """A GPU that always runs and does little at once, with room in memory."""

    busy: float
    sm_active: float
    dram_active: float
    memory_share: float


def _always_running(window: Window) -> Iterator[tuple[str, Holding]]:
    for holding in window.holdings:
        busy = holding.readings.get("utilization_ratio")
        if (
            holding.workload_id is not None
            and holding.held_ms >= MIN_HELD_MS
            and holding.max_accelerators == 1
            and gpu_spec(holding.model) is not None
            and busy is not None
            and busy.mean >= RESIDENT
            and not holding.serving
            and holding.protected_by is None
        ):
            yield holding.key, holding


def _measure_batch(_window: Window, holding: Holding) -> _SmallBatch | None:
    """The rule of the bottleneck `batch` (insight.bottlenecks)."""
    names = ("sm_active_ratio", "dram_active_ratio", "memory_used_bytes")
    sm_active, dram, memory = (holding.reading(name) for name in names)
    if sm_active is None or dram is None or memory is None or holding.known_share < MIN_KNOWN:
        unreliable = holding.readings.get("sm_active_ratio")
        if unreliable is not None and unreliable.mean >= INEFFECTIVE:
            return None
        raise InsufficientEvidence(
            f"activity of SMs and DRAM and memory are not read in {MIN_KNOWN:.0%} of minutes"
        )
    spec = gpu_spec(holding.model)
    share = memory.p99 / (spec.memory_gib * GIB) if spec else 1.0
    if not (0 < sm_active.mean < INEFFECTIVE and dram.mean < DRAM_LIGHT and share <= ROOM):
        return None
    return _SmallBatch(holding.readings["utilization_ratio"].mean, sm_active.mean, dram.mean, share)


def _propose_batch(holding: Holding, batch: _SmallBatch) -> Proposal:
    """A larger batch would take less time.

    High: at the 0.8 of SM activity that NVIDIA's DCGM guide asks of effective use the same work
    takes mean / 0.8 of the time. Expected: half way there, since no reading says how a model's
    throughput grows with its batch.
    """
    spare = round(PERMILLE * (1 - batch.sm_active / EFFECTIVE))
    return holding_proposal(
        "batch_size",
        holding,
        f"try a larger batch for {holding.name}: {batch.sm_active:.0%} of SMs work,"
        f" {batch.memory_share:.0%} of memory is used",
        (
            NOTHING,
            spare_time(holding, holding.usage, spare // 2),
            spare_time(holding, holding.usage, spare),
        ),
        {
            "utilization_mean": round(batch.busy, 4),
            "sm_active_mean": round(batch.sm_active, 4),
            "dram_active_mean": round(batch.dram_active, 4),
            "memory_p99_share": round(batch.memory_share, 4),
            "assumed": {"effective_sm_active": EFFECTIVE},
            "guards": (
                "one GPU, no serving; throughput must be tried; never together with a slice of it"
            ),
        },
    )


batch_size = Signature("batch_size", _always_running, _measure_batch, _propose_batch)

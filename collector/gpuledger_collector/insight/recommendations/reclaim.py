"""Reclaim what is not used: idle, never used and left-behind holdings, and capacity that was never
held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.counterfactual import PERMILLE, UsageChange
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendations.evidence import (
    MIN_KNOWN,
    Holding,
    IntervalUsage,
    Window,
    require_observed,
    require_unprotected,
)
from gpuledger_collector.insight.recommendations.proposals import Estimate, Proposal
from gpuledger_collector.insight.recommendations.signature import (
    Judged,
    Signature,
    measure_subjects,
)

STATES = ("never_used", "gone_idle", "zombie")
SLOW_MS = DAY_MS
"""The low estimate assumes a reaction a day after the flag, the expected one at the flag, the high
one at its begin.
"""
MIN_IDLE_HOURS = 2.0
SAFE_SHARE = 0.05
"""Free accelerators count as never needed when as many were free in all but this share of the
hours.
"""

IdleRun = tuple[Holding, Sequence[Finding]]


def reclaim_held(window: Window) -> Judged:
    """Propose to give back idle holdings; runs of one name and team are one proposal, since they
    recur.
    """
    runs, gaps = measure_subjects("reclaim", window, _idle_holdings(window), _idle_findings)
    by_series: dict[str, list[IdleRun]] = defaultdict(list)
    for run in runs:
        by_series[_series_name(run[0])].append(run)
    proposals = (
        _propose_reclaim(window, name, of_series) for name, of_series in sorted(by_series.items())
    )
    return [proposal for proposal in proposals if proposal is not None], gaps


def _idle_holdings(window: Window) -> Iterator[tuple[str, Holding]]:
    return (
        (holding.key, holding) for holding in window.holdings if window.findings_of(holding, STATES)
    )


def _idle_findings(window: Window, holding: Holding) -> list[Finding]:
    findings = window.findings_of(holding, STATES)
    require_unprotected(holding)
    seen = min(window.accelerators[finding.accelerator_id or 0].seen for finding in findings)
    require_observed(min(seen, holding.known_share), "its activity")
    return findings


def _series_name(holding: Holding) -> str:
    """Pool, model, team and name, which runs of one series share; the key for a workload without a
    name of its own.
    """
    if holding.key.endswith(f":{holding.name}"):
        return f"{holding.key}/{holding.model}"
    return f"{holding.pool}/{holding.model}/{holding.owner.get('team', '')}/{holding.name}"


def _propose_reclaim(window: Window, subject: str, runs: Sequence[IdleRun]) -> Proposal | None:
    findings = [finding for _, of_run in runs for finding in of_run]
    begins = (
        # Low, expected and high differ only in how soon somebody reacts.
        {finding.key: finding.opened_ms + SLOW_MS for finding in findings},
        {finding.key: finding.opened_ms for finding in findings},
        {finding.key: finding.since_ms for finding in findings},
    )
    low, expected, high = (
        _sum_estimates(
            [_wasted_changes(window, holding, of_run, begin) for holding, of_run in runs]
        )
        for begin in begins
    )
    hours = sum(finding.until_ms - finding.since_ms for finding in findings) / HOUR_MS
    if not high.changes or hours < MIN_IDLE_HOURS:
        return None
    accelerators = {finding.subject for finding in findings}
    states = sorted({finding.state for finding in findings})
    first = runs[0][0]
    named = (
        {}
        if subject.startswith(first.key)
        else {"name": first.name, "team": first.owner.get("team", "")}
    )
    count = "GPU" if len(accelerators) == 1 else f"{len(accelerators)} GPUs"
    text = (
        f"give back the {count} of {first.name}: {' and '.join(states).replace('_', ' ')} for"
        f" {hours:.0f} GPU-hours"
    )
    return Proposal(
        kind="reclaim",
        subject=subject,
        text=text if len(runs) == 1 else f"{text} in {len(runs)} runs",
        low=low,
        expected=expected,
        high=high,
        owner=first.owner,
        scope={
            "workload_ids": [holding.workload_id for holding, _ in runs],
            "measure": "idle",
            **named,
        },
        evidence={
            "states": states,
            "accelerators": sorted(accelerators),
            "findings": sorted(finding.key for finding in findings),
            "workloads": [holding.key for holding, _ in runs],
            "idle_hours": round(hours, 2),
            "confidence": round(min(finding.confidence for finding in findings), 3),
            "seen": round(min(holding.known_share for holding, _ in runs), 4),
            "guards": (
                f"observed at least {MIN_KNOWN:.0%}; no tag keeps it; windows and exemptions of the"
                " idle search"
            ),
        },
    )


def _sum_estimates(parts: Sequence[Estimate]) -> Estimate:
    """Join the estimates of several runs; energy only where every run with changes has it."""
    energies = [part.kwh for part in parts if part.kwh is not None]
    complete = energies and len(energies) == sum(bool(part.changes) for part in parts)
    return Estimate(
        [change for part in parts for change in part.changes],
        kwh=sum(energies) if complete else None,
    )


def _wasted_changes(
    window: Window, holding: Holding, findings: Sequence[Finding], begin_ms: dict[str, int]
) -> Estimate:
    """Wasted time from each finding's begin on, as changes; energy at the power that was read
    meanwhile.
    """
    held_ms = {
        (interval.accelerator_id, interval.at_ms): interval.held_ms for interval in holding.usage
    }
    changes = []
    joules = 0.0
    known = True
    for finding in findings:
        watts = finding.evidence.get("power_watts")
        known &= watts is not None
        accelerator_id = finding.accelerator_id or 0
        for at, wasted_ns in finding.evidence["wasted_gpu_ns"].items():
            held = (
                held_ms.get((accelerator_id, int(at)), 0)
                * window.accelerators[accelerator_id].gpu_micro
            )
            # Only time that was held in the window: findings may have begun before it.
            if not held or int(at) < max(begin_ms[finding.key], window.start_ms):
                continue
            permille = min(PERMILLE, wasted_ns * PERMILLE // held)
            changes.append(UsageChange(accelerator_id, holding.workload_id, int(at), permille))
            joules += (watts or 0.0) * wasted_ns / 1e9
    return Estimate(changes, kwh=joules / 3.6e6 if known and changes else None)


@dataclass(frozen=True)
class _FreeCapacity:
    """Free time by hour, and how many accelerators were free in each, ascending."""

    hours: Sequence[Sequence[IntervalUsage]]
    counts: Sequence[int]
    seen: float
    total: int
    """Accelerators of the window."""

    @property
    def safe(self) -> int:
        """Accelerators that were free in nearly every hour."""
        # Counts ascend: below this place lie the few hours in which less was free.
        return self.counts[int(len(self.counts) * SAFE_SHARE)]


def _free_capacity(window: Window, free: Holding) -> _FreeCapacity:
    seen = window.observed_share(free.pool, free.model)
    require_observed(seen)
    by_hour: dict[int, list[IntervalUsage]] = defaultdict(list)
    for interval in free.usage:
        by_hour[interval.at_ms // HOUR_MS].append(interval)
    hours = range(window.start_ms // HOUR_MS, window.end_ms // HOUR_MS)
    # Rounded down: three GPUs that were free for 20 minutes each are one free GPU at most.
    counts = sorted(
        sum(interval.held_ms for interval in by_hour.get(hour, ())) // HOUR_MS for hour in hours
    )
    return _FreeCapacity(list(by_hour.values()), counts, seen, len(window.accelerators))


def _propose_release(free: Holding, capacity: _FreeCapacity) -> Proposal | None:
    safe, always = capacity.safe, capacity.counts[0]
    if not safe:
        return None
    share = f"{1 - SAFE_SHARE:.0%}"
    return Proposal(
        kind="reclaim",
        subject=f"free/{free.pool}/{free.model}",
        text=(
            f"give up {safe} of the {free.model} of pool {free.pool}: at least as many were free in"
            f" {share} of hours"
        ),
        low=Estimate(_release(capacity.hours, always)),
        expected=Estimate(_release(capacity.hours, safe)),
        high=Estimate(_release(capacity.hours, capacity.total)),
        scope={"pool": free.pool, "model": free.model, "state": "unallocated"},
        evidence={
            "gpus": safe,
            "free_always": always,
            "free_mean": round(sum(capacity.counts) / len(capacity.counts), 2),
            "hours": len(capacity.counts),
            "seen": round(capacity.seen, 4),
            "guards": "high: every free hour, as if capacity followed demand at once",
        },
    )


def _release(hours: Iterable[Sequence[IntervalUsage]], gpus: int) -> list[UsageChange]:
    """Changes that give back as many GPUs of the free time of each hour, the longest free ones
    first.
    """
    changes = []
    for intervals in hours:
        left_ms = gpus * HOUR_MS
        for interval in sorted(
            intervals, key=lambda free: (-free.held_ms, free.accelerator_id, free.at_ms)
        ):
            part_ms = min(left_ms, interval.held_ms)
            if part_ms:
                permille = part_ms * PERMILLE // interval.held_ms
                changes.append(UsageChange(interval.accelerator_id, None, interval.at_ms, permille))
            left_ms -= part_ms
    return changes


reclaim_free = Signature(
    "reclaim",
    lambda window: (
        (f"free/{pool}/{model}", free) for (pool, model), free in sorted(window.free.items())
    ),
    _free_capacity,
    _propose_release,
)

"""Give back what does nothing: idle, never used and left-behind holdings, and capacity that nobody ever held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuledger_collector.accounting.counterfactual import PERMILLE, Change
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendations.advice import Advice, Estimate, Found, NotEvaluated
from gpuledger_collector.insight.recommendations.evidence import LEAST_KNOWN, Atom, Holding, Window

STATES = ("never_used", "gone_idle", "zombie")
SLOW_MS = DAY_MS
"""The low estimate: somebody acts a day after the flag; the expected one: at the flag; the high one: at its begin."""
LEAST_HOURS = 2.0
SAFE_SHARE = 0.05
"""Free accelerators count as never needed when so many were free in all but this part of the hours."""


def reclaim_held(window: Window) -> Found:
    """Advice for each workload that the idle search named."""
    by_workload: dict[int | None, list[Finding]] = defaultdict(list)
    for finding in window.findings:
        if finding.state in STATES and finding.accelerator_id in window.places:
            by_workload[finding.workload_id].append(finding)
    advice: list[Advice] = []
    gaps: list[NotEvaluated] = []
    held = {(one.workload_id, one.pool, one.model): one for one in window.holdings}
    for workload_id, findings in by_workload.items():
        if workload_id is None:
            continue
        kinds = {(window.places[one.accelerator_id].pool, window.places[one.accelerator_id].model)
                 for one in findings if one.accelerator_id is not None}  # fmt: skip
        for pool, model in sorted(kinds):
            holding = held.get((workload_id, pool, model))
            if holding is None:
                continue
            mine = [one for one in findings if _stands(window, one, pool, model)]
            reason = _held_back(window, holding, mine)
            if reason is not None:
                gaps.append(NotEvaluated("reclaim", holding.key, reason))
                continue
            made = _reclaim(window, holding, mine)
            if made is not None:
                advice.append(made)
    return advice, gaps


def _stands(window: Window, finding: Finding, pool: str, model: str) -> bool:
    place = window.places[finding.accelerator_id or 0]
    return (place.pool, place.model) == (pool, model)


def _held_back(window: Window, holding: Holding, findings: Sequence[Finding]) -> str | None:
    """Why this holding is left alone, None when nothing speaks against advice."""
    if holding.protected_by is not None:
        return f"its tag {holding.protected_by} says that it is to stay"
    seen = min(window.places[one.accelerator_id or 0].seen for one in findings)
    known = min(seen, holding.known_share)
    if known < LEAST_KNOWN:
        return f"only {known:.1%} of its time was seen, {LEAST_KNOWN:.0%} is needed"
    return None


def _reclaim(window: Window, holding: Holding, findings: Sequence[Finding]) -> Advice | None:
    held = {(atom.accelerator_id, atom.at_ms): atom.held_ms for atom in holding.atoms}
    since = (
        {one.key: one.opened_ms + SLOW_MS for one in findings},
        {one.key: one.opened_ms for one in findings},
        {one.key: one.since_ms for one in findings},
    )
    low, expected, high = (_wasted(window, holding.workload_id, findings, held, begin) for begin in since)
    hours = sum(one.until_ms - one.since_ms for one in findings) / HOUR_MS
    if not high.changes or hours < LEAST_HOURS:
        return None
    cards = {one.subject for one in findings}
    states = sorted({one.state for one in findings})
    return Advice(
        kind="reclaim",
        subject=holding.key,
        text=f"give back the {_count(len(cards))} of {holding.name}: {' and '.join(states).replace('_', ' ')} for "
        f"{hours:.0f} GPU-hours",
        low=low,
        expected=expected,
        high=high,
        owner=holding.owner,
        scope={"workload_id": holding.workload_id, "measure": "idle"},
        evidence={
            "states": states, "accelerators": sorted(cards), "findings": sorted(one.key for one in findings),
            "idle_hours": round(hours, 2), "confidence": round(min(one.confidence for one in findings), 3),
            "seen": round(holding.known_share, 4),
            "guards": f"seen at least {LEAST_KNOWN:.0%}; no tag keeps it; idle search held its windows and exemptions",
        },
    )  # fmt: skip


def _count(cards: int) -> str:
    return "GPU" if cards == 1 else f"{cards} GPUs"


def _wasted(
    window: Window,
    workload_id: int | None,
    findings: Sequence[Finding],
    held: dict[tuple[int, int], int],
    since: dict[str, int],
) -> Estimate:
    """What is wasted from each finding's instant on, as changes; energy at the power that was read meanwhile."""
    changes = []
    joules = 0.0
    known = True
    for one in findings:
        watts = one.evidence.get("power_watts")
        known &= watts is not None
        for at, wasted_ns in one.evidence["wasted_gpu_ns"].items():
            card = one.accelerator_id or 0
            mine = held.get((card, int(at)), 0) * window.places[card].gpu_micro
            if not mine or int(at) < max(since[one.key], window.start_ms):
                continue
            changes.append(Change(card, workload_id, int(at), min(PERMILLE, wasted_ns * PERMILLE // mine)))
            joules += (watts or 0.0) * wasted_ns / 1e9
    return Estimate(changes, kwh=joules / 3.6e6 if known and changes else None)


def reclaim_free(window: Window) -> Found:
    """Advice for accelerators that nobody held in nearly every hour of the window."""
    advice: list[Advice] = []
    gaps: list[NotEvaluated] = []
    for (pool, model), free in sorted(window.free.items()):
        subject = f"free/{pool}/{model}"
        seen = [place.seen for place in window.places.values() if (place.pool, place.model) == (pool, model)]
        if min(seen, default=0.0) < LEAST_KNOWN:
            reason = f"only {min(seen, default=0.0):.1%} of the time of some GPU was seen, {LEAST_KNOWN:.0%} is needed"
            gaps.append(NotEvaluated("reclaim", subject, reason))
            continue
        by_hour: dict[int, list[Atom]] = defaultdict(list)
        for atom in free.atoms:
            by_hour[atom.at_ms // HOUR_MS].append(atom)
        hours = range(window.start_ms // HOUR_MS, window.end_ms // HOUR_MS)
        counts = sorted(sum(atom.held_ms for atom in by_hour.get(hour, ())) // HOUR_MS for hour in hours)
        safe, least = counts[int(len(counts) * SAFE_SHARE)], counts[0]
        if not safe:
            continue
        advice.append(
            Advice(
                kind="reclaim",
                subject=subject,
                text=f"give up {safe} of the {model} of pool {pool}: in {1 - SAFE_SHARE:.0%} of the hours "
                "nobody held so many",
                low=Estimate(_up_to(by_hour.values(), least)),
                expected=Estimate(_up_to(by_hour.values(), safe)),
                high=Estimate(_up_to(by_hour.values(), len(window.places))),
                scope={"pool": pool, "model": model, "state": "unallocated"},
                evidence={"gpus": safe, "free_always": least, "free_mean": round(sum(counts) / len(counts), 2),
                          "hours": len(counts), "seen": round(min(seen), 4),
                          "guards": "high: every free hour, as if capacity followed demand at once"},
            )
        )  # fmt: skip
    return advice, gaps


def _up_to(hours: Iterable[Sequence[Atom]], gpus: int) -> list[Change]:
    """Changes that give back so many GPUs of the free time of each hour."""
    changes = []
    for atoms in hours:
        left = gpus * HOUR_MS
        for atom in sorted(atoms, key=lambda atom: (-atom.held_ms, atom.accelerator_id, atom.at_ms)):
            part = min(left, atom.held_ms)
            if part and atom.held_ms:
                changes.append(Change(atom.accelerator_id, None, atom.at_ms, part * PERMILLE // atom.held_ms))
            left -= part
    return changes

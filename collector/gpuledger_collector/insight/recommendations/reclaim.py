"""Give back what does nothing: idle, never used and left-behind holdings, and capacity that nobody ever held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuledger_collector.accounting.counterfactual import PERMILLE, Change
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendations.advice import Estimate, Found, NotEvaluated, Proposal
from gpuledger_collector.insight.recommendations.evidence import MIN_KNOWN, Holding, IntervalUsage, Window

STATES = ("never_used", "gone_idle", "zombie")
SLOW_MS = DAY_MS
"""The low estimate: somebody acts a day after the flag; the expected one: at the flag; the high one: at its begin."""
LEAST_HOURS = 2.0
SAFE_SHARE = 0.05
"""Free accelerators count as never needed when so many were free in all but this part of the hours."""


def reclaim_held(window: Window) -> Found:
    """Advice for what the idle search named: runs of one name and team together, since they come again."""
    found: dict[tuple[int | None, str, str], list[Finding]] = defaultdict(list)
    for finding in window.findings:
        place = window.places.get(finding.accelerator_id or 0)
        if finding.state in STATES and place is not None and finding.workload_id is not None:
            found[finding.workload_id, place.pool, place.model].append(finding)
    series: dict[str, list[tuple[Holding, list[Finding]]]] = defaultdict(list)
    gaps: list[NotEvaluated] = []
    for holding in window.holdings:
        findings = found.get((holding.workload_id, holding.pool, holding.model))
        if not findings:
            continue
        reason = _held_back(window, holding, findings)
        if reason is not None:
            gaps.append(NotEvaluated("reclaim", holding.key, reason))
        else:
            series[_series(holding)].append((holding, findings))
    made = (_reclaim(window, subject, runs) for subject, runs in sorted(series.items()))
    return [one for one in made if one is not None], gaps


def _series(holding: Holding) -> str:
    """What runs of it have in common: pool, model, team and name; itself where it has no name of its own."""
    if holding.key.endswith(f":{holding.name}"):
        return f"{holding.key}/{holding.model}"
    return f"{holding.pool}/{holding.model}/{holding.owner.get('team', '')}/{holding.name}"


def _held_back(window: Window, holding: Holding, findings: Sequence[Finding]) -> str | None:
    """Why this holding is left alone, None when nothing speaks against advice."""
    if holding.protected_by is not None:
        return f"its tag {holding.protected_by} says that it is to stay"
    seen = min(window.places[one.accelerator_id or 0].seen for one in findings)
    known = min(seen, holding.known_share)
    if known < MIN_KNOWN:
        return f"only {known:.1%} of its time was seen, {MIN_KNOWN:.0%} is needed"
    return None


def _reclaim(window: Window, subject: str, runs: Sequence[tuple[Holding, Sequence[Finding]]]) -> Proposal | None:
    findings = [one for _, of in runs for one in of]
    since = (
        {one.key: one.opened_ms + SLOW_MS for one in findings},
        {one.key: one.opened_ms for one in findings},
        {one.key: one.since_ms for one in findings},
    )
    low, expected, high = (_together([_wasted(window, holding, of, begin) for holding, of in runs]) for begin in since)
    hours = sum(one.until_ms - one.since_ms for one in findings) / HOUR_MS
    if not high.changes or hours < LEAST_HOURS:
        return None
    cards = {one.subject for one in findings}
    states = sorted({one.state for one in findings})
    first = runs[0][0]
    ids = [holding.workload_id for holding, _ in runs]
    named = {} if subject.startswith(first.key) else {"name": first.name, "team": first.owner.get("team", "")}
    often = "" if len(runs) == 1 else f" in {len(runs)} runs"
    return Proposal(
        kind="reclaim",
        subject=subject,
        text=f"give back the {_count(len(cards))} of {first.name}: {' and '.join(states).replace('_', ' ')} for "
        f"{hours:.0f} GPU-hours{often}",
        low=low,
        expected=expected,
        high=high,
        owner=first.owner,
        scope={"workload_ids": ids, "measure": "idle", **named},
        evidence={
            "states": states,
            "accelerators": sorted(cards),
            "findings": sorted(one.key for one in findings),
            "workloads": [holding.key for holding, _ in runs],
            "idle_hours": round(hours, 2),
            "confidence": round(min(one.confidence for one in findings), 3),
            "seen": round(min(holding.known_share for holding, _ in runs), 4),
            "guards": f"seen at least {MIN_KNOWN:.0%}; no tag keeps it; idle search held its windows and exemptions",
        },
    )


def _together(parts: Sequence[Estimate]) -> Estimate:
    """Estimates of several runs as one; energy only where it is known of each."""
    energies = [part.kwh for part in parts if part.kwh is not None]
    whole = len(energies) == sum(bool(part.changes) for part in parts) and energies
    return Estimate([change for part in parts for change in part.changes], kwh=sum(energies) if whole else None)


def _count(cards: int) -> str:
    return "GPU" if cards == 1 else f"{cards} GPUs"


def _wasted(window: Window, holding: Holding, findings: Sequence[Finding], since: dict[str, int]) -> Estimate:
    """What is wasted from each finding's instant on, as changes; energy at the power that was read meanwhile."""
    held = {
        (rating_interval.accelerator_id, rating_interval.at_ms): rating_interval.held_ms
        for rating_interval in holding.rating_intervals
    }
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
            changes.append(Change(card, holding.workload_id, int(at), min(PERMILLE, wasted_ns * PERMILLE // mine)))
            joules += (watts or 0.0) * wasted_ns / 1e9
    return Estimate(changes, kwh=joules / 3.6e6 if known and changes else None)


def reclaim_free(window: Window) -> Found:
    """Advice for accelerators that nobody held in nearly every hour of the window."""
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    for (pool, model), free in sorted(window.free.items()):
        subject = f"free/{pool}/{model}"
        seen = [place.seen for place in window.places.values() if (place.pool, place.model) == (pool, model)]
        if min(seen, default=0.0) < MIN_KNOWN:
            reason = f"only {min(seen, default=0.0):.1%} of the time of some GPU was seen, {MIN_KNOWN:.0%} is needed"
            gaps.append(NotEvaluated("reclaim", subject, reason))
            continue
        by_hour: dict[int, list[IntervalUsage]] = defaultdict(list)
        for rating_interval in free.rating_intervals:
            by_hour[rating_interval.at_ms // HOUR_MS].append(rating_interval)
        hours = range(window.start_ms // HOUR_MS, window.end_ms // HOUR_MS)
        counts = sorted(
            sum(rating_interval.held_ms for rating_interval in by_hour.get(hour, ())) // HOUR_MS for hour in hours
        )
        safe, least = counts[int(len(counts) * SAFE_SHARE)], counts[0]
        if not safe:
            continue
        advice.append(
            Proposal(
                kind="reclaim",
                subject=subject,
                text=f"give up {safe} of the {model} of pool {pool}: in {1 - SAFE_SHARE:.0%} of the hours "
                "nobody held so many",
                low=Estimate(_up_to(by_hour.values(), least)),
                expected=Estimate(_up_to(by_hour.values(), safe)),
                high=Estimate(_up_to(by_hour.values(), len(window.places))),
                scope={"pool": pool, "model": model, "state": "unallocated"},
                evidence={
                    "gpus": safe,
                    "free_always": least,
                    "free_mean": round(sum(counts) / len(counts), 2),
                    "hours": len(counts),
                    "seen": round(min(seen), 4),
                    "guards": "high: every free hour, as if capacity followed demand at once",
                },
            )
        )
    return advice, gaps


def _up_to(hours: Iterable[Sequence[IntervalUsage]], gpus: int) -> list[Change]:
    """Changes that give back so many GPUs of the free time of each hour."""
    changes = []
    for rating_intervals in hours:
        left = gpus * HOUR_MS
        for rating_interval in sorted(
            rating_intervals,
            key=lambda rating_interval: (
                -rating_interval.held_ms,
                rating_interval.accelerator_id,
                rating_interval.at_ms,
            ),
        ):
            part = min(left, rating_interval.held_ms)
            if part and rating_interval.held_ms:
                changes.append(
                    Change(
                        rating_interval.accelerator_id,
                        None,
                        rating_interval.at_ms,
                        part * PERMILLE // rating_interval.held_ms,
                    )
                )
            left -= part
    return changes

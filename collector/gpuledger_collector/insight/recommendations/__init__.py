"""Recommendations: pure signatures over the measured evidence of a window, each with its guards.

A signature says what an advice would have changed; what that is worth is the difference of two ledgers, and that is
accounting (accounting.counterfactual).
"""

from collections.abc import Iterable

from gpuledger_collector.insight.recommendations.advice import KINDS, Estimate, NotEvaluated, Proposal
from gpuledger_collector.insight.recommendations.buying import reserve, spot
from gpuledger_collector.insight.recommendations.evidence import (
    Holding,
    IntervalUsage,
    ObservedAccelerator,
    ReadingStats,
    Window,
)
from gpuledger_collector.insight.recommendations.reclaim import reclaim_free, reclaim_held
from gpuledger_collector.insight.recommendations.running import batch_size, input_pipeline, off_hours, power_cap
from gpuledger_collector.insight.recommendations.sizing import mig_slice, pack, right_size

SIGNATURES = (
    reclaim_held,
    reclaim_free,
    right_size,
    mig_slice,
    pack,
    spot,
    reserve,
    off_hours,
    power_cap,
    input_pipeline,
    batch_size,
)

__all__ = [
    "KINDS",
    "Estimate",
    "Holding",
    "IntervalUsage",
    "NotEvaluated",
    "ObservedAccelerator",
    "Proposal",
    "ReadingStats",
    "Window",
    "propose",
]


def propose(window: Window) -> tuple[list[Proposal], list[NotEvaluated]]:
    """Everything that the evidence supports, and everything that could not be judged, each with its reason."""
    advice: list[Proposal] = []
    gaps: list[NotEvaluated] = []
    for signature in SIGNATURES:
        more, missing = signature(window)
        advice += more
        gaps += missing
    if window.imported:
        reason = f"{window.imported} workloads are known only as counts of GPUs: nobody measured what they did"
        gaps.append(NotEvaluated("all", "imported usage", reason))
    return advice, together(gaps)


def together(gaps: Iterable[NotEvaluated]) -> list[NotEvaluated]:
    """Once for each subject and reason, with every kind that it kept from judging."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        kinds.setdefault((gap.subject, gap.reason), []).append(gap.kind)
    return [NotEvaluated(", ".join(of), subject, reason) for (subject, reason), of in kinds.items()]

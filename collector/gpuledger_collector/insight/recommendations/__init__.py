"""Recommendations: pure signatures over the measured evidence of a window.

A signature proposes a change to the usage of the window (its stages: signature.py). The money it is
worth is the difference of two ledgers, computed by accounting.counterfactual.
"""

from gpuledger_collector.insight.recommendations.buying import reserve, spot
from gpuledger_collector.insight.recommendations.evidence import (
    Holding,
    IntervalUsage,
    ObservedAccelerator,
    ReadingStats,
    Window,
)
from gpuledger_collector.insight.recommendations.proposals import (
    KINDS,
    Estimate,
    NotEvaluated,
    Proposal,
)
from gpuledger_collector.insight.recommendations.reclaim import reclaim_free, reclaim_held
from gpuledger_collector.insight.recommendations.running import (
    batch_size,
    input_pipeline,
    off_hours,
    power_cap,
)
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
    """Return every proposal that the evidence supports, and every subject that could not be judged
    with its reason.
    """
    proposals: list[Proposal] = []
    kinds: dict[tuple[str, str], list[str]] = {}
    for signature in SIGNATURES:
        supported, gaps = signature(window)
        proposals += supported
        for gap in gaps:
            kinds.setdefault((gap.subject, gap.reason), []).append(gap.kind)
    if window.imported:
        reason = (
            f"{window.imported} workloads are imported as counts of GPUs, without any measurement"
        )
        kinds["imported usage", reason] = ["all"]
    return proposals, [
        NotEvaluated(", ".join(of), subject, reason) for (subject, reason), of in kinds.items()
    ]

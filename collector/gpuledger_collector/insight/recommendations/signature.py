"""The stages of a signature, the same for every kind of recommendation.

`eligible` lists the subjects that may get the recommendation. `evidence` returns what was measured
of a subject, None where the recommendation does not apply, or raises InsufficientEvidence with the
reason why it cannot be judged. `estimate` turns the evidence into a proposal, or None where nothing
is to be gained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuledger_collector.accounting.counterfactual import UsageChange
from gpuledger_collector.insight.recommendations.evidence import (
    Holding,
    InsufficientEvidence,
    IntervalUsage,
    Window,
)
from gpuledger_collector.insight.recommendations.proposals import Estimate, NotEvaluated, Proposal

Subject = TypeVar("Subject")
Measured = TypeVar("Measured")
Judged = tuple[list[Proposal], list[NotEvaluated]]


@dataclass(frozen=True)
class Signature(Generic[Subject, Measured]):
    """Calling a signature applies its three stages to every eligible subject of a window."""

    kind: str
    eligible: Callable[[Window], Iterable[tuple[str, Subject]]]
    evidence: Callable[[Window, Subject], Measured | None]
    estimate: Callable[[Subject, Measured], Proposal | None]

    def __call__(self, window: Window) -> Judged:
        """Return the proposals, and the subjects that could not be judged."""
        measured, gaps = measure_subjects(self.kind, window, self.eligible(window), self.evidence)
        proposals = [self.estimate(subject, evidence) for subject, evidence in measured]
        return [proposal for proposal in proposals if proposal is not None], gaps


def measure_subjects(
    kind: str,
    window: Window,
    eligible: Iterable[tuple[str, Subject]],
    evidence: Callable[[Window, Subject], Measured | None],
) -> tuple[list[tuple[Subject, Measured]], list[NotEvaluated]]:
    """Return the subjects with their evidence, and those that could not be judged."""
    measured: list[tuple[Subject, Measured]] = []
    gaps: list[NotEvaluated] = []
    for name, subject in eligible:
        try:
            facts = evidence(window, subject)
        except InsufficientEvidence as reason:
            gaps.append(NotEvaluated(kind, name, str(reason)))
        else:
            if facts is not None:
                measured.append((subject, facts))
    return measured, gaps


def spare_time(holding: Holding, usages: Iterable[IntervalUsage], permille: int) -> Estimate:
    """Estimate that sets this part of the holding's time in these intervals free for others."""
    return Estimate(
        [UsageChange(u.accelerator_id, holding.workload_id, u.at_ms, 0, permille) for u in usages]
    )


def holding_proposal(
    kind: str,
    holding: Holding,
    text: str,
    estimates: Sequence[Estimate],
    evidence: dict[str, object],
) -> Proposal:
    """Proposal about one workload; `estimates` are low, expected and high."""
    low, expected, high = estimates
    scope = {"workload_id": holding.workload_id}
    return Proposal(kind, holding.key, text, low, expected, high, holding.owner, scope, evidence)

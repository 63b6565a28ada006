"""Results of the signatures: proposals with the changes they would have made, and subjects that
could not be judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.counterfactual import GpuReservation, UsageChange

KINDS = (
    "reclaim",
    "right_size",
    "mig_slice",
    "pack",
    "spot",
    "reserve",
    "off_hours",
    "power_cap",
    "input_pipeline",
    "batch_size",
)


@dataclass(frozen=True)
class Estimate:
    """One end, or the middle, of an estimate: changes to the window's usage, and kWh where power
    was measured.
    """

    changes: Sequence[UsageChange] = ()
    reservation: GpuReservation | None = None
    kwh: float | None = None


NOTHING = Estimate()


@dataclass(frozen=True)
class Proposal:
    """A proposed change.

    `scope` selects the charges by which its saving is measured once it is accepted.
    """

    kind: str
    subject: str
    text: str
    low: Estimate
    expected: Estimate
    high: Estimate
    owner: Mapping[str, str] = field(default_factory=dict)
    scope: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Kind and subject: identifies the same proposal in a later run."""
        return f"{self.kind}:{self.subject}"


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """A subject that could not be judged, and why."""

    kind: str
    subject: str
    reason: str

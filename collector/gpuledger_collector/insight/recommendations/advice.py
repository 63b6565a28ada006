"""What the signatures give: advice with what it would have changed, and what could not be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.counterfactual import Change, Reservation

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
    """Low, expected or high: the changes to the window's usage, and kilowatt-hours where power was measured."""

    changes: Sequence[Change] = ()
    reservation: Reservation | None = None
    kwh: float | None = None


NOTHING = Estimate()


@dataclass(frozen=True)
class Proposal:
    """One thing to do. `scope` names the charges that show later what it brought."""

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
        """Kind and subject: the same advice again is the same."""
        return f"{self.kind}:{self.subject}"


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """What could not be judged, and why."""

    kind: str
    subject: str
    reason: str


Found = tuple[list[Proposal], list[NotEvaluated]]
"""What a signature gives."""

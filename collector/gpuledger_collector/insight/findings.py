"""Findings, and the usage that the searches for them read: plain values, shared by jobs and storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AT_LISTED_RATES = "of GPU-time at the rates of the price book, without node costs, commitments and adjustments"
"""What amounts of unusual spending are: it is found before its hours are rated."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should see. `resolved_ms` None: ongoing; amounts are micro-units, None: unpriced."""

    key: str
    kind: str
    state: str
    subject: str
    accelerator_id: int | None
    workload_id: int | None
    team: str
    owner: Mapping[str, str]
    since_ms: int
    opened_ms: int
    until_ms: int
    resolved_ms: int | None
    confidence: float
    currency: str | None
    cost_micro: int | None
    per_day_micro: int | None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacedAccelerator:
    """An accelerator and its place: node, pool and index."""

    accelerator_id: int
    uuid: str
    model: str
    gpu_micro: int
    memory_bytes: int | None
    node: str
    pool: str
    gpu_index: int | None


@dataclass(frozen=True, slots=True)
class WorkloadUsage:
    """Usage of one kind of accelerator on one node by a workload in the rating interval that begins then.

    `longest_ms` is the longest that one accelerator was held in it, `gpu_micro` the sum of the accelerators held.
    """

    rating_interval_ms: int
    workload_id: int
    pool: str
    gpu_model: str
    node: str
    gpu_ns: int
    longest_ms: int = 0
    gpu_micro: int = 0
    busy_ms: int = 0
    idle_ms: int = 0


@dataclass(frozen=True, slots=True)
class RecentHolding:
    """Time that a workload held an accelerator in each of several consecutive windows, ms by window.

    `since_ms` is the begin of the earliest evidence of it that touches the windows.
    """

    accelerator_id: int
    workload_id: int
    pool: str
    gpu_model: str
    node: str
    gpu_micro: int
    since_ms: int
    held_ms: tuple[int, ...]


def is_free(finding: Mapping[str, Any]) -> bool:
    """Whether nobody holds what a finding is about: then it is in no owner's part, and not usage of one unknown."""
    return finding["state"] == "unallocated" and not finding["team"]

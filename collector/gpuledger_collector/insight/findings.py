"""Findings, and what the searches for them look at: plain values, the same for jobs and for storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should see. Instants are unix ms, amounts micro-units; None: unpriced, or going on."""

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
    """An accelerator and where it stands."""

    accelerator_id: int
    uuid: str
    model: str
    gpu_micro: int
    memory_bytes: int | None
    node: str
    pool: str
    gpu_index: int | None


@dataclass(frozen=True, slots=True)
class StateInterval:
    """A usage interval of evidence: a state, and a workload where it was held."""

    accelerator_id: int
    workload_id: int | None
    state: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class WorkloadUsage:
    """What a workload held of one kind of accelerator in one place from an rating interval of an hour on."""

    rating_interval_ms: int
    workload_id: int
    pool: str
    gpu_model: str
    node: str
    gpu_ns: int
    longest_ms: int = 0
    """The most that one accelerator was held by it in the rating interval."""
    gpu_micro: int = 0
    """Of the accelerators that it held in the rating interval, together."""
    busy_ms: int = 0
    idle_ms: int = 0


@dataclass(frozen=True, slots=True)
class RecentHolding:
    """How long a workload held an accelerator in each of some windows that follow each other, ms by window."""

    accelerator_id: int
    workload_id: int
    pool: str
    gpu_model: str
    node: str
    gpu_micro: int
    since_ms: int
    """Begin of the earliest evidence of it that touches the windows."""
    held_ms: tuple[int, ...]

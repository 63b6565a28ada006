"""What waits for GPUs, as a scheduler told it: the words that intake and storage share. No part of any bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One workload that waits for `gpu_micro` millionths of a GPU since `submitted_ms`; empty texts: not known."""

    workload_id: str
    gpu_micro: int
    pool: str = ""
    gpu_model: str = ""
    team: str = ""
    user: str = ""
    account: str = ""
    submitted_ms: int | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A source's whole queue at an instant; without any row nothing waited."""

    source: str
    at_ms: int
    waiting: Sequence[WaitingRow] = ()

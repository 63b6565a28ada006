"""Queue readings as schedulers report them, for intake and storage; they are no part of a bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A workload that has waited for `gpu_micro` millionths of a GPU since `submitted_ms`; empty
    text: unknown.
    """

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
    """The whole queue of a source at an instant; without rows nothing waited."""

    source: str
    at_ms: int
    waiting: Sequence[WaitingRow] = ()

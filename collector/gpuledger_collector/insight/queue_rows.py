"""Queue readings as schedulers report them, for intake and storage; they are no part of a bill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS

QUEUE_VALID_MS = HOUR_MS
"""A reading of a queue is valid this long."""
QUEUE_EXPIRED_MS = DAY_MS
"""A queue that was not read for this long is no longer part of demand: its reader was removed."""


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

    def sums_json(self) -> str:
        """What is stored of the waiting workloads: their sums by owner and place, as JSON."""
        return json.dumps(self._sums())

    def _sums(self) -> list[dict[str, object]]:
        sums: dict[tuple[str, ...], list[int]] = {}
        oldest: dict[tuple[str, ...], int | None] = {}
        for item in self.waiting:
            key = (item.pool, item.gpu_model, item.team, item.user, item.account)
            entry = sums.setdefault(key, [0, 0])
            entry[0] += item.gpu_micro
            entry[1] += 1
            known = [at for at in (oldest.get(key), item.submitted_ms) if at is not None]
            oldest[key] = min(known, default=None)
        return [
            {
                "pool": key[0],
                "gpu_model": key[1],
                "team": key[2],
                "user": key[3],
                "account": key[4],
                "gpu_micro": micro,
                "workloads": workloads,
                "oldest_ms": oldest[key],
            }
            for key, (micro, workloads) in sorted(sums.items())
        ]

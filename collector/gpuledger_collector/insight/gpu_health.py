"""How one GPU is now, in a word: what its color on the map means, since when, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger_collector.accounting.gpu_receipt import GpuPart
from gpuledger_collector.insight.fleet_map import DEGRADED, FAILED, OK, SICK
from gpuledger_collector.insight.nodes import is_silent
from gpuledger_common.health import next_step

GONE, SILENT = "gone", "silent"
_RANKS = {FAILED: 0, DEGRADED: 1, OK: 3}
"""The worst first; another word says nothing, as unknown health does."""
_NOTHING_SAID = 2


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """`failed`, `degraded`, `ok` or `unknown` as its reports say; `silent`: its node does not report,
    so nothing is known of now; `gone`: it left the fleet.

    `since_ms` None: not known. `cause`, `part` and `next_step` are of what is not well: the reason,
    which MIG slice (empty: the whole GPU), and what to do about it.
    """

    word: str
    since_ms: int | None
    cause: str = ""
    part: str = ""
    next_step: str = ""


def judge_gpu(parts: Iterable[GpuPart], now_ms: int) -> GpuHealth:
    """Judge a GPU by the worst of its parts that are there now."""
    listed = list(parts)
    present = [part for part in listed if part.out_ms is None]
    if not present:
        return GpuHealth(GONE, max((part.out_ms or 0 for part in listed), default=0) or None)
    silent = [
        part.seen_ms
        for part in present
        if part.seen_ms is not None and is_silent(part.node_status, part.seen_ms, now_ms)
    ]
    if silent:
        return GpuHealth(SILENT, max(silent))
    worst = min(present, key=lambda part: (_RANKS.get(part.health, _NOTHING_SAID), part.uuid))
    is_well = worst.health not in SICK
    return GpuHealth(
        worst.health,
        worst.health_since_ms,
        worst.cause,
        "" if is_well else worst.mig_instance or "",
        "" if is_well else next_step(worst.cause),
    )

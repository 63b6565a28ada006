"""When a node counts as silent: one answer for pages, `gpuledger doctor`, boards and alerts."""

from __future__ import annotations

SILENT_MS = 10 * 60_000
"""Time without a sign of life after which a node is silent (docs/runbooks/node-silent.md)."""


def is_silent(seen_ms: int, now_ms: int) -> bool:
    """Whether a node that gave its last sign of life at `seen_ms` is silent."""
    return now_ms - seen_ms > SILENT_MS

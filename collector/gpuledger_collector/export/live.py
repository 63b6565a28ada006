"""What changed, in a sentence for people: `2 GPUs changed hands, node gpu-07 fell silent`."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.export.findings import gpus_and_slices
from gpuledger_collector.insight.live_changes import (
    LiveChanges,
    LiveFinding,
    PresentAccelerator,
)
from gpuledger_common.escapes import escape_text
from gpuledger_common.plurals import plural

NAMED = 2
"""Nodes that are named; of more it is said how many."""
KINDS = {"idle": ("idle GPU", "idle GPUs"), "anomaly": ("anomaly", "anomalies")}


def changes_text(changes: LiveChanges) -> str:
    """The sentence, what needs attention first; empty where nothing changed."""
    parts = [
        _nodes(changes.fell_silent, "fell silent"),
        *_findings(changes.appeared, "new "),
        _accelerators(changes.changed_holder, "changed hands"),
        _accelerators(changes.changed_state, "changed state"),
        _nodes(changes.came_back, "reports again", "report again"),
        _nodes(changes.new_nodes, "is new", "are new"),
        _accelerators(changes.added, "came"),
        _accelerators(changes.removed, "left"),
        *_findings(changes.ended, "", " ended"),
    ]
    return ", ".join(filter(None, parts))


def _accelerators(items: Sequence[PresentAccelerator], verb: str) -> str:
    if not items:
        return ""
    slices = sum(item.is_slice for item in items)
    return f"{gpus_and_slices(len(items) - slices, slices).replace(', ', ' and ')} {verb}"


def _nodes(names: Sequence[str], verb: str, plural_verb: str = "") -> str:
    if not names:
        return ""
    if len(names) > NAMED:
        return f"{plural(len(names), 'node')} {plural_verb or verb}"
    named = " and ".join(map(escape_text, names))
    is_one = len(names) == 1
    return f"node{'' if is_one else 's'} {named} {verb if is_one else plural_verb or verb}"


def _findings(items: Sequence[LiveFinding], before: str, after: str = "") -> list[str]:
    texts = []
    for kind, (one, several) in KINDS.items():
        count = sum(item.kind == kind for item in items)
        if count:
            texts.append(f"{count:,} {before}{one if count == 1 else several}{after}")
    return texts

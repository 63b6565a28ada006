"""Resolution is given up before time, and time never before readings: what is put into batches while they pile up.

A batch's bytes never change once it is spooled; so the choice is made before that, by how full the spool is:

- below an eighth: *together*, one batch with usage intervals and readings;
- from an eighth: *apart*, a batch with the usage intervals and one with the readings, which is dropped first;
- from a half: *thin*, apart, and of each accelerator's readings only one for each minute.

The usage intervals of 8 GPUs are about a kilobyte a minute. Why not thin what waits already: the collector may have
committed it and its answer may be lost; the same time under another number would then be told twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuledger_common.readings import Sample

APART_FROM, THIN_FROM = 1 / 8, 1 / 2
"""Parts of the spool's bound."""
THIN_MS = 60_000

Level = Literal["together", "apart", "thin"]
Rows = Sequence[tuple[int, Sample]]


def level(fill: float) -> Level:
    """What a spool that is so full (0 to 1) asks for."""
    if fill < APART_FROM:
        return "together"
    return "apart" if fill < THIN_FROM else "thin"


def thinned(rows: Rows) -> Rows:
    """Of each accelerator's readings (instant in ms, sample) the fullest of each minute, the later of equals."""
    best: dict[tuple[str, int], tuple[int, Sample]] = {}
    for at_ms, sample in rows:
        key = sample.uuid, at_ms // THIN_MS
        if key not in best or len(sample.values) >= len(best[key][1].values):
            best[key] = at_ms, sample
    return sorted(best.values(), key=lambda row: row[0])

"""Downsampling: which readings go into batches while undelivered batches pile up.

Usage intervals are kept longest, because they are billed; readings lose resolution before any time
is lost. The bytes of a batch never change once it is spooled, so the choice is made before that, by
how full the spool is:

- below an eighth: *together*, one batch with usage intervals and readings;
- from an eighth: *apart*, one batch with the usage intervals and one with the readings, which is
  dropped first;
- from a half: *thin*, apart, and with only one reading per accelerator and minute.

The usage intervals of 8 GPUs are about a kilobyte a minute. Waiting batches are not thinned: the
collector may have committed one whose answer was lost, and the same time under another number would
then be counted twice.
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
"""Samples with their instants in ms."""


def level(fill: float) -> Level:
    """The level for a spool that is filled to this part (0 to 1)."""
    if fill < APART_FROM:
        return "together"
    return "apart" if fill < THIN_FROM else "thin"


def downsample(rows: Rows) -> Rows:
    """The sample with the most readings of each accelerator and minute, the later of equals."""
    best: dict[tuple[str, int], tuple[int, Sample]] = {}
    for at_ms, sample in rows:
        key = sample.uuid, at_ms // THIN_MS
        if key not in best or len(sample.values) >= len(best[key][1].values):
            best[key] = at_ms, sample
    return sorted(best.values(), key=lambda row: row[0])

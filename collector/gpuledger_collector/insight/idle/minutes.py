"""Evidence of accelerators minute by minute: arrays of shape (accelerators, minutes).

An unread value is NaN and never zero: rules that need it do not apply. Between two samples of a
slow sampler the last reading is valid for three sampling intervals; after that nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.series import Flags, Floats

Counts = npt.NDArray[np.int64]

NOBODY = -1
INTERVALS = 3
"""Sampling intervals after which a reading is unknown (the rule of `no_data`)."""


@dataclass(frozen=True)
class Minutes:
    """Minutes of accelerators from `start_ms` (unix).

    Arrays are (accelerators, minutes), the last (accelerators,).
    """

    start_ms: int
    seen: Flags
    """A sample is known for this minute."""
    faulty: Flags
    holder: Counts
    """Number of the workload that holds the accelerator; NOBODY where none does or it is unknown.
    """
    serving: Flags
    """The holder is a warm replica: idle by design."""
    interactive: Flags
    """The holder is a notebook or a shell."""
    utilization: Floats
    sm_active: Floats
    """SM (or graphics engine) activity, 0..1."""
    zero_ratio: Floats
    """Share of the minute's samples at zero utilization, 0..1."""
    dram_active: Floats
    memory_copy: Floats
    memory_bytes: Floats
    power_watts: Floats
    clock_hertz: Floats
    slowed_ratio: Floats
    """Share of the minute's samples with a power-cap, thermal or hardware slowdown bit, 0..1."""
    processes: Floats
    host_busy: Floats
    """CPU use of the holder as a share of its limit, 0..1."""
    bytes_per_second: Floats
    """Disk and network of the holder."""
    memory_total: Floats
    memory_floor: Floats
    """Memory in use without any process."""
    idle_watts: Floats
    limit_watts: Floats
    used_before: Flags | None = None
    """Whether the holder of the first minute had used it before that; None: unknown, taken as not.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Accelerators and minutes."""
        rows, columns = self.seen.shape
        return rows, columns

    def known_before(self, minute: int) -> Minutes:
        """Return what was known before this minute."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        tables = {name: table for name, table in values.items() if np.ndim(table) == 2}
        return replace(self, **{name: table[:, :minute] for name, table in tables.items()})

    def activity(self) -> Floats:
        """SM activity where it is known, else utilization; NaN where neither is."""
        return np.where(np.isfinite(self.sm_active), self.sm_active, self.utilization)


def unknown(shape: tuple[int, int]) -> Floats:
    """Return a table of unread values."""
    return np.full(shape, np.nan)


def carry_samples(sampled: Flags) -> tuple[Flags, Counts]:
    """Return where a sample is known if each is valid for three intervals, and the column to take
    it from.

    `sampled` marks the minutes with a sample. The interval of a row is the median distance of its
    samples so far, at least a minute; nothing is carried backwards.
    """
    rows, columns = sampled.shape
    at = np.broadcast_to(np.arange(columns), (rows, columns))
    last = np.maximum.accumulate(np.where(sampled, at, -1), axis=1)
    reach = np.full((rows, columns), INTERVALS, dtype=np.int64)
    for row in np.flatnonzero(sampled.any(axis=1)):
        places = np.flatnonzero(sampled[row])
        apart = np.diff(places)
        # Rows that are sampled every minute, which is nearly all, need no median.
        if len(apart) and apart.max() > 1:
            reach[row] = INTERVALS * _interval_so_far(places, apart, columns)
    known = (last >= 0) & (at - last < reach)
    return known, np.maximum(last, 0)


def _interval_so_far(places: Counts, apart: Counts, columns: int) -> Counts:
    """Median distance of the last 15 samples, after each minute."""
    # Padded in front: the first samples have fewer than 15 distances before them.
    padded = np.concatenate([np.full(14, apart[0]), apart])
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, 15), axis=1).astype(
        np.int64
    )
    steps = np.ones(columns, dtype=np.int64)
    steps[places[1:]] = np.maximum(medians, 1)
    index = np.maximum.accumulate(
        np.where(np.isin(np.arange(columns), places[1:]), np.arange(columns), 0)
    )
    return steps[index]

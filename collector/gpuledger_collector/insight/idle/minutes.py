"""What is known of accelerators minute by minute: arrays of shape (accelerators, minutes).

A reading that nobody has is NaN and never zero: rules that need it do not apply. Between two samples of a slow sampler
the last reading holds for three sampling intervals; after that nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.series import Floats

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

NOBODY = -1
INTERVALS = 3
"""Sampling intervals after which a reading is no longer known (the rule of `no_data`)."""


@dataclass(frozen=True)
class Minutes:
    """Minutes of accelerators from `start_ms` (unix). Arrays are (accelerators, minutes); those of a card (cards,)."""

    start_ms: int
    seen: Flags
    """A sample is known for this minute."""
    faulty: Flags
    holder: Counts
    """Number of the workload that holds the accelerator, NOBODY where none does or nobody knows."""
    serving: Flags
    """The holder is a warm replica: idle by design."""
    interactive: Flags
    """The holder is a notebook or a shell."""
    utilization: Floats
    sm_active: Floats
    """SM (or graphics engine) activity, 0..1."""
    zero_ratio: Floats
    """Part of the minute's samples at zero utilisation, 0..1."""
    dram_active: Floats
    memory_copy: Floats
    memory_bytes: Floats
    power_watts: Floats
    clock_hertz: Floats
    slowed_ratio: Floats
    """Part of the minute's samples with a power-cap, thermal or hardware slowdown bit, 0..1."""
    processes: Floats
    host_busy: Floats
    """CPU of the holder as a part of its allowance, 0..1."""
    bytes_per_second: Floats
    """Disk and network of the holder."""
    memory_total: Floats
    memory_floor: Floats
    """Memory that the card itself holds when nobody uses it."""
    idle_watts: Floats
    limit_watts: Floats
    used_before: Flags | None = None
    """(cards,): whoever holds it in the first minute had used it before that; None: nobody knows, so nobody had."""

    @property
    def shape(self) -> tuple[int, int]:
        """Accelerators and minutes."""
        rows, columns = self.seen.shape
        return rows, columns

    def until(self, minute: int) -> Minutes:
        """What was known before this minute."""
        cut = {
            one.name: value[:, :minute]
            for one in fields(self)
            if isinstance(value := getattr(self, one.name), np.ndarray) and value.ndim == 2
        }
        return Minutes(**{one.name: cut.get(one.name, getattr(self, one.name)) for one in fields(self)})

    def activity(self) -> Floats:
        """SM activity where it is known, else utilisation; NaN where neither is."""
        return np.where(np.isfinite(self.sm_active), self.sm_active, self.utilization)


def unknown(shape: tuple[int, int]) -> Floats:
    """A reading that nobody has."""
    return np.full(shape, np.nan)


def carried(sampled: Flags) -> tuple[Flags, Counts]:
    """Where a sample is known when each holds for three intervals, and the column to take it from.

    `sampled` says in which minutes a sample came. The interval of a row is the median distance of its samples so far,
    at least a minute; nothing is carried backwards.
    """
    rows, columns = sampled.shape
    at = np.broadcast_to(np.arange(columns), (rows, columns))
    last = np.maximum.accumulate(np.where(sampled, at, -1), axis=1)
    reach = np.full((rows, columns), INTERVALS, dtype=np.int64)
    for row in np.flatnonzero(sampled.any(axis=1)):
        places = np.flatnonzero(sampled[row])
        apart = np.diff(places)
        if len(apart) and apart.max() > 1:
            reach[row] = INTERVALS * _interval_so_far(places, apart, columns)
    known = (last >= 0) & (at - last < reach)
    return known, np.maximum(last, 0)


def _interval_so_far(places: Counts, apart: Counts, columns: int) -> Counts:
    """Median distance of the last 15 samples, after each minute."""
    from numpy.lib.stride_tricks import sliding_window_view

    padded = np.concatenate([np.full(14, apart[0]), apart])
    medians = np.median(sliding_window_view(padded, 15), axis=1).astype(np.int64)
    steps = np.ones(columns, dtype=np.int64)
    steps[places[1:]] = np.maximum(medians, 1)
    index = np.maximum.accumulate(np.where(np.isin(np.arange(columns), places[1:]), np.arange(columns), 0))
    return steps[index]

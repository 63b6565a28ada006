"""Demand from the ledger: how many GPUs each pool (or model) held, hour by hour, with gaps known as gaps.

An hour of observed accelerators is known when evidence covers enough of their capacity; else nobody knows how many were
held, and the value is NaN, never a smaller number. Usage imported as counts is known from its first hour to its last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.series import Floats, Series

HOUR_MS = 3_600_000
COVERED = 0.9
"""Part of a group's capacity that must have been seen for its hour to count as known."""


@dataclass(frozen=True, slots=True)
class HeldHour:
    """What was seen of a group in one hour, in GPU-milliseconds: held, and seen in any state."""

    group: str
    hour_ms: int
    held: float
    seen: float


@dataclass(frozen=True, slots=True)
class Span:
    """GPUs that were there (capacity), or were held by count (imported), from start to end (unix ms)."""

    group: str
    gpus: float
    start_ms: int
    end_ms: int


def hourly(start_ms: int, end_ms: int, held: Iterable[HeldHour], capacity: Iterable[Span],
           counted: Iterable[Span]) -> list[Series]:  # fmt: skip
    """Series of GPUs held per group over whole hours from `start_ms` to `end_ms`, by group name.

    A group has either observed accelerators (`held` and `capacity`) or counts (`counted`); a series begins at its first
    hour with capacity or usage.
    """
    hours = (end_ms - start_ms) // HOUR_MS
    there: dict[str, Floats] = {}
    for span in capacity:
        _add(there.setdefault(span.group, np.zeros(hours)), span, start_ms)
    used, seen = ({group: np.zeros(hours) for group in there} for _ in range(2))
    for row in held:
        at = (row.hour_ms - start_ms) // HOUR_MS
        if row.group in there and 0 <= at < hours:
            used[row.group][at] += row.held / HOUR_MS
            seen[row.group][at] += row.seen / HOUR_MS
    made = []
    for group, capacity_gpus in there.items():
        known = (capacity_gpus > 0) & (seen[group] >= COVERED * capacity_gpus)
        made.append(_series(group, start_ms, np.where(known, used[group], np.nan), capacity_gpus > 0))
    counts: dict[str, Floats] = {}
    for span in counted:
        if span.group not in there:
            _add(counts.setdefault(span.group, np.zeros(hours)), span, start_ms)
    made += [_series(group, start_ms, gpus, gpus > 0) for group, gpus in counts.items()]
    return sorted((one for one in made if one is not None), key=lambda one: one.name)


def _add(hours: Floats, span: Span, origin_ms: int) -> None:
    """Adds a span's GPUs to the hours that it covers, the first and the last in part."""
    start = max(0.0, (span.start_ms - origin_ms) / HOUR_MS)
    end = min(float(len(hours)), (span.end_ms - origin_ms) / HOUR_MS)
    if end <= start:
        return
    first, last = int(start), int(end)
    if first == last:
        hours[first] += span.gpus * (end - start)
        return
    hours[first] += span.gpus * (first + 1 - start)
    hours[first + 1 : last] += span.gpus
    if last < len(hours):
        hours[last] += span.gpus * (end - last)


def _series(
    name: str, start_ms: int, values: Floats, alive: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Series | None:
    """The series from the first hour in which the group was there to the last; None for a group that never was."""
    where = np.flatnonzero(alive)
    if not len(where):
        return None
    first, last = int(where[0]), int(where[-1])
    return Series(name, start_ms + first * HOUR_MS, HOUR_MS, values[first : last + 1])

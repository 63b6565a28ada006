"""Demand from the ledger: how many GPUs each pool, model or owner held or waited for, step by step, gaps known as gaps.

A step of observed accelerators is known when evidence covers enough of their capacity; else nobody knows how many were
held, and the value is NaN, never a smaller number. An owner's step is known when the fleet's is, and zero when the
owner then held nothing. Usage imported as counts is known from its first hour to its last. What waits is added from the
first reading of the queue on; while a queue is not read, its pools' demand is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.series import Floats, Ints, Series

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
COVERED = 0.9
"""Part of a group's capacity that must have been seen for its step to count as known."""
QUEUE_VALID_MS = HOUR_MS
"""A queue is taken to stay as it was read for so long."""
QUEUE_EXPIRED_MS = DAY_MS
"""A queue that nobody has read for so long is no longer part of demand: its reader was taken away."""
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What was seen of a group in one hour (or step), in GPU-milliseconds: held, and seen in any state."""

    group: str
    hour_ms: int
    held: float
    seen: float


@dataclass(frozen=True, slots=True)
class CapacitySpan:
    """GPUs that were there (capacity), or were held by count (imported), from start to end (unix ms)."""

    group: str
    gpus: float
    start_ms: int
    end_ms: int


@dataclass(frozen=True, eq=False, slots=True)
class QueueReadings:
    """What one scheduler's whole queue asked for, reading by reading."""

    source: str
    at_ms: Ints
    """Of its readings, ascending; there is one at least."""
    gpus: Mapping[str, Floats]
    """By group the GPUs that each reading names; NaN: that reading does not name the group, so none of it waits."""

    def before(self, end_ms: int) -> QueueReadings | None:
        """Its readings before an instant; None without any."""
        count = int(np.searchsorted(self.at_ms, end_ms))
        found = {group: gpus[:count] for group, gpus in self.gpus.items()}
        return QueueReadings(self.source, self.at_ms[:count], found) if count else None

    def names(self, group: str) -> bool:
        """Whether any reading names the group."""
        return group in self.gpus and bool(np.isfinite(self.gpus[group]).any())

    @property
    def newest_ms(self) -> int:
        """When it was last read."""
        return int(self.at_ms[-1])

    def newest(self, group: str) -> float:
        """GPUs of the group that waited when it was last read."""
        return float(np.nan_to_num(self.gpus[group][-1])) if group in self.gpus else 0.0


def hourly_demand(
    start_ms: int,
    end_ms: int,
    held: Iterable[GroupUsage],
    capacity: Iterable[CapacitySpan],
    counted: Iterable[CapacitySpan],
) -> list[Series]:
    """Series of GPUs held per group over whole hours; see `stepped`."""
    return group_demand(start_ms, end_ms, HOUR_MS, held, capacity, counted)


def group_demand(
    start_ms: int,
    end_ms: int,
    step_ms: int,
    held: Iterable[GroupUsage],
    capacity: Iterable[CapacitySpan],
    counted: Iterable[CapacitySpan],
) -> list[Series]:
    """Series of GPUs held per group over whole steps from `start_ms` to `end_ms`, by group name.

    A group has either observed accelerators (`held` and `capacity`) or counts (`counted`); a series begins at its first
    step with capacity or usage.
    """
    steps = _Steps(start_ms, step_ms, (end_ms - start_ms) // step_ms)
    there = steps.sums(capacity)
    used, seen = ({group: steps.none() for group in there} for _ in range(2))
    for row in held:
        at = (row.hour_ms - start_ms) // step_ms
        if row.group in there and 0 <= at < steps.count:
            used[row.group][at] += row.held / step_ms
            seen[row.group][at] += row.seen / step_ms
    made = []
    for group, capacity_gpus in there.items():
        known = (capacity_gpus > 0) & (seen[group] >= COVERED * capacity_gpus)
        made.append(steps.series(group, np.where(known, used[group], np.nan), capacity_gpus > 0))
    counts = steps.sums(span for span in counted if span.group not in there)
    made += [steps.series(group, gpus, gpus > 0) for group, gpus in counts.items()]
    return sorted((one for one in made if one is not None), key=lambda one: one.name)


def owner_demand(
    start_ms: int,
    end_ms: int,
    step_ms: int,
    held: Iterable[GroupUsage],
    fleet: Iterable[GroupUsage],
    capacity: Iterable[CapacitySpan],
    counted: Iterable[CapacitySpan],
) -> list[Series]:
    """Series of GPUs held per owner, by name, from each owner's first use to the end of what is known of the fleet.

    `held` are the owners' own, `fleet` what was seen of everything, `capacity` all that was there, `counted` the
    owners' imported usage beside it.
    """
    steps = _Steps(start_ms, step_ms, (end_ms - start_ms) // step_ms)
    there = sum(steps.sums(capacity).values(), steps.none())
    seen = steps.none()
    for row in fleet:
        at = (row.hour_ms - start_ms) // step_ms
        if 0 <= at < steps.count:
            seen[at] += row.seen / step_ms
    used = steps.sums(counted)
    counted_at = np.flatnonzero(sum(used.values(), steps.none()))
    for row in held:
        at = (row.hour_ms - start_ms) // step_ms
        if 0 <= at < steps.count:
            used.setdefault(row.group, steps.none())[at] += row.held / step_ms
    known = seen >= COVERED * there
    last = max([*np.flatnonzero(there > 0)[-1:], *counted_at[-1:]], default=-1)
    made = []
    for owner, gpus in used.items():
        alive = np.zeros(steps.count, dtype=bool)
        alive[np.flatnonzero(gpus)[:1]] = alive[last] = True
        made.append(steps.series(owner, np.where(known, gpus, np.nan), alive))
    return sorted((one for one in made if one is not None), key=lambda one: one.name)


def with_queue(series: Sequence[Series], queues: Sequence[QueueReadings], now_ms: int) -> list[Series]:
    """The series with what waited: the mean of each source's readings in a step, kept for a while, added up.

    Readings of `now_ms` and later are not looked at.

    Before the first reading of a source demand is what is held. Where a source that names the group was silent longer
    than a reading is kept, demand is unknown; a source that has been silent for a day counts no more since then.
    """
    told = [past for queue in queues if (past := queue.before(now_ms)) is not None]
    made = []
    for one in series:
        values = one.values
        for queue in told:
            if queue.names(one.name):
                values = values + _waiting(one, queue, now_ms)
        made.append(Series(one.name, one.start_ms, one.step_ms, values))
    return made


def _waiting(series: Series, queue: QueueReadings, now_ms: int) -> Floats:
    """GPUs that waited in each step of a series by one source's readings, NaN where it was silent."""
    at, gpus = queue.at_ms, np.nan_to_num(queue.gpus[series.name])
    begin = series.start_ms + series.step_ms * np.arange(len(series.values))
    end = begin + series.step_ms
    first, after = np.searchsorted(at, begin, side="left"), np.searchsorted(at, end, side="left")
    total = np.concatenate([[0.0], np.cumsum(gpus)])
    inside = after - first
    mean = (total[after] - total[first]) / np.maximum(inside, 1)
    before = np.maximum(first - 1, 0)
    kept = (first > 0) & (end - at[before] <= max(QUEUE_VALID_MS, series.step_ms))
    waiting = np.where(inside > 0, mean, np.where(kept, gpus[before], np.nan))
    waiting[end <= at[0]] = 0.0
    if now_ms - at[-1] > QUEUE_EXPIRED_MS:
        waiting[begin > at[-1]] = 0.0
    return np.asarray(waiting)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The common grid of a period."""

    start_ms: int
    step_ms: int
    count: int

    def none(self) -> Floats:
        """Zero GPUs in every step."""
        return np.zeros(self.count)

    def sums(self, spans: Iterable[CapacitySpan]) -> dict[str, Floats]:
        """GPUs per step and group; a span counts in part in its first and last step."""
        found: dict[str, Floats] = {}
        for span in spans:
            self._add(found.setdefault(span.group, self.none()), span)
        return found

    def _add(self, steps: Floats, span: CapacitySpan) -> None:
        start = max(0.0, (span.start_ms - self.start_ms) / self.step_ms)
        end = min(float(len(steps)), (span.end_ms - self.start_ms) / self.step_ms)
        if end <= start:
            return
        first, last = int(start), int(end)
        if first == last:
            steps[first] += span.gpus * (end - start)
            return
        steps[first] += span.gpus * (first + 1 - start)
        steps[first + 1 : last] += span.gpus
        if last < len(steps):
            steps[last] += span.gpus * (end - last)

    def series(self, name: str, values: Floats, alive: Flags) -> Series | None:
        """The series from the first step in which the group was there to the last; None for one that never was."""
        where = np.flatnonzero(alive)
        if not len(where):
            return None
        first, last = int(where[0]), int(where[-1])
        return Series(name, self.start_ms + first * self.step_ms, self.step_ms, values[first : last + 1])

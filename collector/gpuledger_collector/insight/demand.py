"""Demand from the ledger: GPUs that each pool, model or owner held or waited for, step by step,
with gaps.

A step of observed accelerators is known when evidence covers enough of their capacity; else the
number held is unknown, and the value is NaN, never a smaller number. An owner's step is known when
the fleet's is, and zero when the owner then held nothing. Usage imported as counts is known from
its first hour to its last. Queued GPUs are added from the first reading of the queue on; while a
queue is not read, the demand of its pools is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.queue_rows import QUEUE_EXPIRED_MS, QUEUE_VALID_MS
from gpuledger_collector.insight.series import Flags, Floats, Ints, Series

DEMAND_DAYS = 56
"""How far back demand is read by the hour: as much as the estimators use."""
COVERED = 0.9
"""Share of a group's capacity that must be observed for its step to count as known."""


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """GPU-milliseconds of a group in one hour (or step): held, and seen in any state."""

    group: str
    hour_ms: int
    held: float
    seen: float


@dataclass(frozen=True, slots=True)
class CapacitySpan:
    """GPUs present (capacity), or held by count (imported), from start to end (unix ms)."""

    group: str
    gpus: float
    start_ms: int
    end_ms: int


@dataclass(frozen=True, eq=False, slots=True)
class QueueReadings:
    """Readings of one scheduler's queue, at least one, by ascending `at_ms`.

    `gpus` are the GPUs by group that each reading names; NaN: it does not name the group, so
    nothing of it waits.
    """

    source: str
    at_ms: Ints
    gpus: Mapping[str, Floats]

    def readings_before(self, end_ms: int) -> QueueReadings | None:
        """Return the readings before an instant; None without any."""
        count = int(np.searchsorted(self.at_ms, end_ms))
        gpus = {group: values[:count] for group, values in self.gpus.items()}
        return QueueReadings(self.source, self.at_ms[:count], gpus) if count else None

    def names(self, group: str) -> bool:
        """Whether any reading names the group."""
        return group in self.gpus and bool(np.isfinite(self.gpus[group]).any())

    @property
    def newest_ms(self) -> int:
        """Time of the last reading."""
        return int(self.at_ms[-1])

    def newest(self, group: str) -> float:
        """GPUs of the group that waited at the last reading."""
        return float(np.nan_to_num(self.gpus[group][-1])) if group in self.gpus else 0.0


def hourly_demand(
    start_ms: int,
    end_ms: int,
    held: Iterable[GroupUsage],
    capacity: Iterable[CapacitySpan],
    counted: Iterable[CapacitySpan],
) -> list[Series]:
    """Return series of GPUs held per group over complete hours; see `group_demand`."""
    return group_demand(start_ms, end_ms, HOUR_MS, held, capacity, counted)


def group_demand(
    start_ms: int,
    end_ms: int,
    step_ms: int,
    held: Iterable[GroupUsage],
    capacity: Iterable[CapacitySpan],
    counted: Iterable[CapacitySpan],
) -> list[Series]:
    """Return series of GPUs held per group over complete steps from `start_ms` to `end_ms`, by
    group name.

    A group has either observed accelerators (`held` and `capacity`) or counts (`counted`); a series
    begins at its first step with capacity or usage.
    """
    grid = _Grid(start_ms, step_ms, (end_ms - start_ms) // step_ms)
    present = grid.sums(capacity)
    usages = [usage for usage in held if usage.group in present]
    used = grid.means((usage.group, usage.hour_ms, usage.held) for usage in usages)
    seen = grid.means((usage.group, usage.hour_ms, usage.seen) for usage in usages)
    series = []
    for group, gpus in present.items():
        # Too little evidence makes the step unknown: what was held on silent nodes would be missing
        # from the sum.
        known = (gpus > 0) & (seen.get(group, grid.zeros()) >= COVERED * gpus)
        series.append(
            grid.series(group, np.where(known, used.get(group, grid.zeros()), np.nan), gpus > 0)
        )
    # Counts of a group that has observed accelerators would count the same GPUs twice.
    counts = grid.sums(span for span in counted if span.group not in present)
    series += [grid.series(group, gpus, gpus > 0) for group, gpus in counts.items()]
    return _by_name(series)


def owner_demand(
    start_ms: int,
    end_ms: int,
    step_ms: int,
    held: Iterable[GroupUsage],
    fleet: Iterable[GroupUsage],
    capacity: Iterable[CapacitySpan],
    counted: Iterable[CapacitySpan],
) -> list[Series]:
    """Return series of GPUs held per owner, by name, from the owner's first use to the last known
    step of the fleet.

    `held` is the owners' usage, `fleet` what was seen of all accelerators, `capacity` all capacity,
    `counted` the owners' imported usage.
    """
    grid = _Grid(start_ms, step_ms, (end_ms - start_ms) // step_ms)
    present = sum(grid.sums(capacity).values(), grid.zeros())
    seen = grid.means(("", usage.hour_ms, usage.seen) for usage in fleet).get("", grid.zeros())
    used = grid.sums(counted)
    counted_at = np.flatnonzero(sum(used.values(), grid.zeros()))
    used = grid.means(((usage.group, usage.hour_ms, usage.held) for usage in held), used)
    known = seen >= COVERED * present
    last = max([*np.flatnonzero(present > 0)[-1:], *counted_at[-1:]], default=-1)
    series = []
    for owner, gpus in used.items():
        alive = np.zeros(grid.count, dtype=bool)
        # From the first use to the last known step of the fleet, so that an owner that has stopped
        # shows zeros, not an end.
        alive[np.flatnonzero(gpus)[:1]] = alive[last] = True
        series.append(grid.series(owner, np.where(known, gpus, np.nan), alive))
    return _by_name(series)


def _by_name(series: Iterable[Series | None]) -> list[Series]:
    return sorted((entry for entry in series if entry is not None), key=lambda entry: entry.name)


def with_queue(
    series: Sequence[Series], queues: Sequence[QueueReadings], now_ms: int
) -> list[Series]:
    """Add to each series the GPUs that waited: the mean of each source's readings in a step, valid
    for a while.

    Readings of `now_ms` and later are ignored. Before the first reading of a source demand is what
    is held. Where a source that names the group was silent for longer than a reading is valid,
    demand is unknown; a source that has been silent for a day is ignored since then.
    """
    known = [
        readings for queue in queues if (readings := queue.readings_before(now_ms)) is not None
    ]
    return [
        Series(
            held.name,
            held.start_ms,
            held.step_ms,
            sum(
                (_waiting(held, queue, now_ms) for queue in known if queue.names(held.name)),
                held.values,
            ),
        )
        for held in series
    ]


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
    # A step without a reading takes the last one before it, while that is valid.
    valid = (first > 0) & (end - at[before] <= max(QUEUE_VALID_MS, series.step_ms))
    waiting = np.where(inside > 0, mean, np.where(valid, gpus[before], np.nan))
    # Before anybody read the queue, demand is what was held: the series must not begin with unknown
    # years.
    waiting[end <= at[0]] = 0.0
    if now_ms - at[-1] > QUEUE_EXPIRED_MS:
        waiting[begin > at[-1]] = 0.0
    return np.asarray(waiting)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The common steps of a period."""

    start_ms: int
    step_ms: int
    count: int

    def zeros(self) -> Floats:
        """Zero GPUs in every step."""
        return np.zeros(self.count)

    def means(
        self, usages: Iterable[tuple[str, int, float]], sums: dict[str, Floats] | None = None
    ) -> dict[str, Floats]:
        """Mean GPUs per group and step of (group, begin of the step, GPU-milliseconds), added to
        `sums`.
        """
        sums = {} if sums is None else sums
        for group, at_ms, gpu_ms in usages:
            step = (at_ms - self.start_ms) // self.step_ms
            if 0 <= step < self.count:
                sums.setdefault(group, self.zeros())[step] += gpu_ms / self.step_ms
        return sums

    def sums(self, spans: Iterable[CapacitySpan]) -> dict[str, Floats]:
        """GPUs per group and step; a span counts in part in its first and last step."""
        sums: dict[str, Floats] = {}
        for span in spans:
            self._add(sums.setdefault(span.group, self.zeros()), span)
        return sums

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
        """The series from the group's first step to its last; None for a group without any."""
        where = np.flatnonzero(alive)
        if not len(where):
            return None
        first, last = int(where[0]), int(where[-1])
        return Series(
            name, self.start_ms + first * self.step_ms, self.step_ms, values[first : last + 1]
        )

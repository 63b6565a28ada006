"""Imported usage of pools in which accelerators were observed as well: time is held once.

Usage imported as a count of GPUs says that a pool had work, not on which accelerator. Where
accelerators were seen in that pool, each takes the place of its share of a GPU for the time in
which it was seen, no more and no less. Law: the result does not depend on the order of its input,
and at every instant what is left and what was seen is at least what was imported, and no more than
the larger of the two.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpuledger_collector.accounting.period import Period, join_periods
from gpuledger_collector.accounting.rating import ImportedUsage
from gpuledger_common.largest_remainder import split


@dataclass(frozen=True, slots=True)
class SeenAccelerator:
    """A time in which an accelerator of a pool was seen on a node; `gpu_micro` is its share of a
    board.
    """

    pool: str
    node: str
    gpu_micro: int
    accelerator_id: int
    period: Period


def without_seen(
    imported: Sequence[ImportedUsage], seen: Iterable[SeenAccelerator], day: Period, until_ms: int
) -> list[ImportedUsage]:
    """Imported usage of a day without what accelerators of its pool were seen doing.

    An accelerator takes the place of usage that names its node first, then of usage of its pool
    that names none. What is left is split over the imports by their counts, by largest remainder in
    the order of their keys.
    """
    by_pool: dict[str, list[SeenAccelerator]] = defaultdict(list)
    for sighting in seen:
        by_pool[sighting.pool].append(sighting)
    usages: dict[str, list[ImportedUsage]] = defaultdict(list)
    for usage in imported:
        usages[usage.pool].append(usage)
    left: list[ImportedUsage] = []
    for pool, pool_usages in sorted(usages.items()):
        if pool in by_pool:
            left += _usage_left(pool_usages, by_pool[pool], day, until_ms)
        else:
            left += pool_usages
    return sorted(left, key=lambda usage: (usage.key, usage.start_ms))


def _usage_left(
    usages: Sequence[ImportedUsage], seen: Sequence[SeenAccelerator], day: Period, until_ms: int
) -> list[ImportedUsage]:
    # By key, not by id: ties of the split must not depend on the order of import.
    ordered = sorted(usages, key=lambda usage: (usage.key, usage.start_ms))
    spans = [
        day.clip(Period(usage.start_ms, max(usage.start_ms, _end(usage, until_ms))))
        for usage in ordered
    ]
    timeline = _Timeline(seen)
    edges = timeline.edges(day) | {
        at for span in spans if span for at in (span.start_ms, span.end_ms)
    }
    parts: list[list[ImportedUsage]] = [[] for _ in ordered]
    # Between two edges nothing begins or ends, so one split holds for all of it.
    for start_ms, end_ms in pairwise(sorted(edges)):
        there = [
            at for at, span in enumerate(spans) if span and span.start_ms <= start_ms < span.end_ms
        ]
        counts = [ordered[at].gpu_micro for at in there]
        for at, micro in zip(
            there, _counts(ordered, there, counts, timeline.gpus_at(start_ms)), strict=True
        ):
            if not micro:
                continue
            last = parts[at][-1] if parts[at] else None
            # Joined where the count stays the same: a part is rated and rounded as one.
            if last is not None and last.end_ms == start_ms and last.gpu_micro == micro:
                parts[at][-1] = replace(last, end_ms=end_ms)
            else:
                parts[at].append(
                    replace(ordered[at], start_ms=start_ms, end_ms=end_ms, gpu_micro=micro)
                )
    return [part for of_usage in parts for part in of_usage]


def _end(usage: ImportedUsage, until_ms: int) -> int:
    return until_ms if usage.end_ms is None else min(usage.end_ms, until_ms)


def _counts(
    usages: Sequence[ImportedUsage],
    there: Sequence[int],
    counts: Sequence[int],
    seen: Mapping[str, int],
) -> list[int]:
    """What is left of each count, once nodes' own accelerators and then the rest of the pool's have
    been taken off.
    """
    if not seen:
        return list(counts)
    # Usage that names a node gives way to that node's own accelerators before the rest of the pool
    # is split.
    left = list(counts)
    rest = dict(seen)
    # What is left of a node's accelerators, beyond the usage that names it, counts for the rest of
    # the pool.
    for node in sorted({usages[at].node for at in there} - {""}):
        places = [place for place, at in enumerate(there) if usages[at].node == node]
        taken = _take(left, places, rest.get(node, 0))
        rest[node] = rest.get(node, 0) - taken
    _take(
        left, [place for place, at in enumerate(there) if not usages[at].node], sum(rest.values())
    )
    return left


def _take(left: list[int], places: Sequence[int], micro: int) -> int:
    """Take so much off these counts together; how much that was."""
    whole = sum(left[place] for place in places)
    taken = min(whole, micro)
    if taken:
        for place, kept in zip(
            places, split(whole - taken, [left[place] for place in places]), strict=True
        ):
            left[place] = kept
    return taken


class _Timeline:
    """How much of a pool was seen at an instant, by node."""

    def __init__(self, seen: Iterable[SeenAccelerator]) -> None:
        spans: dict[tuple[str, int, int], list[Period]] = defaultdict(list)
        for sighting in seen:
            spans[sighting.node, sighting.accelerator_id, sighting.gpu_micro].append(
                sighting.period
            )
        changes: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (node, _, micro), periods in spans.items():
            # Sightings of one accelerator may overlap; counted twice, it would displace two GPUs.
            for period in join_periods(periods):
                changes[period.start_ms][node] += micro
                changes[period.end_ms][node] -= micro
        self._instants = sorted(changes)
        self._states: list[Mapping[str, int]] = []
        state: dict[str, int] = {}
        for at in self._instants:
            for node, micro in changes[at].items():
                state[node] = state.get(node, 0) + micro
            self._states.append({node: micro for node, micro in state.items() if micro})

    def edges(self, day: Period) -> set[int]:
        """The instants of a day at which it changes."""
        first = bisect_left(self._instants, day.start_ms)
        return set(self._instants[first : bisect_left(self._instants, day.end_ms)])

    def gpus_at(self, at_ms: int) -> Mapping[str, int]:
        """Micro-GPUs by node."""
        place = bisect_right(self._instants, at_ms)
        return self._states[place - 1] if place else {}

"""Imported usage of pools in which accelerators were observed as well: time is held once.

Usage imported as a count of GPUs says that a pool had work, not on which accelerator. Where
accelerators were seen in that pool, each takes the place of its share of a GPU for the time in
which it was seen, no more and no less. Law: the result does not depend on the order of its input,
and at every instant what is left and what was seen is at least what was imported, and no more than
the larger of the two.

The same law holds for a job of Slurm that pods stand for (slurm-bridge), whatever its pool: what
its pods were seen holding takes the place of what Slurm's accounting says of it. A board that took
the place of its job takes no other's, so in its own pool that part of it does not count again.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice, pairwise, product

from gpuledger_collector.accounting.attribution import slurm_job_id
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


MAX_NODES = 16_384
"""Nodes that are read of one list of Slurm."""
_NODES = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
"""One entry of a list such as `a[1-3,7],b`."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A time in which a pod that stands for a job of Slurm held a part of an accelerator."""

    job_id: str
    node: str
    """Where it was seen."""
    pool: str
    placed_on: str
    """Pool and node of the accelerator's placement; an empty node is any."""
    gpu_micro: int
    """Its part of a board."""
    holding: tuple[int, int]
    """Accelerator and pod: two pods of a job may have a part of one board each."""
    period: Period


def without_pods(
    imported: Sequence[ImportedUsage], seen: Iterable[SeenPod], day: Period, until_ms: int
) -> tuple[list[ImportedUsage], list[SeenAccelerator]]:
    """Imported usage of a day without what the pods of its job were seen holding, and what of
    accelerators in the pools of these jobs took their place.

    A pod counts only on a node that Slurm says the job ran on: whoever writes a pod's labels cannot
    take a job elsewhere off the bill.
    """
    by_job: dict[str, list[SeenPod]] = defaultdict(list)
    numbers: dict[tuple[int, int], int] = {}
    for pod in seen:
        by_job[pod.job_id].append(pod)
        numbers.setdefault(pod.holding, len(numbers))
    left: list[ImportedUsage] = []
    spent: list[SeenAccelerator] = []
    by_nodes: dict[tuple[str, str], list[ImportedUsage]] = defaultdict(list)
    for usage in imported:
        job_id = slurm_job_id(usage.key)
        if job_id is not None and job_id in by_job:
            by_nodes[job_id, usage.node].append(usage)
        else:
            left.append(usage)
    for (job_id, node_list), usages in sorted(by_nodes.items()):
        nodes = expand_nodes(node_list)
        # The pods of a job take the place of its count as a whole, on whichever of its nodes.
        pods = [
            SeenAccelerator(
                pod.pool, pod.placed_on, pod.gpu_micro, numbers[pod.holding], pod.period
            )
            for pod in by_job[job_id]
            if pod.node in nodes
        ]
        anywhere = [replace(usage, node="") for usage in usages]
        rest = _usage_left(anywhere, pods, day, until_ms) if pods else usages
        left += [replace(usage, node=node_list) for usage in rest]
        if pods:
            spent += _spent(usages, rest, pods, day, until_ms)
    return sorted(left, key=lambda usage: (usage.key, usage.start_ms)), spent


def _spent(
    usages: Sequence[ImportedUsage],
    rest: Sequence[ImportedUsage],
    pods: Sequence[SeenAccelerator],
    day: Period,
    until_ms: int,
) -> list[SeenAccelerator]:
    """What pods on accelerators in the pools of a job took of it, by node: those of other pools,
    which displace nothing else, went first.
    """
    pools = sorted({usage.pool for usage in usages})
    whole, left = _micro_by_instant(usages, day, until_ms), _micro_by_instant(rest, day, until_ms)
    own = {pool: _Timeline([pod for pod in pods if pod.pool == pool]) for pool in pools}
    others = _Timeline([pod for pod in pods if pod.pool not in own])
    edges = set(whole.instants) | set(left.instants)
    for timeline in (others, *own.values()):
        edges |= timeline.edges(day)
    spent: list[SeenAccelerator] = []
    for start_ms, end_ms in pairwise(sorted(edges)):
        taken = whole.at(start_ms) - left.at(start_ms)
        taken -= min(taken, sum(others.gpus_at(start_ms).values()))
        for pool, timeline in own.items():
            for node, micro in sorted(timeline.gpus_at(start_ms).items()):
                part = min(micro, taken)
                taken -= part
                if part:
                    period = Period(start_ms, end_ms)
                    spent.append(SeenAccelerator(pool, node, part, 0, period))
    return spent


@dataclass(frozen=True, slots=True)
class _Counts:
    """How many micro-GPUs were used from each of these instants on."""

    instants: Sequence[int]
    micros: Sequence[int]

    def at(self, at_ms: int) -> int:
        """The count at an instant."""
        place = bisect_right(self.instants, at_ms)
        return self.micros[place - 1] if place else 0


def _micro_by_instant(usages: Sequence[ImportedUsage], day: Period, until_ms: int) -> _Counts:
    changes: Counter[int] = Counter()
    for usage in usages:
        end_ms = max(usage.start_ms, _end(usage, until_ms))
        if (span := day.clip(Period(usage.start_ms, end_ms))) is not None:
            changes[span.start_ms] += usage.gpu_micro
            changes[span.end_ms] -= usage.gpu_micro
    instants = sorted(changes)
    return _Counts(instants, list(accumulate(changes[at] for at in instants)))


@lru_cache(maxsize=256)
def expand_nodes(text: str) -> frozenset[str]:
    """The nodes of a list as Slurm writes it: `a[01-03,7],b` are a01, a02, a03, a7 and b."""
    nodes: set[str] = set()
    for entry in _NODES.findall(text):
        # Odd places are what stood in brackets.
        parts = _BRACKETS.split(entry)
        words = [_numbers(part) if place % 2 else [part] for place, part in enumerate(parts)]
        nodes.update("".join(name) for name in islice(product(*words), MAX_NODES - len(nodes)))
    return frozenset(nodes)


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if len(numbers) > MAX_NODES:
            break
        if dash and first.isdecimal() and last.isdecimal() and len(last) < 10:
            numbers += [
                str(number).zfill(len(first))
                for number in range(int(first), min(int(last), int(first) + MAX_NODES) + 1)
            ]
        else:
            numbers.append(part)
    return numbers


def without_seen(
    imported: Sequence[ImportedUsage],
    seen: Iterable[SeenAccelerator],
    day: Period,
    until_ms: int,
    spent: Iterable[SeenAccelerator] = (),
) -> list[ImportedUsage]:
    """Imported usage of a day without what accelerators of its pool were seen doing.

    An accelerator takes the place of usage that names its node first, alone before with others,
    then of usage of its pool that names none. What is left is split over the imports by their
    counts, by largest remainder in the order of their keys.

    `spent`: what of these accelerators has taken the place of its own job already (`without_pods`).
    """
    spent_by_pool: dict[str, list[SeenAccelerator]] = defaultdict(list)
    for part in spent:
        spent_by_pool[part.pool].append(part)
    by_pool: dict[str, list[SeenAccelerator]] = defaultdict(list)
    for sighting in seen:
        by_pool[sighting.pool].append(sighting)
    usages: dict[str, list[ImportedUsage]] = defaultdict(list)
    for usage in imported:
        usages[usage.pool].append(usage)
    left: list[ImportedUsage] = []
    for pool, pool_usages in sorted(usages.items()):
        if pool in by_pool:
            left += _usage_left(pool_usages, by_pool[pool], day, until_ms, spent_by_pool[pool])
        else:
            left += pool_usages
    return sorted(left, key=lambda usage: (usage.key, usage.start_ms))


def _usage_left(
    usages: Sequence[ImportedUsage],
    seen: Sequence[SeenAccelerator],
    day: Period,
    until_ms: int,
    spent: Sequence[SeenAccelerator] = (),
) -> list[ImportedUsage]:
    # By key, not by id: ties of the split must not depend on the order of import.
    ordered = sorted(usages, key=lambda usage: (usage.key, usage.start_ms))
    spans = [
        day.clip(Period(usage.start_ms, max(usage.start_ms, _end(usage, until_ms))))
        for usage in ordered
    ]
    timeline = _Timeline(seen, spent)
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
    named = {text: expand_nodes(text) for text in {usages[at].node for at in there} - {""}}
    shared = Counter(node for nodes in named.values() for node in nodes)
    for text, nodes in sorted(named.items(), key=lambda entry: (len(entry[1]), entry[0])):
        places = [place for place, at in enumerate(there) if usages[at].node == text]
        taken = _take(left, places, sum(rest.get(node, 0) for node in nodes))
        # From nodes that fewer others name first, which can then give way to the rest.
        for node in sorted(nodes & rest.keys(), key=lambda node: (shared[node], node)):
            part = min(rest[node], taken)
            rest[node] -= part
            taken -= part
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
    """How much of a pool was seen at an instant, less what of it was spent, by node."""

    def __init__(
        self, seen: Iterable[SeenAccelerator], spent: Iterable[SeenAccelerator] = ()
    ) -> None:
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
        for part in spent:
            changes[part.period.start_ms][part.node] -= part.gpu_micro
            changes[part.period.end_ms][part.node] += part.gpu_micro
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

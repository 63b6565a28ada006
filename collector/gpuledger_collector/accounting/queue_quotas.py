"""Quotas of queues in GPU-time: what a queue had reserved, used, borrowed, lent and waited for.

A reading says what a scheduler has at an instant. It holds until the next one, at most VALID_MS:
time without a reading is not known and counts nowhere. All amounts are micro-GPUs, their time
GPU-nanoseconds, so that every sum is exact.

A scheduler says who borrowed, and not from whom. What a tree of queues borrowed at an instant is
divided among those of it that had quota to spare, in proportion to what they would lend.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_common.largest_remainder import split

VALID_MS = 150_000
"""How long a reading holds when no other follows: queues are read once a minute."""


@dataclass(frozen=True, slots=True, order=True)
class QuotaPlace:
    """What a quota is of: a queue of a scheduler, a flavor of nodes, a resource."""

    scheduler: str
    queue: str
    flavor: str
    """Empty where the scheduler has no flavors."""
    resource: str


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota as a scheduler has it; None of a limit: it has none, of `quota_micro`: no bound or no
    quota in GPUs.
    """

    place: QuotaPlace
    tree: str
    """The queues that borrow from each other: the root of the cohort, or of the queues."""
    parent: str = ""
    pool: str = ""
    """The pool of the flavor's nodes; empty: not known."""
    has_children: bool = False
    """Whether its quota is that of the queues below it, which hold the workloads."""
    quota_micro: int | None = None
    borrowing_micro: int | None = None
    lending_micro: int | None = None


@dataclass(frozen=True, slots=True)
class QueueUse:
    """How much of a quota is used, and how much beyond it."""

    place: QuotaPlace
    used_micro: int
    borrowed_micro: int


@dataclass(frozen=True, slots=True)
class QueueWait:
    """GPUs of workloads that wait in a queue for quota."""

    scheduler: str
    queue: str
    resource: str
    waiting_micro: int


@dataclass(frozen=True, slots=True)
class QueueReading:
    """What is known of the queues of a cluster at an instant.

    `waits` None: not known. A scheduler that did not answer has no rows.
    """

    at_ms: int
    quotas: tuple[Quota, ...] = ()
    uses: tuple[QueueUse, ...] = ()
    waits: tuple[QueueWait, ...] | None = None


@dataclass(slots=True)
class QuotaHour:
    """A part of an hour of a place: `known_ms` of it the quota was known, `observed_ms` its use."""

    known_ms: int = 0
    reserved_ns: int | None = None
    observed_ms: int = 0
    used_ns: int = 0
    borrowed_ns: int = 0
    lent_ns: int = 0
    unused_ns: int = 0
    """Of the quota, what neither its queue nor others used."""


@dataclass(slots=True)
class WaitHour:
    """A part of an hour in which it was known what waits in a queue."""

    observed_ms: int = 0
    waiting_ns: int = 0
    beside_unused_ns: int = 0
    """Of that, what unused quota of other queues would have served."""


PlaceHours = dict[tuple[QuotaPlace, int], QuotaHour]
WaitKey = tuple[str, str, str]
"""Scheduler, queue and resource."""
WaitHours = dict[tuple[WaitKey, int], WaitHour]


@dataclass(frozen=True, slots=True)
class QueueHours:
    """What a reading adds to the hours that it covers."""

    places: PlaceHours = field(default_factory=dict)
    waits: WaitHours = field(default_factory=dict)


def integrate(reading: QueueReading, until_ms: int) -> QueueHours:
    """What a reading says of the time until the next one."""
    hours = QueueHours()
    lent = lend(reading.quotas, reading.uses)
    used = {use.place: use for use in reading.uses}
    beside = unused_beside(reading, lent)
    for hour_ms, ms in _parts(reading.at_ms, min(until_ms, reading.at_ms + VALID_MS)):
        for quota in only_leaves(reading.quotas):
            use = used.get(quota.place)
            entry = QuotaHour(known_ms=ms)
            if quota.quota_micro is not None:
                entry.reserved_ns = gpu_ns(quota.quota_micro, ms)
            if use is not None:
                entry.observed_ms = ms
                entry.used_ns = gpu_ns(use.used_micro, ms)
                entry.borrowed_ns = gpu_ns(use.borrowed_micro, ms)
                entry.lent_ns = gpu_ns(lent.get(quota.place, 0), ms)
                entry.unused_ns = gpu_ns(_unused(quota, use, lent), ms)
            hours.places[quota.place, hour_ms] = entry
        for wait in reading.waits or ():
            key = (wait.scheduler, wait.queue, wait.resource)
            hours.waits[key, hour_ms] = WaitHour(
                ms, gpu_ns(wait.waiting_micro, ms), gpu_ns(beside[key], ms)
            )
    return hours


def lend(quotas: Iterable[Quota], uses: Iterable[QueueUse]) -> dict[QuotaPlace, int]:
    """Divide what is borrowed in each tree, flavor and resource among those with quota to spare."""
    used = {use.place: use for use in uses}
    groups: Mapping[tuple[str, str, str, str], list[Quota]] = defaultdict(list)
    for quota in only_leaves(quotas):
        place = quota.place
        if quota.place in used:
            groups[place.scheduler, quota.tree, place.flavor, place.resource].append(quota)
    lent: dict[QuotaPlace, int] = {}
    for group in groups.values():
        spare = [_lendable(quota, used[quota.place]) for quota in group]
        borrowed = sum(used[quota.place].borrowed_micro for quota in group)
        parts = split(min(borrowed, sum(spare)), spare)
        lent |= {quota.place: part for quota, part in zip(group, parts, strict=True)}
    return lent


def unused_beside(reading: QueueReading, lent: Mapping[QuotaPlace, int]) -> dict[WaitKey, int]:
    """Of what waits in each queue, how much unused quota of other queues would have served."""
    used = {use.place: use for use in reading.uses}
    unused: Mapping[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for quota in only_leaves(reading.quotas):
        use = used.get(quota.place)
        if use is not None:
            place = quota.place
            free = _unused(quota, use, lent)
            unused[place.scheduler, place.resource][place.queue] += free
    beside = {}
    for wait in reading.waits or ():
        others = unused[wait.scheduler, wait.resource]
        elsewhere = sum(others.values()) - others.get(wait.queue, 0)
        beside[wait.scheduler, wait.queue, wait.resource] = min(wait.waiting_micro, elsewhere)
    return beside


def only_leaves(quotas: Iterable[Quota]) -> list[Quota]:
    """Quotas of queues that hold workloads: those above them are sums."""
    return [quota for quota in quotas if not quota.has_children]


def _unused(quota: Quota, use: QueueUse, lent: Mapping[QuotaPlace, int]) -> int:
    if quota.quota_micro is None:
        return 0
    return max(0, quota.quota_micro - use.used_micro - lent.get(quota.place, 0))


def _lendable(quota: Quota, use: QueueUse) -> int:
    if quota.quota_micro is None:
        return 0
    free = max(0, quota.quota_micro - use.used_micro)
    return free if quota.lending_micro is None else min(free, quota.lending_micro)


def _parts(start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """The hours of a time, and how much of each it covers."""
    at_ms = start_ms
    while at_ms < end_ms:
        hour_ms = at_ms - at_ms % HOUR_MS
        next_ms = min(end_ms, hour_ms + HOUR_MS)
        yield hour_ms, next_ms - at_ms
        at_ms = next_ms


@dataclass(frozen=True, slots=True)
class Eviction:
    """A workload that a scheduler stopped before it had finished."""

    uid: str
    evicted_ms: int
    workload: str
    queue: str
    gpu_micro: int
    reason: str
    admitted_ms: int | None = None
    """Since when it ran; None: nobody saw it."""
    preempted_by: str = ""
    """The workload that it made room for: its name, or its UID where nobody saw it."""
    preempting_queue: str = ""

    @property
    def lost_ns(self) -> int | None:
        """GPU-time between its start and its end; None: not known."""
        if self.admitted_ms is None:
            return None
        return gpu_ns(self.gpu_micro, max(0, self.evicted_ms - self.admitted_ms))


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """A workload of a scheduler as a reading has it.

    `evicted_ms`: when its newest start ended early, where the scheduler says so.
    """

    uid: str
    name: str
    queue: str
    """The queue that has the quota; empty: none admitted it yet."""
    gpu_micro: int
    admitted_ms: int | None = None
    evicted_ms: int | None = None
    reason: str = ""
    preemptor_uid: str = ""
    preempting_queue: str = ""


def evictions(
    workloads: Sequence[QueuedWorkload], known: Mapping[str, QueuedWorkload]
) -> list[Eviction]:
    """The evictions that a reading shows; `known` are the workloads as they last ran, by UID.

    A start that ended unseen between two readings is one as well: its end is the next start.
    """
    names = {entry.uid: entry.name for entry in (*known.values(), *workloads)}
    found = []
    for workload in workloads:
        before = known.get(workload.uid)
        started_ms = None if before is None else before.admitted_ms
        if workload.evicted_ms is not None:
            is_known = started_ms is not None and started_ms <= workload.evicted_ms
            ran = before if before is not None and is_known else workload
            found.append(
                Eviction(
                    workload.uid,
                    workload.evicted_ms,
                    workload.name,
                    ran.queue or workload.queue,
                    ran.gpu_micro,
                    workload.reason,
                    admitted_ms=started_ms if is_known else None,
                    preempted_by=names.get(workload.preemptor_uid, workload.preemptor_uid),
                    preempting_queue=workload.preempting_queue,
                )
            )
        elif (
            before is not None
            and started_ms is not None
            and workload.admitted_ms is not None
            and workload.admitted_ms > started_ms
        ):
            found.append(
                Eviction(
                    workload.uid,
                    workload.admitted_ms,
                    workload.name,
                    before.queue,
                    before.gpu_micro,
                    "",
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class DatedQuota:
    """A quota as it was from an instant to another; `until_ms` None: it is so now."""

    scheduler: str
    queue: str
    flavor: str
    resource: str
    parent: str
    pool: str
    quota_micro: int | None
    borrowing_micro: int | None
    lending_micro: int | None
    from_ms: int
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class DatedTenant:
    """A queue that workloads name, and the queue that has its quota, from an instant to another."""

    scheduler: str
    name: str
    queue: str
    from_ms: int
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueTime:
    """The GPU-time of a queue in a period; None: not known.

    What was reserved is what its own workloads used of it, lent and left unused; what they used
    beyond is borrowed.
    """

    scheduler: str
    queue: str
    parent: str
    known_ms: int
    """How long its quota was known."""
    reserved_ns: int | None
    used_ns: int | None
    borrowed_ns: int | None
    lent_ns: int | None
    unused_ns: int | None
    waiting_ns: int | None
    beside_unused_ns: int | None
    """Of what waited, what unused quota of other queues would have served."""
    evictions: int
    lost_ns: int | None
    """Of evicted workloads, from start to end; None where no start was seen."""
    spare_queue: str = ""
    """The queue that left most quota unused of what waited here; empty: nothing waited beside any."""


@dataclass(frozen=True, slots=True)
class QueueSums:
    """The GPU-time of several queues together; None: known of none."""

    reserved_ns: int | None
    used_ns: int | None
    borrowed_ns: int | None
    unused_ns: int | None
    waiting_ns: int | None
    beside_unused_ns: int | None
    evictions: int
    lost_ns: int | None


def add_up_queues(times: Sequence[QueueTime]) -> QueueSums:
    """Add up what is known of queues."""

    def total(values: Iterable[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return QueueSums(
        total(item.reserved_ns for item in times),
        total(item.used_ns for item in times),
        total(item.borrowed_ns for item in times),
        total(item.unused_ns for item in times),
        total(item.waiting_ns for item in times),
        total(item.beside_unused_ns for item in times),
        sum(item.evictions for item in times),
        total(item.lost_ns for item in times),
    )


@dataclass(frozen=True, slots=True)
class ResourceTime:
    """GPU-time of one resource in a queue."""

    scheduler: str
    queue: str
    resource: str
    ns: int


def rank_by_waiting(
    times: Iterable[QueueTime], waited: Iterable[ResourceTime], unused: Iterable[ResourceTime]
) -> list[QueueTime]:
    """Put queues first that waited most beside unused quota, each with the queue that left most of
    that.

    `waited`: beside unused quota. Quota is unused for who waits for the same resource of the same
    scheduler and cluster.
    """
    spare: dict[tuple[str, str, str], list[ResourceTime]] = defaultdict(list)
    for entry in sorted(unused, key=lambda entry: (-entry.ns, entry.queue)):
        spare[entry.scheduler, cluster_of(entry.queue), entry.resource].append(entry)
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for wait in waited:
        others = spare[wait.scheduler, cluster_of(wait.queue), wait.resource]
        largest = next((entry for entry in others if entry.queue != wait.queue), None)
        if wait.ns and largest is not None and largest.ns:
            place, served = (wait.scheduler, wait.queue), min(wait.ns, largest.ns)
            if place not in found or served > found[place][0]:
                found[place] = served, largest.queue
    named = [
        replace(item, spare_queue=found.get((item.scheduler, item.queue), (0, ""))[1])
        for item in times
    ]
    return sorted(
        named, key=lambda item: (-(item.beside_unused_ns or 0), item.scheduler, item.queue)
    )


def cluster_of(queue: str) -> str:
    """The cluster in a name of `name_in_cluster`; empty: there is one."""
    return queue.rpartition("/")[0]


def name_in_cluster(cluster: str, queue: str) -> str:
    """The name of a queue among those of several clusters; `cluster` empty: there is one."""
    return f"{cluster}/{queue}" if cluster and queue else queue


def in_cluster(cluster: str, reading: QueueReading) -> QueueReading:
    """The reading with the name of its cluster before every queue; empty: there is one cluster."""
    if not cluster:
        return reading

    def name(queue: str) -> str:
        return name_in_cluster(cluster, queue)

    return replace(
        reading,
        quotas=tuple(
            replace(
                quota,
                place=replace(quota.place, queue=name(quota.place.queue)),
                tree=name(quota.tree),
                parent=name(quota.parent),
            )
            for quota in reading.quotas
        ),
        uses=tuple(
            replace(use, place=replace(use.place, queue=name(use.place.queue)))
            for use in reading.uses
        ),
        waits=None
        if reading.waits is None
        else tuple(replace(wait, queue=name(wait.queue)) for wait in reading.waits),
    )

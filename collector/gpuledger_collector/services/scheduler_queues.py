"""Queues of Kubernetes schedulers: reads them once a minute, and answers what they had reserved,
used, borrowed, lent, waited for and lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting import queue_quotas
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.queue_quotas import (
    DatedQuota,
    DatedTenant,
    Eviction,
    QueuedWorkload,
    QueueReading,
    QueueSums,
    QueueTime,
    add_up_queues,
    in_cluster,
    integrate,
    name_in_cluster,
    only_leaves,
    rank_by_waiting,
)
from gpuledger_collector.ingest.scheduler_queues.reader import read_schedulers
from gpuledger_collector.ingest.scheduler_queues.resources import SchedulerReading
from gpuledger_collector.insight.queue_health import STALE_MS, OverQuota, QueueHealth
from gpuledger_collector.storage.capacity import scheduler_queues
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.kubernetes_client import KubernetesClient

log = logging.getLogger(__name__)


def read_queues(
    database: Database,
    client: KubernetesClient,
    schedulers: Sequence[str],
    cluster: str,
    clock_ms: Callable[[], int],
    *,
    dry_run: bool = False,
) -> int:
    """Read the queues of a cluster and add the time since the last reading; return how many have a
    quota. What is not answered is logged once.
    """
    at_ms = clock_ms()
    readings = read_schedulers(client, schedulers, at_ms)
    with database.transaction(dry_run=dry_run) as connection:
        return store_readings(connection, cluster, readings, at_ms)


def store_readings(
    connection: Connection, cluster: str, readings: Sequence[SchedulerReading], at_ms: int
) -> int:
    """Store what the schedulers of a cluster said at an instant, unless a later one is known.

    A scheduler that did not answer keeps its quotas; one that is gone, or no longer asked, loses
    them.
    """
    known = scheduler_queues.lock_cluster(connection, cluster)
    if at_ms <= known.read_ms:
        return 0
    if known.reading is not None:
        scheduler_queues.add_hours(connection, integrate(known.reading, at_ms))
    merged = in_cluster(cluster, _merge(readings, at_ms))
    silent = [entry.scheduler for entry in readings if entry.is_unanswered]
    scheduler_queues.date_quotas(connection, cluster, merged.quotas, at_ms, kept=silent)
    tenants = [
        (entry.scheduler, name_in_cluster(cluster, name), name_in_cluster(cluster, queue))
        for entry in readings
        for name, queue in (entry.tenants or {}).items()
    ]
    unknown = [
        entry.scheduler
        for entry in readings
        if entry.is_unanswered or (entry.reading is not None and entry.tenants is None)
    ]
    scheduler_queues.date_tenants(connection, cluster, tenants, at_ms, kept=unknown)
    for entry in readings:
        if entry.workloads is not None:
            _store_workloads(connection, cluster, entry.workloads)
    problems = sorted(problem for entry in readings for problem in entry.problems)
    for problem in problems:
        if problem not in known.problems:
            log.warning("queues: %s: %s", problem.sentence(), problem.remedy())
    scheduler_queues.keep_reading(connection, cluster, merged, problems)
    return len({quota.place.queue for quota in only_leaves(merged.quotas)})


def _merge(readings: Iterable[SchedulerReading], at_ms: int) -> QueueReading:
    answered = [entry.reading for entry in readings if entry.reading is not None]
    waits = [wait for reading in answered for wait in reading.waits or ()]
    return QueueReading(
        at_ms,
        tuple(quota for reading in answered for quota in reading.quotas),
        tuple(use for reading in answered for use in reading.uses),
        tuple(waits) or None,
    )


def _store_workloads(
    connection: Connection, cluster: str, workloads: Sequence[QueuedWorkload]
) -> None:
    own = [
        replace(
            entry,
            queue=name_in_cluster(cluster, entry.queue),
            preempting_queue=name_in_cluster(cluster, entry.preempting_queue),
        )
        for entry in workloads
    ]
    known = scheduler_queues.admitted_workloads(connection, cluster)
    found = queue_quotas.evictions(own, known)
    scheduler_queues.add_evictions(connection, cluster, found)
    scheduler_queues.keep_admitted(connection, cluster, known, own)


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """Queues of a period with these words in their names; `listed`: all of them."""

    items: Sequence[QueueTime]
    sums: QueueSums
    listed: int


def read_queue_times(connection: Connection, period: Period, words: str = "") -> QueueTimes:
    """Read the GPU-time of queues in a period with its sums, those that waited beside unused quota
    first.

    `words`: parts of the names of queue, parent and scheduler, all of which it has.
    """
    listed = list_times(connection, period)
    items = [item for item in listed if _has_words(words, item.queue, item.parent, item.scheduler)]
    return QueueTimes(items, add_up_queues(items), len(listed))


def list_times(connection: Connection, period: Period) -> list[QueueTime]:
    """The GPU-time of each queue in a period, by its hours; those that waited beside unused quota
    first.
    """
    times = scheduler_queues.sum_times(connection, period)
    waited = scheduler_queues.waited_beside_unused(connection, period)
    unused = scheduler_queues.unused_quota(connection, period) if waited else []
    return rank_by_waiting(times, waited, unused)


def list_quotas(connection: Connection, period: Period, words: str = "") -> list[DatedQuota]:
    """Quotas that held in a period, with their dates."""
    return [
        quota
        for quota in scheduler_queues.list_quotas(connection, period)
        if _has_words(words, quota.queue, quota.parent, quota.scheduler, quota.pool, quota.flavor)
    ]


def list_tenants(connection: Connection, period: Period) -> list[DatedTenant]:
    """Queues that workloads name, with dates, and the queues that have their quotas."""
    return scheduler_queues.list_tenants(connection, period)


def list_evictions(connection: Connection, period: Period, words: str = "") -> list[Eviction]:
    """Workloads that were stopped in a period, newest first."""
    return [
        entry
        for entry in scheduler_queues.list_evictions(connection, period)
        if _has_words(
            words, entry.queue, entry.workload, entry.preempting_queue, entry.preempted_by
        )
    ]


def _has_words(words: str, *names: str) -> bool:
    text = " ".join(names).casefold()
    return all(word in text for word in words.casefold().split())


def examine_queues(connection: Connection, now_ms: int, days: int) -> QueueHealth:
    """Look for what of queues and quotas needs a remedy."""
    clusters = scheduler_queues.read_problems(connection)
    return QueueHealth(
        problems=tuple(problem for _, _, problems in clusters for problem in problems),
        silent=tuple(name for name, read_ms, _ in clusters if now_ms - read_ms > STALE_MS),
        over=tuple(_over(connection)),
        without_team=tuple(
            scheduler_queues.queues_without_team(connection, Period(now_ms - days * DAY_MS, now_ms))
        ),
        is_read=bool(clusters),
        queues=scheduler_queues.count_queues(connection),
    )


def _over(connection: Connection) -> Iterable[OverQuota]:
    """Pools of which quotas are more than there is; without a known pool, the fleet as a whole."""
    quotas = scheduler_queues.quota_by_pool(connection)
    capacity = scheduler_queues.capacity_by_pool(connection)
    for pool, quota in sorted(quotas.items()):
        if pool and pool in capacity and quota > capacity[pool]:
            yield OverQuota(pool, quota, capacity[pool])
    if not capacity:
        return
    has_unknown = any(pool not in capacity for pool in quotas)
    if has_unknown and sum(quotas.values()) > sum(capacity.values()):
        yield OverQuota("", sum(quotas.values()), sum(capacity.values()))

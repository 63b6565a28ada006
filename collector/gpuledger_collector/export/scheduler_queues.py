"""Queues of Kubernetes schedulers as lists: their GPU-hours, their quotas with dates, evictions."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from gpuledger_collector.accounting import readable
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.quantity import GPU_MICRO, hours_decimal
from gpuledger_collector.accounting.queue_quotas import (
    DatedQuota,
    DatedTenant,
    Eviction,
    QueueTime,
)
from gpuledger_collector.export.report import Column, Item, Kind, Report

NOTHING_KNOWN = (
    "none is known of this time; queues are read where kubernetes_queues is set"
    " (docs/guides/kubernetes.md#quotas)"
)


def say_remedy(item: QueueTime) -> str:
    """What would have served what waited beside unused quota; empty where nothing did."""
    if not item.spare_queue or not item.beside_unused_ns:
        return ""
    waited = readable.hours_text(item.beside_unused_ns)
    way = (
        "let it borrow (one cohort, borrowingLimit, lendingLimit)"
        if item.scheduler == "kueue"
        else "raise its limit"
    )
    return (
        f"{waited} GPU-hours of {item.queue} waited while {item.spare_queue} left quota unused:"
        f" {way}, or move quota to it"
    )


def _hours(
    name: str, value_ns: Callable[[Item], int | None], about: str = "", *, optional: bool = False
) -> Column[Item]:
    def value(item: Item) -> Decimal | None:
        known_ns = value_ns(item)
        return None if known_ns is None else hours_decimal([known_ns])[0]

    return Column(name, value, Kind.HOURS, about=about, is_optional=optional)


def _gpus(name: str, value_micro: Callable[[Item], int | None], about: str = "") -> Column[Item]:
    def value(item: Item) -> Decimal | None:
        known_micro = value_micro(item)
        return None if known_micro is None else Decimal(known_micro) / GPU_MICRO

    return Column(name, value, Kind.GPUS, about=about)


QUEUE_TIMES = Report[QueueTime](
    "queues",
    (
        Column("scheduler", lambda item: item.scheduler, is_optional=True),
        Column("queue", lambda item: item.queue),
        Column("parent", lambda item: item.parent or None, is_optional=True),
        _hours("gpu_hours_reserved", lambda item: item.reserved_ns, "Its quota, over time."),
        _hours("gpu_hours_used", lambda item: item.used_ns),
        _hours("gpu_hours_borrowed", lambda item: item.borrowed_ns, "Used beyond its quota."),
        _hours(
            "gpu_hours_lent",
            lambda item: item.lent_ns,
            "Of its quota, used by others: what these borrowed, by what each had to spare.",
        ),
        _hours(
            "gpu_hours_unused",
            lambda item: item.unused_ns,
            "Of its quota, used by nobody.",
            optional=True,
        ),
        _hours(
            "gpu_hours_waited",
            lambda item: item.waiting_ns,
            "GPUs of workloads that waited for quota, over time; empty where the scheduler counts"
            " no GPUs of what waits.",
            optional=True,
        ),
        _hours(
            "gpu_hours_waited_beside_unused",
            lambda item: item.beside_unused_ns,
            "Of that, what unused quota of other queues would have served.",
            optional=True,
        ),
        Column(
            "unused_quota_of",
            lambda item: item.spare_queue or None,
            about="The queue that left most quota unused of what waited here.",
            is_optional=True,
        ),
        Column(
            "evictions",
            lambda item: item.evictions,
            Kind.COUNT,
            about="Workloads that were stopped before they had finished; only Kueue says so.",
            is_optional=True,
        ),
        _hours(
            "gpu_hours_lost",
            lambda item: item.lost_ns,
            "Of these workloads, from their start to their end, where both were seen.",
            optional=True,
        ),
        Column(
            "known_hours",
            lambda item: Decimal(item.known_ms) / HOUR_MS,
            Kind.HOURS,
            about="How long its quota was known; nothing here counts the rest of the period.",
            is_optional=True,
        ),
    ),
)
QUOTAS = Report[DatedQuota](
    "queue_quotas",
    (
        Column("scheduler", lambda item: item.scheduler, is_optional=True),
        Column("queue", lambda item: item.queue),
        Column("flavor", lambda item: item.flavor or None),
        Column("resource", lambda item: item.resource, is_optional=True),
        Column("parent", lambda item: item.parent or None, is_optional=True),
        Column(
            "pool",
            lambda item: item.pool or None,
            about="That of the flavor's nodes, by their labels; empty where none is known.",
            is_optional=True,
        ),
        _gpus("quota_gpus", lambda item: item.quota_micro, "Empty: no bound, or no quota in GPUs."),
        _gpus(
            "borrowing_limit_gpus",
            lambda item: item.borrowing_micro,
            "Most beyond the quota; empty: no limit.",
        ),
        _gpus(
            "lending_limit_gpus",
            lambda item: item.lending_micro,
            "Most that others may take; empty: no limit.",
        ),
        Column("from", lambda item: item.from_ms, Kind.INSTANT, about="First reading with it."),
        Column(
            "until",
            lambda item: item.until_ms,
            Kind.INSTANT,
            about="First reading without it; empty: it holds.",
        ),
    ),
)
EVICTIONS = Report[Eviction](
    "queue_evictions",
    (
        Column("evicted_at", lambda item: item.evicted_ms, Kind.INSTANT),
        Column("workload", lambda item: item.workload),
        Column("queue", lambda item: item.queue or None),
        Column("reason", lambda item: item.reason or None, about="As the scheduler says it."),
        Column(
            "preempted_by",
            lambda item: item.preempted_by or None,
            about="The workload that it made room for: its name, or its UID where only that is"
            " known.",
        ),
        Column("preempting_queue", lambda item: item.preempting_queue or None, is_optional=True),
        _gpus("gpus", lambda item: item.gpu_micro),
        Column(
            "admitted_at",
            lambda item: item.admitted_ms,
            Kind.INSTANT,
            about="Empty: nobody saw its start.",
            is_optional=True,
        ),
        _hours("gpu_hours_lost", lambda item: item.lost_ns, "From its start to its end."),
    ),
)
TENANTS = Report[DatedTenant](
    "tenant_queues",
    (
        Column("scheduler", lambda item: item.scheduler),
        Column("name", lambda item: item.name, about="What bills and rules name."),
        Column("queue", lambda item: item.queue, about="The queue that has its quota."),
        Column("from", lambda item: item.from_ms, Kind.INSTANT),
        Column("until", lambda item: item.until_ms, Kind.INSTANT, about="Empty: it holds."),
    ),
)

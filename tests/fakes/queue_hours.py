"""An hour of two queues of Kueue, as 61 readings say it: `speech-cq` borrows 16 GPUs and waits for 8
more, while `vision-cq` leaves 32 of its 64 unused; a workload of vision makes room for one of speech
after half an hour.
"""

from dataclasses import replace

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.queue_quotas import (
    QueuedWorkload,
    QueueReading,
    QueueUse,
    QueueWait,
    Quota,
    QuotaPlace,
)
from gpuledger_collector.ingest.scheduler_queues.resources import SchedulerReading
from gpuledger_collector.services.scheduler_queues import store_readings
from gpuledger_collector.storage.database import Database

MINUTE_MS = 60_000
GPU = 1_000_000
LENDER, BORROWER = "vision-cq", "speech-cq"
EVICTED, PREEMPTOR = "vision/victim", "speech/urgent"
WAITED, UNUSED, BORROWED, LOST = 8, 32, 16, 4
"""GPU-hours of the hour."""


def reading(at_ms, workloads, lender=LENDER, borrower=BORROWER):
    """What Kueue has at an instant."""
    places = [QuotaPlace("kueue", name, "h100", "nvidia.com/gpu") for name in (lender, borrower)]
    quotas = [
        Quota(place, "gpus", "gpus", "train", quota_micro=gpus * GPU)
        for place, gpus in zip(places, (64, 32), strict=True)
    ]
    uses = QueueUse(places[0], 16 * GPU, 0), QueueUse(places[1], 48 * GPU, 16 * GPU)
    waits = (QueueWait("kueue", borrower, "nvidia.com/gpu", WAITED * GPU),)
    return SchedulerReading(
        "kueue",
        QueueReading(at_ms, tuple(quotas), uses, waits),
        {"vision/train": lender, "speech/asr": borrower},
        workloads,
    )


def fill_queues(dsn, start_ms, lender=LENDER, borrower=BORROWER):
    """Read the queues for an hour from an instant on."""
    half_ms = start_ms + HOUR_MS // 2
    victim = QueuedWorkload("uid-victim", EVICTED, lender, 8 * GPU, start_ms)
    evicted = replace(
        victim,
        queue="",
        admitted_ms=None,
        evicted_ms=half_ms,
        reason="Preempted",
        preemptor_uid="uid-urgent",
        preempting_queue=borrower,
    )
    urgent = QueuedWorkload("uid-urgent", PREEMPTOR, borrower, 8 * GPU, half_ms)
    with Database(dsn).transaction() as connection:
        for minute in range(61):
            at_ms = start_ms + minute * MINUTE_MS
            workloads = (victim,) if at_ms < half_ms else (evicted, urgent)
            found = reading(at_ms, workloads, lender, borrower)
            store_readings(connection, "", [found], at_ms)

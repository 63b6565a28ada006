"""Readings of a scheduler's queue as they are posted: decoded, checked and stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, parse_instant
from gpuledger_collector.ingest.batches import bounds
from gpuledger_collector.ingest.batches.decode import Refused
from gpuledger_collector.insight.queue_rows import QueueRow, WaitingRow
from gpuledger_collector.storage.capacity import queues
from gpuledger_collector.storage.database import Database

MAX_WAITING = 131_072
"""Waiting workloads in a reading, several times what a scheduler admits."""
MAX_GPUS = 1_000_000
MICRO = 1_000_000
MAX_TEXT = 500


class WaitingWorkload(msgspec.Struct):
    """A workload that waits; `submitted` in unix seconds."""

    workload_id: str
    gpus: float
    pool: str = ""
    gpu_model: str = ""
    team: str = ""
    user: str = ""
    account: str = ""
    submitted: float | None = None


class Queue(msgspec.Struct):
    """The queue of a source at an instant: unix seconds, or RFC 3339 with a zone."""

    source: str
    at: float | str
    waiting: list[WaitingWorkload]


def decode_reading(body: bytes, now_ms: int, oldest_ms: int) -> QueueRow:
    """Decode the reading in a body, which may be as old as `oldest_ms`. Raises Refused."""
    try:
        # Counted before they become objects: a workload of 30 bytes takes 400 as one.
        bounds.check_list(body, "waiting", MAX_WAITING)
        reading = msgspec.json.decode(body, type=Queue)
        at_ms = (
            parse_instant(reading.at) if isinstance(reading.at, str) else round(reading.at * 1000)
        )
    except bounds.TooLarge as error:
        raise Refused(413, str(error)) from error
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise Refused(400, f"the body is no reading of a queue: {error}") from error
    if not reading.source or len(reading.source) > MAX_TEXT or "\0" in reading.source:
        raise Refused(400, "source: a name of the scheduler is needed, such as slurm:NAME")
    if not oldest_ms <= at_ms <= now_ms + HOUR_MS:
        days = (
            f"{(now_ms - oldest_ms) // DAY_MS} days old (max_evidence_age_days), or in an hour"
            " from now"
        )
        raise Refused(
            400,
            f"at: a queue cannot have been read over {days}; gpuledger import queue takes older"
            " ones",
        )
    return QueueRow(reading.source, at_ms, tuple(_waiting_rows(reading.waiting)))


def _waiting_rows(waiting: Sequence[WaitingWorkload]) -> Iterable[WaitingRow]:
    """The rows of a reading's workloads. Raises Refused with the place of one that is invalid."""
    rows = {}
    for place, workload in enumerate(waiting):
        names = (
            workload.workload_id,
            workload.pool,
            workload.gpu_model,
            workload.team,
            workload.user,
            workload.account,
        )
        if not workload.workload_id or any(len(text) > MAX_TEXT or "\0" in text for text in names):
            raise Refused(
                400,
                f"waiting[{place}]: an id is needed, and texts of at most {MAX_TEXT} characters",
            )
        if not 0 < workload.gpus <= MAX_GPUS:
            raise Refused(400, f"waiting[{place}].gpus: must be more than 0 and at most {MAX_GPUS}")
        submitted = workload.submitted
        submitted_ms = (
            None if submitted is None or not 0 <= submitted < 4e9 else round(submitted * 1000)
        )
        gpu_micro = round(workload.gpus * MICRO)
        # By id: a scheduler that lists a workload twice has it wait once.
        rows[workload.workload_id] = WaitingRow(
            workload.workload_id, gpu_micro, *names[1:], submitted_ms=submitted_ms
        )
    return rows.values()


def store_reading(database: Database, row: QueueRow, sums: str, now_ms: int) -> bool:
    """Store a reading with its sums; False when it is stored already."""
    with database.transaction() as connection:
        return queues.upsert(connection, row, sums, now_ms) != "unchanged"

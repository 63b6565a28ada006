"""POST /v1/queue: what waits for GPUs in a scheduler's queue, read once for a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from fastapi import APIRouter, HTTPException, Request
from starlette.requests import ClientDisconnect

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, parse_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import RETRY_AFTER_SECONDS, LedgerRoute
from gpuledger_collector.api.intake import Intake, Reservation, authenticate_agent, receive_body
from gpuledger_collector.api.limits import OverQuota
from gpuledger_collector.ingest.batches import bounds
from gpuledger_collector.ingest.batches.commit import Unavailable
from gpuledger_collector.ingest.batches.decode import JSON_TYPES, Refused
from gpuledger_collector.insight.queue_rows import QueueRow, WaitingRow
from gpuledger_collector.storage.capacity import queues
from gpuledger_collector.storage.database import Database

PATH = "/v1/queue"
MAX_BYTES = 32 * 1024 * 1024
MAX_WAITING = 131_072
"""Waiting workloads in a reading, several times what a scheduler admits."""
MAX_STORED_BYTES = 4 * 1024 * 1024
"""Of the sums of a reading: some 20,000 kinds of waiting work."""
STORES = 2
"""Readings that are stored at once."""
STORE_SECONDS = 20
"""A reading that is not stored in this time is refused; the scheduler's next one replaces it."""
SESSION = f"-c statement_timeout={STORE_SECONDS}s -c lock_timeout=5s"
MAX_GPUS = 1_000_000
MICRO = 1_000_000
MAX_TEXT = 500
REFUSALS: dict[int | str, dict[str, str]] = {
    400: {"description": "The body is no reading of a queue; the detail says where."},
    401: {"description": "No valid bearer token."},
    403: {"description": "The token is not an agent's."},
    408: {"description": "The body took too long."},
    413: {"description": "The body, or what is to be stored of it, is too large."},
    415: {"description": "The content type is not application/json."},
    429: {
        "description": (
            "The node, or the token for any node, is over its quota: retry after Retry-After."
        )
    },
    503: {"description": "Not stored: retry after Retry-After."},
}


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


DESCRIPTION = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Queue"}}},
    }
}


def router(intake: Intake, database: Database) -> APIRouter:
    """The route; tokens, quotas and bounds are those of batches."""
    routes = APIRouter(tags=["agents"], responses=REFUSALS, route_class=LedgerRoute)
    storing, writing = (
        asyncio.Semaphore(STORES),
        database.as_application("gpuledger-queue", SESSION),
    )

    @routes.post(PATH, openapi_extra=DESCRIPTION)
    async def queue(request: Request) -> dict[str, str]:
        """Store one reading of a queue; the answer comes after COMMIT.

        The same reading again changes nothing.
        """
        sender = await authenticate_agent(request, intake.keys)
        with _refusals_as_answers(intake):
            # From cheap to dear: the quota and the type are checked before a byte of the body is
            # read.
            intake.quotas.take_queue_reading(sender.payer)
            # A web page that is open on this machine may post text to loopback, but not JSON
            # without our consent.
            if (
                request.headers.get("content-type", "").partition(";")[0].strip().lower()
                not in JSON_TYPES
            ):
                raise Refused(415, "the content type must be application/json")
            with Reservation(intake, sender) as reservation:
                body = await receive_body(request, reservation, MAX_BYTES)
                # One reading of a sender at a time, from decoding to COMMIT.
                async with reservation.large():
                    reservation.add(len(body))
                    row, sums = await _read(body, intake, sender)
                    async with storing:
                        return {
                            "status": await asyncio.to_thread(_store, writing, row, sums, intake)
                        }

    return routes


@contextlib.contextmanager
def _refusals_as_answers(intake: Intake) -> Iterator[None]:
    """Raise HTTPException for whatever refuses a reading."""
    try:
        yield
    except OverQuota as error:
        intake.refusals.note("queue", error)
        raise HTTPException(429, str(error), {"Retry-After": str(error.retry_after)}) from error
    except Unavailable as error:
        intake.refusals.note("queue", error)
        raise HTTPException(503, str(error), {"Retry-After": RETRY_AFTER_SECONDS}) from error
    except TimeoutError as error:
        raise HTTPException(408, intake.too_slow, {"Connection": "close"}) from error
    except Refused as refusal:
        raise HTTPException(refusal.status, refusal.detail) from refusal
    except ClientDisconnect as error:
        raise HTTPException(400, "the sender disconnected") from error


async def _read(body: bytes, intake: Intake, sender: Principal) -> tuple[QueueRow, str]:
    """The reading in a body and its sums, which the sender pays. Raises Refused."""
    now_ms = round(intake.clock().timestamp() * 1000)

    def read() -> tuple[QueueRow, str]:
        row = _parse(body, now_ms, intake.oldest_ms(now_ms))
        return row, queues.sums_json(row)

    async with intake.decoders:
        row, sums = await asyncio.to_thread(read)
    # What is refused has cost its bytes, and no more of it is kept.
    intake.quotas.take_queue_rows(sender.payer, len(row.waiting), len(body), len(sums))
    if len(sums) > MAX_STORED_BYTES:
        raise Refused(
            413,
            f"the sums of this queue by owner, pool and model are over {MAX_STORED_BYTES} bytes",
        )
    return row, sums


def _store(database: Database, row: QueueRow, sums: str, intake: Intake) -> str:
    with database.transaction() as connection:
        outcome = queues.store(connection, row, sums, intake.clock())
        return "duplicate" if outcome == "unchanged" else "committed"


def _parse(body: bytes, now_ms: int, oldest_ms: int) -> QueueRow:
    """Parse the reading in a body. Raises Refused."""
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

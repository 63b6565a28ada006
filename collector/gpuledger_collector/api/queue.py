"""POST /v1/queue: what waits for GPUs in a scheduler's queue, read once for a cluster."""

from __future__ import annotations

import asyncio
import datetime as dt

import msgspec
from fastapi import APIRouter, HTTPException, Request
from starlette.requests import ClientDisconnect

from gpuledger_collector.accounting.period import HOUR_MS, parse_instant
from gpuledger_collector.api.context import RETRY_AFTER_SECONDS, LedgerRoute
from gpuledger_collector.api.intake import Intake, Reservation, authenticate_agent, receive_body
from gpuledger_collector.ingest.batches.commit import Unavailable
from gpuledger_collector.ingest.batches.decode import JSON_TYPES, Refused
from gpuledger_collector.storage.capacity import queues
from gpuledger_collector.storage.capacity.queue_rows import QueueRow, WaitingRow
from gpuledger_collector.storage.database import Database

MAX_BYTES = 64 * 1024 * 1024
MAX_GPUS = 1_000_000
MICRO = 1_000_000
MAX_TEXT = 500
REFUSALS: dict[int | str, dict[str, str]] = {
    400: {"description": "The body is no reading of a queue; the detail says where."},
    401: {"description": "No valid bearer token."},
    403: {"description": "The token is not an agent's."},
    413: {"description": "The body is too large."},
    415: {"description": "The content type is not application/json."},
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
    """The route; tokens and bounds are those of batches."""
    routes = APIRouter(tags=["agents"], responses=REFUSALS, route_class=LedgerRoute)

    @routes.post("/v1/queue", openapi_extra=DESCRIPTION)
    async def queue(request: Request) -> dict[str, str]:
        """Store one reading of a queue; the answer comes after COMMIT. The same reading again changes nothing."""
        await authenticate_agent(request, intake.keys)
        # A web page that is open on this machine may post text to loopback, but not JSON without our consent.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in JSON_TYPES:
            raise HTTPException(415, "the content type must be application/json")
        try:
            with Reservation(intake) as reservation:
                body = await receive_body(request, reservation, MAX_BYTES)
                now = intake.clock()
                async with intake.decoders:
                    row = await asyncio.to_thread(_parse, body, round(now.timestamp() * 1000))
        except Unavailable as error:
            raise HTTPException(503, str(error), {"Retry-After": RETRY_AFTER_SECONDS}) from error
        except TimeoutError as error:
            raise HTTPException(408, intake.too_slow) from error
        except Refused as refusal:
            raise HTTPException(refusal.status, refusal.detail) from refusal
        except ClientDisconnect as error:
            raise HTTPException(400, "the sender disconnected") from error
        return {"status": await asyncio.to_thread(_store, database, row, now)}

    return routes


def _store(database: Database, row: QueueRow, now: dt.datetime) -> str:
    with database.transaction() as connection:
        return "duplicate" if queues.add(connection, [row], now).unchanged else "committed"


def _parse(body: bytes, now_ms: int) -> QueueRow:
    """Parse the reading in a body. Raises HTTPException (400)."""
    try:
        reading = msgspec.json.decode(body, type=Queue)
        at_ms = parse_instant(reading.at) if isinstance(reading.at, str) else round(reading.at * 1000)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise HTTPException(400, f"the body is no reading of a queue: {error}") from error
    if not reading.source or len(reading.source) > MAX_TEXT or "\0" in reading.source:
        raise HTTPException(400, "source: a name of the scheduler is needed, such as slurm:NAME")
    if not 0 <= at_ms <= now_ms + HOUR_MS:
        raise HTTPException(400, "at: a queue cannot have been read before 1970 or in an hour from now")
    rows = {}
    for place, waiting in enumerate(reading.waiting):
        names = (waiting.workload_id, waiting.pool, waiting.gpu_model, waiting.team, waiting.user, waiting.account)
        if not waiting.workload_id or any(len(text) > MAX_TEXT or "\0" in text for text in names):
            raise HTTPException(400, f"waiting[{place}]: an id is needed, and texts of at most {MAX_TEXT} characters")
        if not 0 < waiting.gpus <= MAX_GPUS:
            raise HTTPException(400, f"waiting[{place}].gpus: must be more than 0 and at most {MAX_GPUS}")
        submitted = waiting.submitted
        submitted_ms = None if submitted is None or not 0 <= submitted < 4e9 else round(submitted * 1000)
        gpu_micro = round(waiting.gpus * MICRO)
        # By id: a scheduler that lists a workload twice has it wait once.
        rows[waiting.workload_id] = WaitingRow(waiting.workload_id, gpu_micro, *names[1:], submitted_ms=submitted_ms)
    return QueueRow(reading.source, at_ms, tuple(rows.values()))

"""POST /v1/queue: what waits for GPUs in a scheduler's queue, read once for a cluster."""

from __future__ import annotations

import asyncio
import datetime as dt

import msgspec
from fastapi import APIRouter, HTTPException, Request
from starlette.requests import ClientDisconnect

from gpuledger_collector.accounting.period import HOUR_MS, parse_instant
from gpuledger_collector.api.batches import BODY_SECONDS, Held, Intake, sender_of
from gpuledger_collector.api.reads import RETRY_AFTER_SECONDS, denials, guarded
from gpuledger_collector.ingest.batches.commit import Unavailable
from gpuledger_collector.ingest.batches.decode import JSON_TYPES
from gpuledger_collector.storage.capacity import queues
from gpuledger_collector.storage.capacity.queue_rows import QueueRow, WaitingRow
from gpuledger_collector.storage.database import Database

MOST_BYTES = 64 * 1024 * 1024
MOST_GPUS = 1_000_000
MICRO = 1_000_000
MOST_TEXT = 500
REFUSALS: dict[int | str, dict[str, str]] = {
    400: {"description": "The body is no reading of a queue; the detail says where."},
    401: {"description": "No valid bearer token."},
    403: {"description": "The token is not an agent's."},
    413: {"description": "The body is too large."},
    415: {"description": "The content type is not application/json."},
    503: {"description": "Not kept: come back after Retry-After."},
}


class Waits(msgspec.Struct):
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
    """The whole queue of a source at an instant: unix seconds, or RFC 3339 with a zone."""

    source: str
    at: float | str
    waiting: list[Waits]


def router(intake: Intake, ledger: Database) -> APIRouter:
    """The route, bound to a ledger; the tokens and bounds of batches hold here too."""
    made = APIRouter(tags=["agents"], responses=REFUSALS)

    @made.post("/v1/queue", openapi_extra=DESCRIPTION)
    async def queue(request: Request) -> dict[str, str]:
        """Keep one reading of a queue; the answer comes after it is committed. The same again changes nothing."""
        with denials():
            await sender_of(request, intake.keys)
        # A page of the web that somebody on this machine opens may post text here, and JSON only if we let it.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in JSON_TYPES:
            raise HTTPException(415, "the content type must be application/json")
        try:
            with Held(intake) as held:
                body = await _received(request, held)
                now = intake.clock()
                async with intake.decoders:
                    row = await asyncio.to_thread(_row, body, round(now.timestamp() * 1000))
        except Unavailable as error:
            raise HTTPException(503, str(error), {"Retry-After": RETRY_AFTER_SECONDS}) from error
        outcome = await asyncio.to_thread(guarded, lambda: _keep(ledger, row, now))
        return {"status": outcome}

    return made


async def _received(request: Request, held: Held) -> bytes:
    """The whole body. Raises HTTPException (400, 408, 413), or Unavailable when too much is under way."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                held.add(len(chunk))
                body += chunk
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, f"the body is over {MOST_BYTES} bytes")
    except TimeoutError as error:
        raise HTTPException(408, f"the body took longer than {BODY_SECONDS:.0f} s") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the sender went away") from error
    return bytes(body)


def _keep(ledger: Database, row: QueueRow, now: dt.datetime) -> str:
    with ledger.transaction() as connection:
        kept = queues.add(connection, [row], now)
    return "duplicate" if kept.unchanged else "committed"


def _row(body: bytes, now_ms: int) -> QueueRow:
    """The reading of a body. Raises HTTPException (400) with what is wrong with it."""
    try:
        read = msgspec.json.decode(body, type=Queue)
        at_ms = parse_instant(read.at) if isinstance(read.at, str) else round(read.at * 1000)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise HTTPException(400, f"the body is no reading of a queue: {error}") from error
    if not read.source or len(read.source) > MOST_TEXT or "\0" in read.source:
        raise HTTPException(400, "source: a name of the scheduler is needed, such as slurm:NAME")
    if not 0 <= at_ms <= now_ms + HOUR_MS:
        raise HTTPException(400, "at: a queue cannot have been read before 1970 or in an hour from now")
    seen = {}
    for place, one in enumerate(read.waiting):
        texts = (one.workload_id, one.pool, one.gpu_model, one.team, one.user, one.account)
        if not one.workload_id or any(len(text) > MOST_TEXT or "\0" in text for text in texts):
            raise HTTPException(400, f"waiting[{place}]: an id is needed, and texts of at most {MOST_TEXT} characters")
        if not 0 < one.gpus <= MOST_GPUS:
            raise HTTPException(400, f"waiting[{place}].gpus: must be more than 0 and at most {MOST_GPUS}")
        since = None if one.submitted is None or not 0 <= one.submitted < 4e9 else round(one.submitted * 1000)
        seen[one.workload_id] = WaitingRow(one.workload_id, round(one.gpus * MICRO), *texts[1:], submitted_ms=since)
    return QueueRow(read.source, at_ms, tuple(seen.values()))


DESCRIPTION = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["source", "at", "waiting"],
                    "properties": {
                        "source": {"type": "string"},
                        "at": {"type": ["number", "string"], "description": "unix seconds, or RFC 3339 with a zone"},
                        "waiting": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["workload_id", "gpus"],
                                "properties": {
                                    "workload_id": {"type": "string"},
                                    "gpus": {"type": "number"},
                                    **{
                                        name: {"type": "string"}
                                        for name in ("pool", "gpu_model", "team", "user", "account")
                                    },
                                    "submitted": {"type": "number", "description": "unix seconds"},
                                },
                            },
                        },
                    },
                }
            }
        },
    }
}

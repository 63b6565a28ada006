"""POST /v1/queue: what waits for GPUs in a scheduler's queue, read once for a cluster."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import LedgerRoute
from gpuledger_collector.api.intake import (
    Intake,
    Reservation,
    authenticate_agent,
    receive_body,
    refusals_as_answers,
    require_json,
)
from gpuledger_collector.ingest import queue_readings
from gpuledger_collector.ingest.batches.decode import Refused
from gpuledger_collector.insight.queue_rows import QueueRow
from gpuledger_collector.services.database import Database

PATH = "/v1/queue"
MAX_BYTES = 32 * 1024 * 1024
MAX_STORED_BYTES = 4 * 1024 * 1024
"""Of the sums of a reading: some 20,000 kinds of waiting work."""
STORES = 2
"""Readings that are stored at once."""
STORE_SECONDS = 20
"""A reading that is not stored in this time is refused; the scheduler's next one replaces it."""
SESSION = f"-c statement_timeout={STORE_SECONDS}s -c lock_timeout=5s"
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
        with refusals_as_answers(intake, "queue"):
            # From cheap to dear: the quota and the type are checked before a byte of the body is
            # read.
            intake.quotas.take_queue_reading(sender.payer)
            require_json(request)
            with Reservation(intake, sender) as reservation:
                body = await receive_body(request, reservation, MAX_BYTES)
                # One reading of a sender at a time, from decoding to COMMIT.
                async with reservation.large():
                    reservation.add(len(body))
                    row, sums = await _read(body, intake, sender)
                    async with storing:
                        is_new = await asyncio.to_thread(
                            queue_readings.store_reading, writing, row, sums, intake.clock()
                        )
                        return {"status": "committed" if is_new else "duplicate"}

    return routes


async def _read(body: bytes, intake: Intake, sender: Principal) -> tuple[QueueRow, str]:
    """The reading in a body and its sums, which the sender pays. Raises Refused."""
    now_ms = intake.clock()

    def read() -> tuple[QueueRow, str]:
        row = queue_readings.decode_reading(body, now_ms, intake.oldest_ms(now_ms))
        return row, row.sums_json()

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

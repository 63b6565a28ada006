"""POST /v1/inference: what tenants were answered by shared model servers, as a gateway counted it."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from gpuledger_collector.accounting.inference import TokenRecord
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.context import LedgerRoute
from gpuledger_collector.api.intake import (
    Intake,
    Reservation,
    authenticate_agent,
    receive_body,
    refusals_as_answers,
    require_json,
)
from gpuledger_collector.ingest import token_records
from gpuledger_collector.services.database import Database

PATH = "/v1/inference"
MAX_BYTES = 8 * 1024 * 1024
STORES = 1
"""Reports that are stored at once: tokens have one writer."""
STORE_SECONDS = 30
SESSION = f"-c statement_timeout={STORE_SECONDS}s -c lock_timeout=10s"
REFUSALS: dict[int | str, dict[str, str]] = {
    400: {"description": "A record is refused; the detail says which and why. None is stored."},
    401: {"description": "No valid bearer token."},
    403: {"description": "The token is bound to one node, or not an agent's."},
    408: {"description": "The body took too long."},
    413: {"description": "The body is too large, or has too many records."},
    415: {"description": "The content type is not application/json."},
    429: {"description": "The token is over its quota: retry after Retry-After."},
    503: {"description": "Not stored: retry after Retry-After."},
}
DESCRIPTION = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/InferenceReport"}}
        },
    }
}


def router(intake: Intake, database: Database) -> APIRouter:
    """The route; tokens, quotas and bounds are those of batches."""
    routes = APIRouter(tags=["agents"], responses=REFUSALS, route_class=LedgerRoute)
    storing, writing = (
        asyncio.Semaphore(STORES),
        database.as_application("gpuledger-inference", SESSION),
    )

    @routes.post(PATH, openapi_extra=DESCRIPTION)
    async def inference(request: Request) -> dict[str, int]:
        """Store the records of a gateway; the answer comes after COMMIT.

        A record is told by its id: the same again changes nothing, and of two contents the greater
        holds. One bad record refuses all.
        """
        with refusals_as_answers(intake, "inference"):
            sender = await authenticate_agent(request, intake.keys)
            # A gateway answers for servers of any node, which a token of a single node must not
            # speak for.
            if sender.node is not None:
                raise Denied(
                    403,
                    f"the token of {sender.name} is for one node: tokens need one for any"
                    " (--node '*')",
                )
            intake.quotas.check_records(sender.payer)
            require_json(request)
            with Reservation(intake, sender) as reservation:
                body = await receive_body(request, reservation, MAX_BYTES)
                async with reservation.large():
                    reservation.add(len(body))
                    records = await _read(body, intake, sender)
                    async with storing:
                        outcome = await asyncio.to_thread(
                            token_records.store_records, writing, records
                        )
            return {
                "stored": outcome.stored,
                "unchanged": outcome.unchanged,
                "conflicting": outcome.conflicting,
                "too_old": outcome.too_old,
            }

    return routes


async def _read(body: bytes, intake: Intake, sender: Principal) -> list[TokenRecord]:
    """The records in a body, which the sender pays. Raises Refused."""
    now_ms = intake.clock()
    async with intake.decoders:
        records = await asyncio.to_thread(
            token_records.decode_report, body, now_ms, intake.oldest_ms(now_ms)
        )
    intake.quotas.take_records(sender.payer, len(records), len(body))
    return records

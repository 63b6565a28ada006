"""POST /v1/batches: receive, decode, validate and commit a batch, then answer.

Whatever is wrong with the input is a 4xx with a sentence. Whatever is wrong with the collector is a
503 with Retry-After, because the agent keeps the batch and sends it again. Nothing is answered 200
before COMMIT.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from fastapi import APIRouter, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.api.auth.keys import KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.intake import (
    AnyRequest,
    BatchRequest,
    Intake,
    Reservation,
    authenticate_agent,
    media_type,
    receive_body,
)
from gpuledger_collector.api.limits import Load, OverQuota
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.ingest.batches.bounds import inflated_bytes
from gpuledger_collector.ingest.batches.commit import REFUSED, Unavailable
from gpuledger_collector.ingest.batches.decode import (
    ENCODINGS,
    JSON_TYPES,
    MSGPACK_TYPES,
    Refused,
    decode,
)
from gpuledger_collector.ingest.batches.store import NewItems
from gpuledger_collector.ingest.batches.validate import Accepted, accept
from gpuledger_common.wire import MAX_DECODED_BYTES, Answer

PATH = "/v1/batches"
RETRY_AFTER_SECONDS = 5
INLINE_BYTES = 64 * 1024
"""Bodies up to this size are decoded on the event loop: a thread costs more than decoding a small
one.
"""
INLINE_INFLATED_BYTES = 1024 * 1024
"""Unless they decompress to more than this."""
MAX_SKEW_MS = 10 * 365 * 86_400_000
STATUS = {"committed": 200, "duplicate": 200, "partial": 422, "refused": 409}
HEADERS = {401: ((b"www-authenticate", b"Bearer"),), 408: ((b"connection", b"close"),)}
"""Further headers by status; a sender that was too slow does not keep its connection."""

log = logging.getLogger(__name__)


def router(endpoint: ASGIApp) -> APIRouter:
    """The route for FastAPI and its description; `Application` of api/app.py sends batches past it."""
    routes = APIRouter()

    @routes.post(PATH, openapi_extra=DESCRIPTION, responses=ANSWERS, tags=["agents"])
    async def batches() -> Forward:
        """Commit one batch of a node; the answer comes after COMMIT.

        The batch counts once, however often it is sent. Refused records are listed, the others are
        committed.
        """
        return Forward(endpoint)

    return routes


class Forward(Response):
    """The answer of an ASGI application to the same request."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        await self._app(scope, receive, send)


def create_endpoint(intake: Intake) -> ASGIApp:
    """The ASGI application that answers requests with a batch."""
    outcomes = (*STATUS, "disconnected", "throttled", "unavailable")
    counters = {outcome: intake.metrics.batches.labels(status=outcome) for outcome in outcomes}

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        began, wait_s, outcome = time.perf_counter(), RETRY_AFTER_SECONDS, ""
        try:
            status, answer = await answer_request(BatchRequest(scope, receive), intake)
        except ClientDisconnect:
            # Nobody hears this answer; the batch was not refused, and comes again.
            status, answer, outcome = (
                400,
                Answer("refused", detail="the sender disconnected"),
                "disconnected",
            )
        except Refused as refusal:
            status, answer = refusal.status, Answer("refused", detail=refusal.detail)
        except Denied as denial:
            status, answer = denial.status, Answer("refused", detail=str(denial))
            intake.metrics.denied.labels(status=str(denial.status)).inc()
        except (Unavailable, KeysUnavailable) as error:
            intake.refusals.note("batches", error)
            status, answer = 503, Answer("refused", detail=str(error))
        except OverQuota as error:
            intake.refusals.note("batches", error)
            status, answer, wait_s = 429, Answer("refused", detail=str(error)), error.retry_after
        except REFUSED as error:
            # Not 422: that would mean that the rest of the batch is committed.
            reason = str(error).strip().partition("\n")[0]
            status, answer = (
                400,
                Answer("refused", detail=f"the database refuses this batch: {reason}"),
            )
        except Exception:
            log.exception("unexpected error while handling a batch")
            status, answer = (
                503,
                Answer("refused", detail="internal error; see the collector's log"),
            )
        intake.metrics.answer_seconds.observe(time.perf_counter() - began)
        # The answer to these is `refused`, but they are no fault of the sender's.
        counters[outcome or {503: "unavailable", 429: "throttled"}.get(status, answer.status)].inc()
        body = msgspec.json.encode(answer)
        headers = [
            *HEADERS.get(status, ()),
            *([(b"retry-after", str(wait_s).encode())] if status in (429, 503) else ()),
            (b"content-length", str(len(body)).encode()),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return endpoint


async def answer_request(request: AnyRequest, intake: Intake) -> tuple[int, Answer]:
    """HTTP status and answer of a request.

    Raises Denied, OverQuota, Refused, Unavailable, or what writers raised.
    """
    # From cheap to dear: token, quota and headers are checked before a byte of the body is read.
    sender = await authenticate_agent(request, intake.keys)
    if sender.node is not None:
        intake.quotas.check(sender.node)
    content_type, encoding = _media_types(request)
    sent_at_ms = _sent_at(request)
    # A token for any node may be that of every agent: their batches are bounded by node, in
    # `commit`.
    with Reservation(intake, sender, is_fleet=sender.node is None) as reservation:
        try:
            body = await receive_body(request, reservation)
        except TimeoutError as error:
            raise Refused(408, intake.too_slow) from error
        intake.metrics.bytes.inc(len(body))

        def read() -> Accepted:
            now_ms = intake.clock()
            skew_ms = (
                None
                if sent_at_ms is None or abs(now_ms - sent_at_ms) >= MAX_SKEW_MS
                else now_ms - sent_at_ms
            )
            return accept(
                decode(body, content_type, encoding),
                now_ms,
                skew_ms,
                intake.oldest_ms(now_ms),
                intake.gateway_nodes,
            )

        # As the frame states it, before anything is decompressed; gzip's statement can be forged
        # and counts as unknown.
        size = inflated_bytes(body, encoding)
        if len(body) <= INLINE_BYTES and size is not None and size <= INLINE_INFLATED_BYTES:
            return await commit(read(), len(body), intake, sender)
        # One large body of a node at a time; `decoders` bounds them over all nodes.
        async with reservation.large():
            reservation.add(min(MAX_DECODED_BYTES, size or len(body)))
            async with intake.decoders:
                accepted = await asyncio.to_thread(read)
            return await commit(accepted, len(body), intake, sender)


async def commit(
    accepted: Accepted, size: int, intake: Intake, sender: Principal
) -> tuple[int, Answer]:
    """Commit what was accepted of a body of this size. Raises Denied, OverQuota, Unavailable."""
    # Only now is the node known: it stands in the batch.
    sender.require_node(accepted.node)
    new = intake.count_new(accepted)
    intake.quotas.take(accepted.node, _load(accepted, size, new))
    answer = await intake.commit.submit(accepted)
    if new.owners:
        intake.remember_owners(new.owners)
    _count(accepted, answer, intake.metrics)
    return STATUS[answer.status], answer


def _load(accepted: Accepted, size: int, new: NewItems) -> Load:
    """What a batch takes of its node's quotas."""
    # An interval is an entry for each hour that it reaches into; agents cut theirs at every hour.
    intervals = accepted.usage_intervals.values()
    hours = sum(1 + (interval.end_ms - interval.start_ms - 1) // HOUR_MS for interval in intervals)
    return Load(
        samples=accepted.samples + hours + len(accepted.counts) + len(accepted.token_counts),
        bytes=size,
        inflated_bytes=accepted.size,
        names=len(accepted.accelerators) + len(accepted.workloads),
        new_names=new.names,
        new_days=new.days,
        new_owners=len(new.owners),
    )


def _count(accepted: Accepted, answer: Answer, metrics: Metrics) -> None:
    """Count what was committed; a repeated answer counts nothing again."""
    if answer.status == "committed" or (
        answer.status == "partial" and answer.rejected is accepted.rejected
    ):
        metrics.samples.inc(accepted.samples)
        metrics.usage_intervals.inc(len(accepted.usage_intervals))
        metrics.rejected.inc(len(accepted.rejected))


def _media_types(request: AnyRequest) -> tuple[str, str]:
    """Content type and encoding in lower case. Raises Refused (415)."""
    content_type = media_type(request)
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if content_type not in MSGPACK_TYPES | JSON_TYPES:
        raise Refused(415, "the content type must be application/msgpack or application/json")
    if encoding not in ENCODINGS:
        raise Refused(415, "the content encoding must be zstd, gzip or identity")
    return content_type, encoding


def _sent_at(request: AnyRequest) -> int | None:
    """The agent's clock when it sent the request, unix milliseconds. Raises Refused (400)."""
    text = request.headers.get("x-gpuledger-sent-at")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise Refused(400, "X-GPULedger-Sent-At must be unix milliseconds")
    return int(text)


DESCRIPTION = {
    "parameters": [
        {
            "name": "X-GPULedger-Sent-At",
            "in": "header",
            "required": False,
            "schema": {"type": "integer"},
            "description": (
                "The sender's clock, unix milliseconds; stored as the node's clock skew."
            ),
        },
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "schema": {"enum": ["zstd", "gzip", "identity"]},
            "description": "Compression of the body; default: none.",
        },
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Batch"}},
            "application/msgpack": {"schema": {"type": "string", "format": "binary"}},
        },
    },
}
_ANSWER_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}}
ANSWERS: dict[int | str, dict[str, object]] = {
    status: {"description": text, "content": _ANSWER_CONTENT}
    for status, text in {
        200: "Committed now, or before (duplicate).",
        400: "The body cannot be decoded, or has no usable key.",
        401: "No valid bearer token.",
        403: "The token is bound to another node, or is not an agent's.",
        408: "The body took too long.",
        409: "Other bytes are known under this batch's key.",
        413: "The body is too large, as sent or decompressed: split the batch.",
        415: "Unsupported content type or encoding.",
        422: (
            "Some records are refused and listed; the others are committed. Resending gets the same"
            " answer."
        ),
        429: "The node is over its quota: retry after Retry-After.",
        503: "Not committed: retry after Retry-After.",
    }.items()
}

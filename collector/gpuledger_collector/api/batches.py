"""POST /v1/batches: from a request to an answer that is true.

The body is bounded while it streams in, decoded, judged, committed with its neighbours, and only then answered.
Whatever is wrong with the input is a 4xx with a sentence; whatever is wrong with us is a 503 with Retry-After, because
the agent keeps the batch and comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import psycopg
from fastapi import APIRouter, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuledger_collector.api.auth.keys import Keys, KeysAway
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.limits import WHOLE, Load, OverQuota, Quotas
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.ingest.batches.bounds import inflated_bytes
from gpuledger_collector.ingest.batches.commit import GroupCommit, Unavailable
from gpuledger_collector.ingest.batches.decode import ENCODINGS, JSON_TYPES, MSGPACK_TYPES, Refused, decode
from gpuledger_collector.ingest.batches.envelope import MAX_BODY_BYTES, MAX_DECODED_BYTES, Answer
from gpuledger_collector.ingest.batches.store import News
from gpuledger_collector.ingest.batches.validate import EARLIEST_MS, Accepted, accept

RETRY_AFTER_SECONDS = 5
BODY_SECONDS = 60.0
"""How long a body may take to arrive: a sender of one byte a second must not hold a place."""
GRACE_SECONDS = 10.0
LEAST_BYTES_PER_SECOND = 1024
"""How fast a body must come after GRACE_SECONDS, on the whole."""
INLINE_BYTES = 64 * 1024
"""Bodies up to here are decoded on the event loop; handing a small one to a thread costs more than decoding it."""
INLINE_INFLATED_BYTES = 1024 * 1024
"""Unless they become more than this."""
DECODERS = 2
"""Large bodies that are decoded at once: each may take many times its size while it is."""
HOUR_MS = 3_600_000
MAX_SKEW_MS = 10 * 365 * 86_400_000
STATUS = {"committed": 200, "duplicate": 200, "partial": 422, "refused": 409}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Intake:
    """What the route needs: the writers, who may send, and how much may be under way."""

    commit: GroupCommit[Accepted, Answer]
    metrics: Metrics
    clock: Callable[[], dt.datetime]
    keys: Keys
    most_bytes: int = 256 * 1024 * 1024
    body_seconds: float = BODY_SECONDS
    grace_seconds: float = GRACE_SECONDS
    max_age_ms: int | None = None
    """How old evidence may be; None: of any age."""
    quotas: Quotas = field(default_factory=Quotas)
    news_of: Callable[[Accepted], News] = lambda _: News(0, 0)
    """What of a batch this collector has not met yet."""
    under_way: int = field(default=0, init=False)
    """Bytes of bodies that are being received or answered."""
    decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS), init=False)
    nodes: dict[str, NodeShare] = field(default_factory=dict, init=False)
    """What nodes whose tokens are bound to them have under way now."""

    def oldest_ms(self, now_ms: int) -> int:
        """The earliest instant of evidence that is taken now."""
        return EARLIEST_MS if self.max_age_ms is None else now_ms - self.max_age_ms


@dataclass(slots=True)
class NodeShare:
    """What one node has under way: requests, bytes, and its one place among the large bodies."""

    requests: int = 0
    bytes: int = 0
    large: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class Held:
    """Bytes that one request holds of what may be under way; given back at the end of the block.

    A node whose token is bound to it holds half of all at most, so that it cannot have others turned away.
    """

    intake: Intake
    node: str | None = None
    bytes: int = 0

    def __enter__(self) -> Held:
        if self.node is not None:
            self.intake.nodes.setdefault(self.node, NodeShare()).requests += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.intake.under_way -= self.bytes
        if self.node is not None:
            share = self.intake.nodes[self.node]
            share.requests -= 1
            share.bytes -= self.bytes
            if not share.requests:
                del self.intake.nodes[self.node]

    def add(self, size: int) -> None:
        """Hold more. Raises Unavailable when too much is under way."""
        self.bytes += size
        self.intake.under_way += size
        if self.node is not None:
            share = self.intake.nodes[self.node]
            share.bytes += size
            if share.bytes > self.intake.most_bytes // 2:
                raise Unavailable(f"too much of {self.node} is under way")
        if self.intake.under_way > self.intake.most_bytes:
            raise Unavailable("too much is under way")

    @contextlib.asynccontextmanager
    async def large(self) -> AsyncIterator[None]:
        """A place for a large body, from decoding it to its COMMIT; a node that is known has one at a time.

        Raises OverQuota when what the node sent before has used up its quota meanwhile.
        """
        if self.node is None:
            yield
            return
        async with self.intake.nodes[self.node].large:
            self.intake.quotas.check(self.node)
            yield


PATH = "/v1/batches"


class Asking(Protocol):
    """What is looked at of a request: one of Starlette's, or an Asked."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Values by name, which is in lower case."""

    @property
    def receive(self) -> Receive:
        """The next message of the body."""

    @property
    def scope(self) -> Scope:
        """What the server says of it."""


class Asked:
    """A request with a batch, made at a tenth of what a Request costs: there are many, and little is asked of each."""

    __slots__ = ("headers", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        # As with Starlette, the first of several headers of a name counts.
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        self.scope, self.receive = scope, receive


def router(endpoint: ASGIApp) -> APIRouter:
    """The route as FastAPI has it; `Application` of api/app.py takes batches past it."""
    made = APIRouter()

    @made.post(PATH, openapi_extra=DESCRIPTION, responses=ANSWERS, tags=["agents"])
    async def batches() -> Passed:
        """Take one batch of a node; the answer comes after it is committed.

        The batch counts once, however often it is sent. Records that cannot be kept are listed, the rest is kept.
        """
        return Passed(endpoint)

    return made


class Passed(Response):
    """What an ASGI application answers to the same request."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Its answer."""
        await self._app(scope, receive, send)


def endpoint_of(intake: Intake) -> ASGIApp:
    """What answers a request with a batch, bound to its intake."""
    answered = {told: intake.metrics.batches.labels(status=told) for told in (*STATUS, "throttled", "unavailable")}

    async def batches(scope: Scope, receive: Receive, send: Send) -> None:
        begun, wait_s = time.perf_counter(), RETRY_AFTER_SECONDS
        request = Asked(scope, receive)
        try:
            status, answer = await answer_to(request, intake)
        except ClientDisconnect:
            status, answer = 400, Answer("refused", detail="the sender went away")
        except Refused as refusal:
            status, answer = refusal.status, Answer("refused", detail=refusal.detail)
        except Denied as denial:
            status, answer = denial.status, Answer("refused", detail=str(denial))
            intake.metrics.denied.labels(status=str(denial.status)).inc()
        except (Unavailable, KeysAway) as error:
            status, answer = 503, Answer("refused", detail=str(error))
        except OverQuota as error:
            status, answer, wait_s = 429, Answer("refused", detail=str(error)), error.retry_after
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            # Not 422: that would say that the rest of the batch is committed.
            status, answer = 400, Answer("refused", detail=f"the database refuses this batch: {first_line(error)}")
        except Exception:
            log.exception("a batch could not be handled")
            status, answer = 503, Answer("refused", detail="a fault in the collector; it is in its log")
        intake.metrics.answer_seconds.observe(time.perf_counter() - begun)
        answered[{503: "unavailable", 429: "throttled"}.get(status, answer.status)].inc()
        body = msgspec.json.encode(answer)
        headers = [
            *HEADERS.get(status, ()),
            *([(b"retry-after", str(wait_s).encode())] if status in (429, 503) else ()),
            (b"content-length", str(len(body)).encode()),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return batches


HEADERS = {401: ((b"www-authenticate", b"Bearer"),), 408: ((b"connection", b"close"),)}
"""What a status says besides; a sender that was too slow does not keep its connection."""


async def answer_to(request: Asking, intake: Intake) -> tuple[int, Answer]:
    """HTTP status and answer for a request. Raises Denied, OverQuota, Refused, Unavailable, or what writers raised."""
    who = await sender_of(request, intake.keys)
    if who.node is not None:
        intake.quotas.check(who.node)
    content_type, encoding = media_of(request)
    sent_at_ms = sent_at(request)
    with Held(intake, who.node) as held:
        try:
            body = await receive(request, held)
        except TimeoutError as error:
            raise Refused(408, too_slow(intake)) from error
        return await commit(body, content_type, encoding, sent_at_ms, held, who)


async def receive(request: Asking, held: Held) -> bytes:
    """The whole body. Raises Refused (413), Unavailable, and TimeoutError for one that comes too slowly."""
    announced = bounded_length(request)
    if WHOLE in request.scope.get("extensions", ()):
        body, _ = await next_part(request, held)
    else:
        body = await receive_slowly(request, held, announced)
    if len(body) > MAX_BODY_BYTES:
        raise Refused(413, f"the body is over {MAX_BODY_BYTES} bytes: send less at once")
    held.intake.metrics.bytes.inc(len(body))
    return body


async def receive_slowly(request: Asking, held: Held, announced: int | None) -> bytes:
    """A body that comes in parts; not more of one that is too large than shows it. Raises TimeoutError."""
    intake, loop = held.intake, asyncio.get_running_loop()
    begun, body, more = loop.time(), bytearray(), True
    async with asyncio.timeout(min(intake.body_seconds, intake.grace_seconds)) as limit:
        while more and len(body) <= MAX_BODY_BYTES:
            chunk, more = await next_part(request, held)
            body += chunk
            if more and len(body) != announced:
                seconds = min(intake.body_seconds, intake.grace_seconds + len(body) / LEAST_BYTES_PER_SECOND)
                limit.reschedule(begun + seconds)
    return bytes(body)


async def next_part(request: Asking, held: Held) -> tuple[bytes, bool]:
    """The next bytes of a body, and whether more come. Raises Unavailable, and ClientDisconnect."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    held.add(len(body))
    return body, message.get("more_body", False)


def too_slow(intake: Intake) -> str:
    """Why a body was let go."""
    return (
        f"the body took longer than {intake.body_seconds:.0f} s, or came at less than {LEAST_BYTES_PER_SECOND} bytes a "
        f"second after {intake.grace_seconds:.0f} s"
    )


async def commit(
    body: bytes, content_type: str, encoding: str, sent_at_ms: int | None, held: Held, who: Principal
) -> tuple[int, Answer]:
    """Decode, judge and commit a body; status and answer. Raises Denied for a node that is not the sender's."""
    intake = held.intake

    def read() -> Accepted:
        now_ms = int(intake.clock().timestamp() * 1000)
        skew_ms = None if sent_at_ms is None or abs(now_ms - sent_at_ms) >= MAX_SKEW_MS else now_ms - sent_at_ms
        return accept(decode(body, content_type, encoding), now_ms, skew_ms, intake.oldest_ms(now_ms))

    size = inflated_bytes(body, encoding)
    if len(body) <= INLINE_BYTES and size is not None and size <= INLINE_INFLATED_BYTES:
        accepted = read()
        return await keep(accepted, len(body), intake, who)
    async with held.large():
        held.add(min(MAX_DECODED_BYTES, size or len(body)))
        async with intake.decoders:
            accepted = await asyncio.to_thread(read)
        return await keep(accepted, len(body), intake, who)


async def keep(accepted: Accepted, size: int, intake: Intake, who: Principal) -> tuple[int, Answer]:
    """Commit what was accepted of a body of this size; status and answer. Raises Denied, OverQuota, Unavailable."""
    who.may_report(accepted.node)
    intake.quotas.take(accepted.node, load_of(accepted, size, intake.news_of(accepted)))
    answer = await intake.commit.submit(accepted)
    count(accepted, answer, intake.metrics)
    return STATUS[answer.status], answer


def load_of(accepted: Accepted, size: int, news: News) -> Load:
    """What a batch takes of its node's quotas."""
    return Load(
        # An interval is an entry for each hour that it reaches into; agents cut theirs at every hour.
        samples=accepted.samples
        + sum(1 + (one.end_ms - one.start_ms - 1) // HOUR_MS for one in accepted.usage_intervals.values())
        + len(accepted.counts),
        bytes=size,
        inflated_bytes=accepted.size,
        names=len(accepted.accelerators) + len(accepted.workloads),
        new_names=news.names,
        new_days=news.days,
    )


def count(accepted: Accepted, answer: Answer, metrics: Metrics) -> None:
    """Count what was committed; a repeated answer counts nothing anew."""
    if answer.status == "committed" or (answer.status == "partial" and answer.rejected is accepted.rejected):
        metrics.samples.inc(accepted.samples)
        metrics.usage_intervals.inc(len(accepted.usage_intervals))
        metrics.rejected.inc(len(accepted.rejected))


async def sender_of(request: Asking, keys: Keys) -> Principal:
    """Who sends this. Raises Denied, or KeysAway when that cannot be said now."""
    header = request.headers.get("authorization", "")
    if not keys.is_fresh(header):
        await keys.refreshed(header)
    return keys.agent(header)


def media_of(request: Asking) -> tuple[str, str]:
    """Content type and encoding, lower case. Raises Refused (415) for those that are not understood."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if content_type not in MSGPACK_TYPES | JSON_TYPES:
        raise Refused(415, "the content type must be application/msgpack or application/json")
    if encoding not in ENCODINGS:
        raise Refused(415, "the content encoding must be zstd, gzip or identity")
    return content_type, encoding


def sent_at(request: Asking) -> int | None:
    """The agent's clock when it sent this, unix milliseconds. Raises Refused (400) for what is no number."""
    text = request.headers.get("x-gpuledger-sent-at")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise Refused(400, "X-GPULedger-Sent-At must be unix milliseconds")
    return int(text)


def bounded_length(request: Asking) -> int | None:
    """The length that a body announces. Raises Refused (413) for one too large, before a byte of it is read."""
    length = request.headers.get("content-length", "")
    if not length.isdigit():
        return None
    if int(length) > MAX_BODY_BYTES:
        raise Refused(413, f"the body is over {MAX_BODY_BYTES} bytes: send less in one batch")
    return int(length)


def first_line(error: Exception) -> str:
    """What the driver said, without its context."""
    return str(error).strip().partition("\n")[0]


DESCRIPTION = {
    "parameters": [
        {
            "name": "X-GPULedger-Sent-At",
            "in": "header",
            "required": False,
            "schema": {"type": "integer"},
            "description": "The sender's clock, unix milliseconds; kept as the node's clock skew.",
        },
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "schema": {"enum": ["zstd", "gzip", "identity"]},
            "description": "How the body is compressed; without it, not at all.",
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


def _answer(text: str) -> dict[str, object]:
    return {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}},
    }


ANSWERS: dict[int | str, dict[str, object]] = {
    200: _answer("Committed now, or known already (duplicate)."),
    400: _answer("The body cannot be decoded, or has no usable key."),
    401: _answer("No valid bearer token."),
    403: _answer("The token is not that of this node, or not an agent's."),
    408: _answer("The body took too long."),
    409: _answer("Other bytes are known under this batch's key."),
    413: _answer("The body is too large, as sent or decompressed: split the batch."),
    415: _answer("Content type or encoding is not understood."),
    429: _answer("The node sends more than its quota: come back after Retry-After."),
    422: _answer("Some records are refused and listed; the others are committed. Again the same answer."),
    503: _answer("Not committed: come back after Retry-After."),
}

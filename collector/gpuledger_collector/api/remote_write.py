"""POST /api/v1/write: Prometheus remote write 1.0 and 2.0, by the receiver's rules of their
specification.

A sender drops what is answered 4xx and keeps what is answered 5xx. So wrong samples are a 400, and
a fault of the collector or a temporary condition is a 503. Nothing is answered 2xx before COMMIT.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from fastapi import APIRouter, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuledger_collector.api.auth.keys import KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied
from gpuledger_collector.api.batches import (
    INLINE_BYTES,
    INLINE_INFLATED_BYTES,
    RETRY_AFTER_SECONDS,
    Forward,
)
from gpuledger_collector.api.intake import (
    DECODERS,
    BatchRequest,
    Intake,
    Reservation,
    authenticate_agent,
    receive_body,
)
from gpuledger_collector.api.limits import OverQuota, Quota
from gpuledger_collector.ingest.batches.commit import REFUSED, GroupCommit, Unavailable
from gpuledger_collector.ingest.batches.decode import Refused
from gpuledger_collector.ingest.remote_write.decode import (
    WriteRequest,
    decode,
    decode_known,
    inflated_size,
)
from gpuledger_collector.ingest.remote_write.series import SeriesCache
from gpuledger_collector.ingest.remote_write.store import WriteResult

PATH = "/api/v1/write"
PROTOBUF = "application/x-protobuf"
VERSIONS = {"prometheus.writerequest": 1, "io.prometheus.write.v2.request": 2}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RemoteIntake:
    """The writers of remote write; tokens and bounds are those of the intake of batches."""

    intake: Intake
    commit: GroupCommit[WriteRequest, WriteResult]
    quota: Quota = field(default_factory=lambda: Quota(0, "samples"))
    """By the name of the sender's token."""
    cache: SeriesCache = field(default_factory=SeriesCache)
    is_started: bool = False
    decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS))

    def submit(self, request: WriteRequest) -> asyncio.Future[WriteResult]:
        """Queue a request; the writers start with the first."""
        if not self.is_started:
            self.is_started = True
            self.commit.start()
        return self.commit.submit(request)

    def current_cache(self) -> SeriesCache:
        """The cache for the next request: a new one when the old is full."""
        if self.cache.is_full:
            self.cache = SeriesCache(self.cache.reader)
        return self.cache

    def close(self, seconds: float) -> None:
        """Commit waiting requests."""
        if self.is_started:
            self.commit.close(seconds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status, number of written samples, and a sentence for the sender's log."""

    status: int
    written: int = 0
    text: str = ""
    wait_s: int = RETRY_AFTER_SECONDS
    close: bool = False


class TooSlow(Unavailable):
    """A body that came too slowly; its sender may retry on another connection."""


def router(endpoint: ASGIApp) -> APIRouter:
    """The route for FastAPI and its description; `Application` of api/app.py sends requests past
    it.
    """
    routes = APIRouter()

    @routes.post(
        PATH, status_code=204, responses=ANSWERS, openapi_extra=DESCRIPTION, tags=["prometheus"]
    )
    async def write() -> Forward:
        """Commit samples of dcgm-exporter and of agents from Prometheus.

        Other samples are counted and ignored.

        The same samples again change nothing. Scrapes may be late by up to
        `remote_write_window_seconds`.
        """
        return Forward(endpoint)

    return routes


def create_endpoint(remote: RemoteIntake) -> ASGIApp:
    """The ASGI application that answers requests of remote write."""

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            outcome = await answer_request(BatchRequest(scope, receive), remote)
        except ClientDisconnect:
            outcome = Outcome(400, text="the sender disconnected")
        except Refused as refusal:
            outcome = Outcome(refusal.status, text=refusal.detail)
        except Denied as denial:
            outcome = Outcome(denial.status, text=str(denial))
            remote.intake.metrics.denied.labels(status=str(denial.status)).inc()
        except TooSlow as error:
            outcome = Outcome(503, text=str(error), close=True)
        except (Unavailable, KeysUnavailable) as error:
            remote.intake.refusals.note("write", error)
            outcome = Outcome(503, text=str(error))
        except OverQuota as error:
            remote.intake.refusals.note("write", error)
            outcome = Outcome(503, text=str(error), wait_s=error.retry_after)
        except REFUSED:
            outcome = Outcome(400, text="the database refuses these samples")
        except Exception:
            log.exception("unexpected error while handling a request of remote write")
            outcome = Outcome(503, text="internal error; see the collector's log")
        await _response(outcome)(scope, receive, send)

    return endpoint


def _response(outcome: Outcome) -> Response:
    headers = {
        "X-Prometheus-Remote-Write-Samples-Written": str(outcome.written),
        "X-Prometheus-Remote-Write-Histograms-Written": "0",
        "X-Prometheus-Remote-Write-Exemplars-Written": "0",
    }
    if outcome.status == 503:
        headers["Retry-After"] = str(outcome.wait_s)
    if outcome.close:
        headers["Connection"] = "close"
    if outcome.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if outcome.status == 204:
        return Response(None, 204, headers)
    return Response(f"{outcome.text}\n", outcome.status, headers, media_type="text/plain")


async def answer_request(request: BatchRequest, remote: RemoteIntake) -> Outcome:
    """The outcome of a request. Raises Denied, Refused, Unavailable, or what the writers raised."""
    intake = remote.intake
    sender = await authenticate_agent(request, intake.keys)
    # One Prometheus sends for many nodes, which a token of a single node must not speak for.
    if sender.node is not None:
        raise Denied(
            403,
            f"the token of {sender.name} is for one node: remote write needs one for any (--node"
            " '*')",
        )
    version = _version(request)
    # Over quota is 503, not 429: Prometheus drops what is answered 429 unless it is told to retry.
    remote.quota.check(sender.name)
    with Reservation(intake, sender) as reservation:
        try:
            body = await receive_body(request, reservation)
        except TimeoutError as error:
            raise TooSlow(intake.too_slow) from error
        intake.metrics.bytes.inc(len(body))
        # The block format states its length in the first bytes (a varint of at most five): memory
        # is reserved before decompressing.
        size = inflated_size(body[:5])
        reservation.add(size)
        return await commit(body, size, version, remote, sender.name)


async def commit(
    body: bytes, size: int, version: int, remote: RemoteIntake, sender: str
) -> Outcome:
    """Decode and commit a body of `size` decompressed bytes."""
    now_ms = remote.intake.clock()
    cache, oldest_ms = remote.current_cache(), remote.intake.oldest_ms(now_ms)
    decoded = None
    if size <= INLINE_BYTES:
        decoded = decode(body, version, cache, now_ms, oldest_ms)
    elif version == 1 and size <= INLINE_INFLATED_BYTES:
        decoded = decode_known(body, cache, now_ms, oldest_ms)
    if decoded is None:
        async with remote.decoders:
            decoded = await asyncio.to_thread(decode, body, version, cache, now_ms, oldest_ms)
    result = WriteResult(decoded.stale, 0)
    # Foreign samples cost decoding as well, so they count.
    remote.quota.take(sender, decoded.samples + decoded.foreign)
    if decoded.samples or decoded.inference or decoded.gateway:
        result = await remote.submit(decoded)
    for outcome, samples in {
        "written": result.samples,
        "foreign": decoded.foreign,
        "refused": decoded.refusals + result.too_old,
    }.items():
        remote.intake.metrics.remote_samples.labels(outcome=outcome).inc(samples)
    reasons = list(decoded.refused)
    if result.too_old:
        reasons.append(
            f"{result.too_old} samples are older than their accelerator's newest by more than the"
            " window"
        )
    # 400, since Prometheus does not retry it: the good samples are committed, and the others would
    # be refused again.
    return Outcome(400 if reasons else 204, result.samples, "; ".join(reasons))


def _version(request: BatchRequest) -> int:
    """The version of the protocol, 1 or 2, by the content type. Raises Refused (415)."""
    kind, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    if kind.strip() != PROTOBUF:
        raise Refused(415, f"the content type must be {PROTOBUF}")
    if request.headers.get("content-encoding", "").strip().lower() != "snappy":
        raise Refused(415, "the content encoding must be snappy, in its block format")
    proto = "prometheus.writerequest"
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "proto":
            proto = value.strip().strip('"')
    if proto not in VERSIONS:
        raise Refused(
            415, "proto must be prometheus.WriteRequest or io.prometheus.write.v2.Request"
        )
    return VERSIONS[proto]


DESCRIPTION = {
    "requestBody": {
        "required": True,
        "content": {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}},
    },
}
ANSWERS: dict[int | str, dict[str, object]] = {
    204: {"description": "Committed, or known already; the headers say how many samples."},
    400: {
        "description": (
            "Not decodable, or some samples are refused for good; the others are committed."
        )
    },
    401: {"description": "No valid bearer token."},
    403: {"description": "The token is bound to one node, or not an agent's."},
    413: {"description": "The body is too large, as sent or decompressed."},
    415: {"description": "Unsupported content type or encoding."},
    503: {"description": "Not committed: retry after Retry-After."},
}

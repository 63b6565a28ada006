"""POST /api/v1/write: Prometheus remote write 1.0 and 2.0, by the receiver's rules of their specification.

A sender drops what is answered 4xx and keeps what is answered 5xx or 429: so what is wrong with the samples is a 400,
and whatever is wrong with us, or passes, is a 503. Nothing is answered 2xx before it is committed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import psycopg
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from gpuledger_collector.api.auth.keys import KeysAway
from gpuledger_collector.api.auth.principal import Denied
from gpuledger_collector.api.batches import (
    INLINE_BYTES,
    RETRY_AFTER_SECONDS,
    Held,
    Intake,
    receive,
    sender_of,
    too_slow,
)
from gpuledger_collector.api.limits import OverQuota, Quota
from gpuledger_collector.ingest.batches.commit import GroupCommit, Unavailable
from gpuledger_collector.ingest.batches.decode import Refused
from gpuledger_collector.ingest.remote_write.decode import Writing, decode, inflated_size
from gpuledger_collector.ingest.remote_write.series import Book
from gpuledger_collector.ingest.remote_write.store import Written

PROTOBUF = "application/x-protobuf"
VERSIONS = {"prometheus.writerequest": 1, "io.prometheus.write.v2.request": 2}
DECODERS = 2
"""Bodies that are decoded at once: each may take many times its size while it is."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RemoteIntake:
    """What the route needs beside the intake of batches, whose tokens and bounds hold here too."""

    intake: Intake
    commit: GroupCommit[Writing, Written]
    quota: Quota = field(default_factory=lambda: Quota(0, "samples"))
    """By the name of the sender's token."""
    book: Book = field(default_factory=Book)
    started: bool = False
    decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS))

    def writers(self) -> GroupCommit[Writing, Written]:
        """The writers, started when the first request comes."""
        if not self.started:
            self.started = True
            self.commit.start()
        return self.commit

    def pages(self) -> Book:
        """The book to enter series in."""
        if self.book.is_full:
            self.book = Book()
        return self.book

    def close(self, seconds: float) -> None:
        """Commit what waits."""
        if self.started:
            self.commit.close(seconds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status, written samples, and a sentence for the sender's log."""

    status: int
    written: int = 0
    text: str = ""
    wait_s: int = RETRY_AFTER_SECONDS
    close: bool = False


class TooSlow(Unavailable):
    """A body that came too slowly; its sender may try again on another connection."""


def router(remote: RemoteIntake) -> APIRouter:
    """The route, bound to its intake."""
    made = APIRouter()

    @made.post("/api/v1/write", status_code=204, responses=ANSWERS, openapi_extra=DESCRIPTION, tags=["prometheus"])
    async def write(request: Request) -> Response:
        """Take samples from Prometheus: those of dcgm-exporter, and of agents. Others are counted and passed over.

        The same samples again change nothing. Scrapes may come late by the window of `remote_write_window_seconds`.
        """
        try:
            outcome = await outcome_of(request, remote)
        except ClientDisconnect:
            outcome = Outcome(400, text="the sender went away")
        except Refused as refusal:
            outcome = Outcome(refusal.status, text=refusal.detail)
        except Denied as denial:
            outcome = Outcome(denial.status, text=str(denial))
            remote.intake.metrics.denied.labels(status=str(denial.status)).inc()
        except TooSlow as error:
            outcome = Outcome(503, text=str(error), close=True)
        except (Unavailable, KeysAway) as error:
            outcome = Outcome(503, text=str(error))
        except OverQuota as error:
            outcome = Outcome(503, text=str(error), wait_s=error.retry_after)
        except (psycopg.DataError, psycopg.IntegrityError):
            log.exception("a request of remote write is refused by the database")
            outcome = Outcome(400, text="the database refuses these samples")
        except Exception:
            log.exception("a request of remote write could not be handled")
            outcome = Outcome(503, text="a fault in the collector; it is in its log")
        return _response(outcome)

    return made


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


async def outcome_of(request: Request, remote: RemoteIntake) -> Outcome:
    """What becomes of a request. Raises Denied, Refused, Unavailable, or what the writers raised."""
    intake = remote.intake
    who = await sender_of(request, intake.keys)
    if who.node is not None:
        raise Denied(403, f"the token of {who.name} is for one node: remote write needs one for any (--node '*')")
    version = version_of(request)
    # Over quota is 503, not 429: Prometheus drops what is answered 429 unless it is told to retry.
    remote.quota.check(who.name)
    with Held(intake) as held:
        try:
            body = await receive(request, held)
        except TimeoutError as error:
            raise TooSlow(too_slow(intake)) from error
        size = inflated_size(body[:5])
        held.add(size)
        return await commit(body, size, version, remote, who.name)


async def commit(body: bytes, size: int, version: int, remote: RemoteIntake, sender: str) -> Outcome:
    """Decode and commit a body that inflates to `size` bytes."""
    now_ms = int(remote.intake.clock().timestamp() * 1000)
    book, oldest_ms = remote.pages(), remote.intake.oldest_ms(now_ms)
    if size <= INLINE_BYTES:
        writing = decode(body, version, book, now_ms, oldest_ms)
    else:
        async with remote.decoders:
            writing = await asyncio.to_thread(decode, body, version, book, now_ms, oldest_ms)
    written = Written(writing.stale, 0)
    remote.quota.take(sender, writing.samples + writing.foreign)
    if writing.samples or writing.counts:
        written = await remote.writers().submit(writing)
    metrics = remote.intake.metrics
    metrics.remote_samples.labels(outcome="written").inc(written.samples)
    metrics.remote_samples.labels(outcome="foreign").inc(writing.foreign)
    metrics.remote_samples.labels(outcome="refused").inc(writing.refusals + written.too_old)
    reasons = list(writing.refused)
    if written.too_old:
        reasons.append(f"{written.too_old} samples are older than their accelerator's newest by more than the window")
    if reasons:
        return Outcome(400, written.samples, "; ".join(reasons))
    return Outcome(204, written.samples)


def version_of(request: Request) -> int:
    """1 or 2, by the content type. Raises Refused (415) for what is no remote write."""
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
        raise Refused(415, "proto must be prometheus.WriteRequest or io.prometheus.write.v2.Request")
    return VERSIONS[proto]


DESCRIPTION = {
    "requestBody": {
        "required": True,
        "content": {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}},
    },
}
ANSWERS: dict[int | str, dict[str, object]] = {
    204: {"description": "Committed, or known already; the headers tell how many samples."},
    400: {"description": "Not decodable, or some samples are refused for good; the others are committed."},
    401: {"description": "No valid bearer token."},
    403: {"description": "The token is bound to one node, or not an agent's."},
    413: {"description": "The body is too large, as sent or decompressed."},
    415: {"description": "Content type or encoding is not that of remote write."},
    503: {"description": "Not committed: come back after Retry-After."},
}

"""What reporting routes share: who may send, and how many bytes may be in progress at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from fastapi import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from gpuledger_collector.api.auth.keys import Keys
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import RETRY_AFTER_SECONDS
from gpuledger_collector.api.limits import COMPLETE_BODY, OverQuota, Quotas
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.api.refusals import Refusals, Route, TooMuchInProgress
from gpuledger_collector.ingest.batches.commit import GroupCommit, Unavailable
from gpuledger_collector.ingest.batches.decode import JSON_TYPES, Refused
from gpuledger_collector.ingest.batches.store import NewItems, Owner
from gpuledger_collector.ingest.batches.validate import EARLIEST_MS, Accepted
from gpuledger_common.wire import MAX_BODY_BYTES, Answer

BODY_SECONDS = 60.0
"""How long a body may take to arrive: a sender of one byte a second must not occupy memory."""
GRACE_SECONDS = 10.0
MIN_BYTES_PER_SECOND = 1024
"""The mean rate at which a body must arrive after GRACE_SECONDS."""
DECODERS = 2
"""Large bodies decoded at once: each may take many times its size meanwhile."""
SHARE = 2
"""One sender may have one part in so many of the bytes that may be in progress."""


@dataclass(slots=True)
class Intake:
    """The writers, who may send, and how much may be in progress."""

    commit: GroupCommit[Accepted, Answer]
    metrics: Metrics
    clock: Callable[[], int]
    keys: Keys
    max_bytes: int = 256 * 1024 * 1024
    body_seconds: float = BODY_SECONDS
    grace_seconds: float = GRACE_SECONDS
    max_age_ms: int | None = None
    """The greatest accepted age of evidence; None: any age."""
    gateway_nodes: Collection[str] = ()
    """Nodes whose agents may report tokens of gateways; `*`: any."""
    quotas: Quotas = field(default_factory=Quotas)
    count_new: Callable[[Accepted], NewItems] = lambda _: NewItems(0, 0)
    """Counts what this collector has not seen of a batch."""
    remember_owners: Callable[[Collection[Owner]], None] = lambda _: None
    """Takes note of the new owners of a batch once it is committed."""
    in_progress: int = field(default=0, init=False)
    """Bytes of bodies that are being received or committed."""
    decoders: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(DECODERS), init=False
    )
    refusals: Refusals = field(init=False)
    payers: dict[str, Progress] = field(default_factory=dict, init=False)
    """What each sender has in progress, by `Principal.payer`; fleets that share a token are left
    out.
    """

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.metrics)

    def oldest_ms(self, now_ms: int) -> int:
        """The earliest accepted instant of evidence."""
        return EARLIEST_MS if self.max_age_ms is None else now_ms - self.max_age_ms

    @property
    def too_slow(self) -> str:
        """Why a slow body is refused."""
        return (
            f"the body took longer than {self.body_seconds:.0f} s, or came at less than"
            f" {MIN_BYTES_PER_SECOND} bytes a second after {self.grace_seconds:.0f} s"
        )


@dataclass(slots=True)
class Progress:
    """What one payer has in progress: requests, bytes, and a lock that admits one large body at a
    time.
    """

    requests: int = 0
    bytes: int = 0
    large: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class Reservation:
    """Bytes that one request occupies of what may be in progress; released at the end of the block.

    A sender occupies at most half of all, so that it cannot crowd others out.
    """

    intake: Intake
    sender: Principal
    """Who pays."""
    is_fleet: bool = False
    """Whether all agents of a fleet may share the sender's token, so that it may occupy everything.
    """
    bytes: int = 0

    def __enter__(self) -> Reservation:
        if not self.is_fleet:
            self.intake.payers.setdefault(self.sender.payer, Progress()).requests += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.intake.in_progress -= self.bytes
        if not self.is_fleet:
            progress = self.intake.payers[self.sender.payer]
            progress.requests -= 1
            progress.bytes -= self.bytes
            if not progress.requests:
                del self.intake.payers[self.sender.payer]

    def add(self, size: int) -> None:
        """Occupy more. Raises Unavailable when too much is in progress."""
        self.bytes += size
        self.intake.in_progress += size
        if not self.is_fleet:
            progress = self.intake.payers[self.sender.payer]
            progress.bytes += size
            # The sender's own limit first: its message says whose bytes are too many.
            if progress.bytes > self.intake.max_bytes // SHARE:
                sentence = f"too many bytes of {self.sender.payer} are in progress"
                raise TooMuchInProgress(sentence, self.sender.payer)
        if self.intake.in_progress > self.intake.max_bytes:
            raise TooMuchInProgress("too many bytes are in progress", "")

    @contextlib.asynccontextmanager
    async def large(self) -> AsyncIterator[None]:
        """Wait until no other large body of the same sender is between decoding and COMMIT.

        Raises OverQuota when what was sent meanwhile has used up its quota.
        """
        if self.is_fleet:
            yield
            return
        async with self.intake.payers[self.sender.payer].large:
            self.intake.quotas.check(self.sender.payer)
            yield


class BatchRequest:
    """A request with a batch, created at a tenth of the cost of Starlette's: there are many, and
    little is needed.
    """

    __slots__ = ("headers", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        # As in Starlette, the first of several headers of a name counts.
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in reversed(scope["headers"])
        }
        self.scope, self.receive = scope, receive


AnyRequest = Request | BatchRequest


@contextlib.contextmanager
def refusals_as_answers(intake: Intake, route: Route) -> Iterator[None]:
    """Raise HTTPException for whatever refuses a report on a route."""
    try:
        yield
    except OverQuota as error:
        intake.refusals.note(route, error)
        raise HTTPException(429, str(error), {"Retry-After": str(error.retry_after)}) from error
    except Unavailable as error:
        intake.refusals.note(route, error)
        raise HTTPException(503, str(error), {"Retry-After": RETRY_AFTER_SECONDS}) from error
    except TimeoutError as error:
        raise HTTPException(408, intake.too_slow, {"Connection": "close"}) from error
    except Refused as refusal:
        raise HTTPException(refusal.status, refusal.detail) from refusal
    except ClientDisconnect as error:
        raise HTTPException(400, "the sender disconnected") from error


def media_type(request: AnyRequest) -> str:
    """The content type of a body in lower case, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_json(request: AnyRequest) -> None:
    """Raise Refused (415) for a body that is not said to be JSON.

    A web page that is open on this machine may post text to loopback, but not JSON without our
    consent.
    """
    if media_type(request) not in JSON_TYPES:
        raise Refused(415, "the content type must be application/json")


async def authenticate_agent(request: AnyRequest, keys: Keys) -> Principal:
    """The sender of a request. Raises Denied, or KeysUnavailable."""
    header = request.headers.get("authorization", "")
    if not keys.is_fresh(header):
        await keys.refresh_once(header)
    return keys.agent(header)


async def receive_body(
    request: AnyRequest, reservation: Reservation, max_bytes: int = MAX_BODY_BYTES
) -> bytes:
    """Receive a body.

    Raises Refused (408, 413), Unavailable, ClientDisconnect, and TimeoutError when it is slow.
    """
    announced = _announced_length(request, max_bytes)
    if COMPLETE_BODY in request.scope.get("extensions", ()):
        body, _ = await _receive_part(request, reservation)
    else:
        body = await _receive_parts(request, reservation, announced, max_bytes)
    if len(body) > max_bytes:
        raise Refused(413, f"the body is over {max_bytes} bytes: send less in one request")
    return body


async def _receive_parts(
    request: AnyRequest, reservation: Reservation, announced: int | None, max_bytes: int
) -> bytes:
    intake, loop = reservation.intake, asyncio.get_running_loop()
    began, body, has_more = loop.time(), bytearray(), True
    async with asyncio.timeout(min(intake.body_seconds, intake.grace_seconds)) as limit:
        while has_more and len(body) <= max_bytes:
            part, has_more = await _receive_part(request, reservation)
            body += part
            # The deadline moves with what has arrived; a body that has its announced length only
            # lacks its end.
            if has_more and len(body) != announced:
                seconds = min(
                    intake.body_seconds, intake.grace_seconds + len(body) / MIN_BYTES_PER_SECOND
                )
                limit.reschedule(began + seconds)
    return bytes(body)


async def _receive_part(request: AnyRequest, reservation: Reservation) -> tuple[bytes, bool]:
    """The next bytes of a body, and whether more come. Raises Unavailable, and ClientDisconnect."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    part: bytes = message.get("body", b"")
    reservation.add(len(part))
    return part, message.get("more_body", False)


def _announced_length(request: AnyRequest, max_bytes: int) -> int | None:
    """The announced length of a body.

    Raises Refused (413) when it is too large, before a byte of it is read.
    """
    length = request.headers.get("content-length", "")
    if not length.isdigit():
        return None
    # An honest sender is told before it sends; one that announces less is bounded while it is read.
    if int(length) > max_bytes:
        raise Refused(413, f"the body is over {max_bytes} bytes: send less in one request")
    return int(length)

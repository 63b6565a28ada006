"""Limits on one sender: records, bytes, names and days of a node, the time for a request,
connections.

A quota is a token bucket. What a node sends is taken out of it, and while the bucket is negative
the node is asked to come back when it no longer is. A single large batch is always accepted, and a
spool that is sent after an outage finds the full bucket of a quiet minute; so nothing is refused
forever, and nothing that is refused is lost. `BoundedProtocol` disconnects slow senders: uvicorn
itself waits forever for a head that never ends.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field, fields
from typing import Any

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

BURST_SECONDS = 60.0
"""Size of a bucket, in seconds of its rate."""
HOUR_SECONDS = 3600.0
"""Size of the buckets of names and days, which stay in the database."""
SHARED_FROM = 0.05
"""Part of a bucket that must be used before other processes are told."""
MAX_BUCKETS = 100_000
"""The least recently used bucket is dropped beyond this number."""
JITTER = 0.2
"""Greatest random part added to a wait, so that nodes refused together do not return together."""
HEAD_SECONDS = 15.0
"""How long the head of a request may take, from the connection or from its first byte."""
MAX_HEAD_BYTES = 64 * 1024
BODY_SECONDS = 75.0
"""How long a body may take on any route; slow batches are refused sooner, with an answer."""
MAX_BODY_BYTES = 256 * 1024
"""Bound of routes without one of their own: the longest dispute with every character escaped."""
OPERATION_THREADS = 4
"""Threads for /readyz and /metrics, which may wait for the database."""
PROGRESS_SAMPLES = 100
"""What a report of progress takes of the samples: it is a transaction of its own, a sample is part
of one.
"""
_TELLS_BODY = hasattr(AutoHTTPProtocol, "on_body")
COMPLETE_BODY = "gpuledger.complete_body"
"""Extension of a request's scope: its body has arrived completely, in one part."""


class OverQuota(Exception):
    """A sender has used up its quota; it may come back after `seconds`."""

    def __init__(self, sentence: str, seconds: float, payer: str = "") -> None:
        super().__init__(sentence)
        self.seconds, self.payer = seconds, payer

    @property
    def retry_after(self) -> int:
        """Seconds for the header, rounded up, with random jitter."""
        return max(1, math.ceil(self.seconds * (1 + JITTER * random.random())))


@dataclass(slots=True)
class Quota:
    """Buckets by name.

    `rate` is units per second, 0 for no quota; `unit` names them in the refusal.
    """

    rate: float
    unit: str
    steady: Callable[[], float] = time.monotonic
    burst_s: float = BURST_SECONDS
    """Size of a bucket in seconds of its rate; with an hour, the refusal states the rate per hour.
    """
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """Level of each bucket, and when it was computed."""
    _unsettled: dict[str, float] = field(default_factory=dict, init=False)
    """Taken of buckets that are not nearly full, and not yet known to other processes
    (`shared_quotas`).
    """

    def check(self, name: str) -> None:
        """Raise OverQuota while the bucket is negative."""
        if not self.rate:
            return
        level = self._level(name)
        if level < 0:
            rate, per = (
                (self.rate * 3600, "an hour")
                if self.burst_s == HOUR_SECONDS
                else (self.rate, "a second")
            )
            raise OverQuota(
                f"{name} sends more than {rate:.0f} {self.unit} {per}", -level / self.rate, name
            )

    def take(self, name: str, amount: float) -> None:
        """Take an amount out of the bucket, which may become negative. Call `check` before."""
        if not self.rate:
            return
        level = self._level(name) - amount
        # Taken out and put back, so that the dictionary is in the order of last use.
        self._buckets.pop(name, None)
        while len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = level, self.steady()
        # Others need not know of senders that never come near their quota: in quiet times nothing
        # is written.
        if level < (1 - SHARED_FROM) * self.rate * self.burst_s:
            self._unsettled[name] = self._unsettled.get(name, 0.0) + amount

    def collect_unsettled(self) -> dict[str, float]:
        """What was taken since the last call, to be settled with other processes."""
        taken, self._unsettled = self._unsettled, {}
        return taken

    def return_unsettled(self, name: str, amount: float) -> None:
        """Keep for the next settlement what could not be settled."""
        if len(self._unsettled) < MAX_BUCKETS:
            self._unsettled[name] = self._unsettled.get(name, 0.0) + amount

    def adopt(self, name: str, used: float) -> None:
        """Set the level to what all processes have used, and to what this one has taken meanwhile."""
        level = self.rate * self.burst_s - used - self._unsettled.get(name, 0.0)
        self._buckets[name] = level, self.steady()

    def _level(self, name: str) -> float:
        full = self.rate * self.burst_s
        # An unknown or dropped bucket is full, which errs in favor of the sender.
        if name not in self._buckets:
            return full
        level, at = self._buckets[name]
        return min(full, level + (self.steady() - at) * self.rate)


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch takes of its node's quotas."""

    samples: int
    """Samples, hours of usage intervals and readings of counters."""
    bytes: int
    inflated_bytes: int
    names: int
    """Accelerators and workloads in its lists."""
    new_names: int = 0
    """Those of them that this collector has not seen."""
    new_days: int = 0
    """Days of samples or usage for which this collector has created no partition."""
    new_owners: int = 0
    """Owners in the tags of its workloads that this collector has not seen."""


@dataclass(slots=True)
class Quotas:
    """The quotas of nodes, by the fields of Load."""

    samples: Quota = field(default_factory=lambda: Quota(0, "samples"))
    bytes: Quota = field(default_factory=lambda: Quota(0, "bytes"))
    inflated_bytes: Quota = field(default_factory=lambda: Quota(0, "decompressed bytes"))
    names: Quota = field(default_factory=lambda: Quota(0, "accelerators and workloads"))
    new_names: Quota = field(default_factory=lambda: Quota(0, "new names", burst_s=HOUR_SECONDS))
    new_days: Quota = field(default_factory=lambda: Quota(0, "new days", burst_s=HOUR_SECONDS))
    new_owners: Quota = field(default_factory=lambda: Quota(0, "new owners", burst_s=HOUR_SECONDS))
    queue_readings: Quota = field(
        default_factory=lambda: Quota(0, "queue readings", burst_s=HOUR_SECONDS)
    )
    queue_bytes: Quota = field(
        default_factory=lambda: Quota(0, "bytes of queue readings", burst_s=HOUR_SECONDS)
    )

    def check(self, node: str) -> None:
        """Raise OverQuota while a quota that applies to every batch is used up."""
        for quota in (self.samples, self.bytes, self.inflated_bytes, self.names):
            quota.check(node)

    def take(self, node: str, load: Load) -> None:
        """Take a batch out of all quotas. Raises OverQuota, and then nothing is taken.

        A node that has used up its new names, days or owners may still send batches without any.
        """
        # All checks before anything is taken: a refused batch leaves every bucket as it was.
        self.check(node)
        if load.new_names:
            self.new_names.check(node)
        if load.new_days:
            self.new_days.check(node)
        if load.new_owners:
            self.new_owners.check(node)
        for amount in fields(load):
            quota: Quota = getattr(self, amount.name)
            quota.take(node, getattr(load, amount.name))

    def take_progress(self, payer: str) -> None:
        """Take a report of a run's progress, as so many samples.

        Raises OverQuota, and then nothing is taken.
        """
        self.samples.check(payer)
        self.samples.take(payer, PROGRESS_SAMPLES)

    def take_queue_reading(self, payer: str) -> None:
        """Take a reading of a queue, before a byte of it is received.

        Raises OverQuota, and then nothing is taken.
        """
        for quota in (self.samples, self.bytes, self.queue_readings, self.queue_bytes):
            quota.check(payer)
        self.queue_readings.take(payer, 1)

    def take_queue_rows(self, payer: str, rows: int, received: int, stored: int) -> None:
        """Take what a reading holds: rows, bytes as received, and bytes that are stored."""
        self.samples.take(payer, rows)
        self.bytes.take(payer, received)
        self.queue_bytes.take(payer, stored)

    def check_records(self, payer: str) -> None:
        """Raise OverQuota while a quota of records of tokens is used up."""
        for quota in (self.samples, self.bytes):
            quota.check(payer)

    def take_records(self, payer: str, records: int, received: int) -> None:
        """Take records of tokens, each as a sample, and bytes as received."""
        self.samples.take(payer, records)
        self.bytes.take(payer, received)


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's HTTP protocol with bounds on the time for heads and bodies, the size of heads, and
    connections.
    """

    max_connections: int
    head_seconds = HEAD_SECONDS
    body_seconds = BODY_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _cycle: Any = None
    """The request whose head came last."""
    _head_bytes = 0
    _has_body = False
    """Whether the bytes that came last hold a part of a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept a connection and wait for its first head."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._set_deadline(self.head_seconds)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a head, of a body, or of the next request."""
        was_body = self._cycle is not None and self._cycle.more_body
        self._has_body = False
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and cycle is not self._cycle:
            self._cycle, self._head_bytes = cycle, 0
            # The deadline for the head ends with it; from here on it is the body's, or nobody's
            # while the answer is computed.
            self._set_deadline(self.body_seconds if cycle.more_body else None)
            if not cycle.more_body:
                cycle.scope.setdefault("extensions", {})[COMPLETE_BODY] = {}
        # Bytes before any request, or after a complete one: they belong to a head that is not
        # complete yet.
        elif cycle is None or (cycle.response_complete and not cycle.more_body):
            self._count_head(len(data))
            if self._deadline is None:
                self._set_deadline(self.head_seconds)
        elif was_body and not cycle.more_body:
            self._head_bytes = 0
            self._set_deadline(None)
        # Trailers behind the last chunk, which are kept as headers are; h11 bounds them itself.
        elif was_body and _TELLS_BODY:
            if self._has_body:
                self._head_bytes = 0
            else:
                self._count_head(len(data))
        # While an answer is computed: once the next head is complete, nothing more is read until
        # then.
        elif not was_body and not getattr(self, "pipeline", ()):
            self._count_head(len(data))

    def on_body(self, body: bytes) -> None:
        """Take a part of a body from the parser."""
        self._has_body = True
        super().on_body(body)

    def _count_head(self, size: int) -> None:
        """Count bytes of an incomplete head, or between requests."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = (
            None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a connection."""
        self._set_deadline(None)
        super().connection_lost(exc)


class BodyLimit:
    """Refuses large bodies, except on paths that bound them: elsewhere a body is read before its
    token is checked.
    """

    def __init__(self, app: ASGIApp, exempt: Container[str]) -> None:
        self.app = app
        self.exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward to the app; 413 when it reads more than MAX_BODY_BYTES."""
        remaining = MAX_BODY_BYTES

        async def receive_bounded() -> Message:
            nonlocal remaining
            message = await receive()
            remaining -= len(message.get("body", b""))
            if remaining < 0:
                raise HTTPException(413, f"the body is over {MAX_BODY_BYTES} bytes")
            return message

        await self.app(
            scope, receive if scope.get("path") in self.exempt else receive_bounded, send
        )


def bounded_protocol(max_connections: int) -> type[asyncio.Protocol]:
    """The protocol with this bound."""
    return type("BoundedProtocol", (BoundedProtocol,), {"max_connections": max_connections})

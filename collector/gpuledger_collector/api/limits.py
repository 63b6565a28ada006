"""What one sender may take of the collector: records, bytes, names and days by node, time for a request, connections.

A quota is a bucket that fills at its rate: what a node sends is taken out of it, and while it owes, it is asked to come
back when it no longer does. A single large batch is always taken, and a spool that is sent after an outage has the
bucket of a quiet minute before it; so nothing is refused for ever, and nothing that is refused is lost.
Slow senders are let go by `Guarded`: uvicorn itself waits for ever for a head that never ends.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

BURST_SECONDS = 60.0
"""What a bucket holds, in seconds of its rate."""
HOUR_SECONDS = 3600.0
"""The same of buckets of what stays: names and days."""
MOST_NAMES = 100_000
"""Buckets that are kept; the one that was used least lately makes room."""
JITTER = 0.2
"""By how much of the wait at most nodes that were refused together are told to come apart."""
HEAD_SECONDS = 15.0
"""How long the head of a request may take, from the connection or from its first byte."""
MOST_HEAD_BYTES = 64 * 1024
BODY_SECONDS = 75.0
"""How long a whole body may take on any route; batches are let go sooner, with an answer."""
MOST_BODY_BYTES = 256 * 1024
"""Of a request to any route that does not bound its body itself: the longest dispute, every letter of it escaped."""


WHOLE = "gpuledger.whole_body"
"""Extension of a request's scope: its body is here already, whole, so that nobody needs to wait for it."""


class OverQuota(Exception):
    """A sender has used up its quota; `seconds` until it may come back."""

    def __init__(self, sentence: str, seconds: float) -> None:
        super().__init__(sentence)
        self.seconds = seconds

    @property
    def retry_after(self) -> int:
        """Whole seconds for the header, a little different each time."""
        return max(1, math.ceil(self.seconds * (1 + JITTER * random.random())))


@dataclass(slots=True)
class Quota:
    """Buckets by name. `rate` is units a second, 0 for no quota; `unit` names them in the refusal."""

    rate: float
    unit: str
    steady: Callable[[], float] = time.monotonic
    burst_s: float = BURST_SECONDS
    """What a bucket holds, in seconds of its rate; an hour: the rate is told by the hour."""
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """What is left, and when that was."""

    def check(self, name: str) -> None:
        """Raise OverQuota while this name owes."""
        if not self.rate:
            return
        left = self._left(name)
        if left < 0:
            rate, per = (self.rate * 3600, "an hour") if self.burst_s == HOUR_SECONDS else (self.rate, "a second")
            raise OverQuota(f"{name} sends more than {rate:.0f} {self.unit} {per}", -left / self.rate)

    def take(self, name: str, amount: float) -> None:
        """Take what was sent out of the bucket, which may owe afterwards. Call `check` before."""
        if not self.rate:
            return
        left = self._left(name) - amount
        self._buckets.pop(name, None)
        while len(self._buckets) >= MOST_NAMES:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = left, self.steady()

    def _left(self, name: str) -> float:
        full = self.rate * self.burst_s
        left, at = self._buckets.get(name, (full, 0.0))
        return min(full, left + (self.steady() - at) * self.rate) if name in self._buckets else full


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch takes of its node's quotas."""

    samples: int
    """Samples, hours of usage intervals, readings of counters."""
    bytes: int
    inflated_bytes: int
    names: int
    """Accelerators and workloads that it lists."""
    new_names: int = 0
    """Those of them that this collector has not met."""
    new_days: int = 0
    """Days of samples or of usage for which this collector has made no partition yet."""


@dataclass(slots=True)
class Quotas:
    """The quotas of nodes."""

    samples: Quota = field(default_factory=lambda: Quota(0, "samples"))
    bytes: Quota = field(default_factory=lambda: Quota(0, "bytes"))
    inflated_bytes: Quota = field(default_factory=lambda: Quota(0, "decompressed bytes"))
    names: Quota = field(default_factory=lambda: Quota(0, "accelerators and workloads"))
    new_names: Quota = field(default_factory=lambda: Quota(0, "new names", burst_s=HOUR_SECONDS))
    new_days: Quota = field(default_factory=lambda: Quota(0, "new days", burst_s=HOUR_SECONDS))

    def check(self, node: str) -> None:
        """Raise OverQuota while this node owes of what every batch takes."""
        for quota in (self.samples, self.bytes, self.inflated_bytes, self.names):
            quota.check(node)

    def take(self, node: str, load: Load) -> None:
        """Take a batch out of all. Raises OverQuota, and then nothing is taken.

        New names and days are only asked for of batches that bring some: a node that has used them up reports on.
        """
        self.check(node)
        if load.new_names:
            self.new_names.check(node)
        if load.new_days:
            self.new_days.check(node)
        for name in ("samples", "bytes", "inflated_bytes", "names", "new_names", "new_days"):
            quota: Quota = getattr(self, name)
            quota.take(node, getattr(load, name))


class Guarded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's HTTP protocol that lets go of senders that are too slow, too long-winded or too many."""

    max_connections: int
    head_seconds = HEAD_SECONDS
    body_seconds = BODY_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _known: Any = None
    """The request whose head came last."""
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A connection; its head is awaited from now on."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._within(self.head_seconds)

    def data_received(self, data: bytes) -> None:
        """More of a head, of a body, or of the next request."""
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and cycle is not self._known:
            self._known, self._head = cycle, 0
            self._within(self.body_seconds if cycle.more_body else None)
            if not cycle.more_body:
                cycle.scope.setdefault("extensions", {})[WHOLE] = {}
        elif cycle is None or (cycle.response_complete and not cycle.more_body):
            self._more_head(len(data))
        elif not cycle.more_body:
            self._within(None)

    def _more_head(self, size: int) -> None:
        """Bytes of a head that is not whole yet, or of nothing."""
        self._head += size
        if self._head > MOST_HEAD_BYTES:
            self.transport.abort()
        elif self._deadline is None:
            self._within(self.head_seconds)

    def _within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._within(None)
        super().connection_lost(exc)


class SmallBodies:
    """Refuses large bodies on all paths but these: there a body is read whole before a token is asked for."""

    def __init__(self, app: ASGIApp, but: Container[str]) -> None:
        self.app = app
        self.but = but

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer of the app behind; 413 when it reads more than MOST_BODY_BYTES."""
        left = MOST_BODY_BYTES

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"the body is over {MOST_BODY_BYTES} bytes")
            return message

        await self.app(scope, receive if scope.get("path") in self.but else bounded, send)


def guarded(max_connections: int) -> type[asyncio.Protocol]:
    """The protocol with this bound."""
    return type("Guarded", (Guarded,), {"max_connections": max_connections})

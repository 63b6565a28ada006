"""Posts of prepared bodies over HTTP: as fast as answers come, or at a steady rate, at little cost
of the sender.

A request is bytes that were made before; of an answer the status and the end are looked at, and
nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

RETRY_S = 0.05
WAIT_S = 60.0


@dataclass(slots=True)
class Sent:
    """What a run of posts saw: wall seconds, and milliseconds of each post until its answer."""

    wall_s: float = 0.0
    waits_ms: list[float] = field(default_factory=list)
    turned_away: int = 0

    def quantile(self, share: float) -> float:
        """Milliseconds below which this share of the posts was answered."""
        ordered = sorted(self.waits_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def request(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """The bytes of a POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    return (
        "\r\n".join(
            [*lines, *(f"{key}: {value}" for key, value in headers.items()), "", ""]
        ).encode()
        + body
    )


class Link(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._seen = b""
        self._answered: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, ended, rest = self._seen.partition(b"\r\n\r\n")
        if not ended or self._answered is None:
            return
        lowered = head.lower()
        place = lowered.find(b"content-length:")
        length = int(lowered[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(rest) >= length:
            self._seen = b""
            self._answered.set_result(int(head.split(b" ", 2)[1]))

    async def post(self, made: bytes) -> int:
        """The status that a request is answered with."""
        assert self.transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.write(made)
        return await asyncio.wait_for(self._answered, WAIT_S)


async def _link(port: int) -> Link:
    _, link = await asyncio.get_running_loop().create_connection(Link, "127.0.0.1", port)
    return link


async def _put(link: Link, made: bytes, sent: Sent) -> None:
    while True:
        status = await link.post(made)
        if status in {200, 204}:
            return
        if status not in {429, 503}:
            raise SystemExit(f"a body was answered with {status}")
        sent.turned_away += 1
        await asyncio.sleep(RETRY_S)


async def _post_in_turn(port: int, queues: Sequence[Sequence[bytes]], sent: Sent) -> None:
    links = [await _link(port) for _ in queues]

    async def work(link: Link, queue: Sequence[bytes]) -> None:
        for made in queue:
            begun = time.perf_counter()
            await _put(link, made, sent)
            sent.waits_ms.append((time.perf_counter() - begun) * 1000)

    begun = time.perf_counter()
    await asyncio.gather(*(work(*pair) for pair in zip(links, queues, strict=True)))
    sent.wall_s = time.perf_counter() - begun
    for link in links:
        assert link.transport is not None
        link.transport.close()


def post_in_turn(port: int, queues: Sequence[Sequence[bytes]]) -> Sent:
    """Every queue over a connection of its own, each request when the one before it is answered."""
    sent = Sent()
    asyncio.run(_post_in_turn(port, queues, sent))
    return sent


async def _open(port: int, queues: Sequence[Sequence[bytes]], every_s: float, sent: Sent) -> None:
    links = [await _link(port) for _ in queues]
    start = time.perf_counter() + 0.5

    async def work(place: int, link: Link, queue: Sequence[bytes]) -> None:
        for turn, made in enumerate(queue):
            due = start + (turn + place / len(queues)) * every_s
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            await _put(link, made, sent)
            sent.waits_ms.append((time.perf_counter() - due) * 1000)

    await asyncio.gather(
        *(work(place, *pair) for place, pair in enumerate(zip(links, queues, strict=True)))
    )
    sent.wall_s = time.perf_counter() - start
    for link in links:
        assert link.transport is not None
        link.transport.close()


def steady(port: int, queues: Sequence[Sequence[bytes]], every_s: float) -> Sent:
    """Every queue a request each `every_s`, spread evenly; a wait counts from when its request was
    due.
    """
    sent = Sent()
    asyncio.run(_open(port, queues, every_s, sent))
    return sent

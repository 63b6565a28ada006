"""GET /live: what changes on the fleet while a page stays open, as server-sent events.

One task of each process looks at the fleet every few seconds, by one statement, and only while
somebody watches; every stream is told of its look what its reader may see. A stream holds no thread
and no session of the database. It ends after ten minutes, when its reader's token ends, when the
database does not answer, and when the collector stops, once a look in progress is over: browsers
come back by themselves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gpuledger_collector.api.auth.keys import Keys, KeysUnavailable, bearer_header
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.context import ReadContext, ReadRoute, as_http_error
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.api.page_routes import HEADERS, View, require_view
from gpuledger_collector.api.reader_limits import ReadRefused, address_of, payer_of
from gpuledger_collector.export.fleet_map import parse_pool
from gpuledger_collector.export.live import changes_text
from gpuledger_collector.export.site import LIVE
from gpuledger_collector.services.live import (
    LiveLook,
    LiveNarrowing,
    LiveWatch,
    changes_seen,
)

LOOK_SECONDS = 5.0
"""Between two looks."""
TICK_SECONDS = 0.25
"""How soon a stream ends when the collector stops and no look is in progress; one in progress ends
first, after five seconds at most (SESSION in services/live.py).
"""
SILENCE_SECONDS = 15.0
"""A comment is sent where there was nothing to say for so long, so that proxies keep the stream."""
SEND_SECONDS = 10.0
"""How long a reader may take to receive an event."""
LIFE_SECONDS = 600.0
RETRY_MS = 3000
"""How long a browser waits before it opens an ended stream again."""
MOST_STREAMS = 200
"""Open streams of a worker."""
MOST_OF_READER = 20
"""Open streams of one reader of them; a page that is not looked at has none."""
REFUSED_SECONDS = 30
"""When a reader that was refused may try again."""
LEAST_REST = 10
"""Least rest of a page, in times of what its renewal took. With more streams it is their number, so
that all pages together are drawn one at a time.
"""
HEAD_ONLY = "gpuledger.head_only"
"""Key in the scope of a GET that answers a HEAD."""
STREAM_HEADERS = {
    # A proxy that compresses or buffers would keep events back until it has enough of them.
    "Cache-Control": f"{HEADERS['Cache-Control']}, no-transform",
    "X-Accel-Buffering": "no",
}

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Broadcast:
    """One look, and its events by who is told of it, so that those who see the same share one."""

    number: int
    look: LiveLook
    rest: int
    """Times of what a renewal of a page took, to wait before the next one."""
    _events: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    def event(self, viewer: Principal, narrowed: LiveNarrowing, *, skipped: bool) -> bytes:
        """What a reader is told; `skipped`: it has missed looks before this one."""
        owner = None if viewer.owner is None else tuple(sorted(viewer.owner.items()))
        key = (owner, narrowed.pool, narrowed.node, skipped)
        if key not in self._events:
            self._events[key] = self._encode(viewer, narrowed, skipped=skipped)
        return self._events[key]

    def _encode(self, viewer: Principal, narrowed: LiveNarrowing, *, skipped: bool) -> bytes:
        state, changes = self.look.state, self.look.changes
        facts: dict[str, object] = {"at_ms": state.taken_ms, "rest": self.rest}
        if viewer.owner is None:
            facts["newest_ms"] = state.newest_ms
        seen = None if changes is None else changes_seen(changes, state, viewer, narrowed)
        name = "change" if seen or skipped else "look"
        if seen:
            facts["text"] = changes_text(seen)
        return f"event: {name}\ndata: {json.dumps(facts)}\n\n".encode()


class LiveHub:
    """Looks at the fleet while streams are open, and bounds how many there are."""

    def __init__(
        self,
        watch: LiveWatch,
        clock: Callable[[], int],
        is_leaving: Callable[[], bool],
        metrics: Metrics,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._watch, self._clock, self._is_leaving = watch, clock, is_leaving
        self._metrics, self._look_seconds = metrics, look_seconds
        self._streams: Counter[str] = Counter()
        """Open streams by payer."""
        self._task: asyncio.Task[None] | None = None
        self._latest: Broadcast | None = None
        self._changed: asyncio.Event | None = None
        self._ended = False
        """Whether those who watch are to stop."""

    @property
    def count(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    @contextmanager
    def place(self, payer: str) -> Iterator[None]:
        """A place for one stream while the block runs. Raises ReadRefused where there is none."""
        if self._is_leaving():
            raise ReadRefused(503, "this collector is stopping", 1)
        if self._streams[payer] >= MOST_OF_READER:
            raise ReadRefused(
                429, f"{payer} has {MOST_OF_READER} live pages open: close one", REFUSED_SECONDS
            )
        if self.count >= MOST_STREAMS:
            raise ReadRefused(503, "too many live pages are open", REFUSED_SECONDS)
        self._streams[payer] += 1
        self._metrics.live_streams.inc()
        if self._task is None or self._task.done():
            self._begin()
        try:
            yield
        finally:
            self._metrics.live_streams.dec()
            self._streams[payer] -= 1
            # Counters keep names whose count is zero.
            self._streams += Counter()

    def _begin(self) -> None:
        self._latest, self._ended, self._changed = None, False, asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def looks(self) -> AsyncIterator[tuple[Broadcast | None, bool]]:
        """Each look from now on, and whether some were skipped before it; None where there was none
        for SILENCE_SECONDS. Ends when streams are to end.
        """
        number = None
        while not self._ended:
            latest, changed = self._latest, self._changed
            assert changed is not None
            if latest is not None and latest.number != number:
                skipped = number is not None and latest.number > number + 1
                number = latest.number
                yield latest, skipped
                continue
            try:
                # Not wait_for, which loses a cancellation that comes with the look (Python 3.11).
                async with asyncio.timeout(SILENCE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield None, False

    def _announce(self) -> None:
        """Wake every stream."""
        changed, self._changed = self._changed, asyncio.Event()
        assert changed is not None
        changed.set()

    async def _run(self) -> None:
        """Look while anybody watches; whatever fails, and the end of the collector, ends streams."""
        number, next_at = 0, time.monotonic()
        try:
            while self.count and not self._is_leaving():
                if time.monotonic() >= next_at:
                    next_at = time.monotonic() + self._look_seconds
                    number += 1
                    look = await asyncio.to_thread(self._watch.look, self._clock())
                    self._latest = Broadcast(number, look, max(LEAST_REST, self.count))
                    self._announce()
                await asyncio.sleep(TICK_SECONDS)
        except Exception as error:  # whatever it is: pages stay as they are, and try again
            log.warning("live pages are not live: %s", str(error).partition("\n")[0])
        finally:
            self._ended = True
            self._announce()
            self._watch.close()


class EventStream(Response):
    """The events of one reader, until something ends them."""

    media_type = "text/event-stream"

    def __init__(
        self, hub: LiveHub, keys: Keys, request: Request, view: View, narrowed: LiveNarrowing
    ) -> None:
        super().__init__(b"", 200, STREAM_HEADERS)
        del self.headers["content-length"]
        self._hub, self._keys, self._request = hub, keys, request
        self._view, self._narrowed = view, narrowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events; the answer is a refusal where there is no place."""
        try:
            with self._hub.place(self._payer()):
                await self._answer(scope, receive, send)
        except ReadRefused as error:
            refused = as_http_error(error)
            assert refused is not None
            answer = JSONResponse({"detail": refused.detail}, refused.status_code, refused.headers)
            await answer(scope, receive, send)

    def _payer(self) -> str:
        """Whom the stream counts against: the token, or the address of those who share one."""
        reader = self._view.reader
        return address_of(self._request) if reader.is_shared else payer_of(reader, self._request)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        if not scope.get(HEAD_ONLY):
            sending = asyncio.create_task(self._send_events(send))
            departure = asyncio.create_task(_wait_for_disconnect(receive))
            try:
                await asyncio.wait({sending, departure}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, departure):
                    task.cancel()
                await asyncio.gather(sending, departure, return_exceptions=True)
        # A reader that takes nothing would keep this from ending.
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        """Send until the looks end, the token does, or the reader takes too long."""
        with suppress(TimeoutError, Denied, KeysUnavailable, OSError):
            async with asyncio.timeout(LIFE_SECONDS):
                await _send(send, f"retry: {RETRY_MS}\n: what changes is told here\n\n".encode())
                async for broadcast, skipped in self._hub.looks():
                    await self._require_reader()
                    if broadcast is None:
                        await _send(send, b": nothing to say\n\n")
                    else:
                        await _send(
                            send,
                            broadcast.event(self._view.scope, self._narrowed, skipped=skipped),
                        )

    async def _require_reader(self) -> None:
        """Raise Denied where the reader may no longer read, or may read something else."""
        header = bearer_header(self._request.headers.get("authorization", ""))
        if not self._keys.is_fresh(header):
            await self._keys.refresh_once(header)
        if self._keys.identify(self._request, header) != self._view.reader:
            raise Denied(403, "this token has changed")


async def _send(send: Send, body: bytes) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def router(context: ReadContext, hub: LiveHub) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=ReadRoute)
    wanted = require_view(context.keys)

    @routes.get(LIVE)
    async def live(
        request: Request, pool: str = "", node: str = "", view: View = wanted
    ) -> Response:
        """Events of what this reader sees on a page that is narrowed so."""
        # A page of another host cannot read it, but it could take all places.
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise HTTPException(403, "only pages of this collector may watch it")
        narrowed = LiveNarrowing(parse_pool(pool), node or None)
        return EventStream(hub, context.keys, request, view, narrowed)

    return routes

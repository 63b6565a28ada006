"""Limits of readers: how many questions of one reader are answered at once, and how long each may
take.

A question occupies a thread, a session of the database and processor time. So those of one reader
wait for each other, and those of all readers leave threads for everything else. A question that
takes too long, or whose reader has disconnected, is cancelled in the database. One large answer at
a time is in memory. While readers are answered threads take shorter turns, so that an agent's batch
does not wait for sixteen of them at each step.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from gpuledger_collector.api.auth.keys import Keys, bearer_header
from gpuledger_collector.api.auth.principal import ANYBODY, Principal
from gpuledger_collector.services.database import Sessions, collected_in

AT_ONCE = 4
"""Questions of one reader that are answered at once by a worker."""
AT_ONCE_OF_ALL = 16
"""Questions of all readers; a worker has 40 threads for what blocks."""
WAIT_SECONDS = 2.0
"""How long a question waits for its turn."""
CANCEL_AGAIN_SECONDS = 0.5
"""Between cancellations of a question that goes on: one that finds no statement running has no
effect.
"""
PAGE_SECONDS = 30
CALM_SWITCH_SECONDS, BUSY_SWITCH_SECONDS = 0.005, 0.0005
"""How long a thread computes before another one's turn: Python's default, and while a reader's
question is answered.

Beside fifteen threads that compute, ten steps of the event loop took 4 to 5 s at the default and
0.3 to 0.4 s so.
"""


class ReadRefused(Exception):
    """A question that is not answered now: the status (429, 503) and a sentence.

    Retry after `seconds`.
    """

    def __init__(self, status: int, sentence: str, seconds: int) -> None:
        super().__init__(sentence)
        self.status, self.seconds = status, seconds


@dataclass(slots=True)
class _Reader:
    """The turns of one reader, and how many of its questions have one or wait for it."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    questions: int = 0


@dataclass(slots=True)
class ReaderLimits:
    """Admits questions of readers, and abandons those that take longer than `page_seconds`; 0: any
    time.
    """

    keys: Keys
    page_seconds: float = PAGE_SECONDS
    wait_seconds: float = WAIT_SECONDS
    turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(AT_ONCE_OF_ALL), init=False
    )
    large: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held by the question whose answer is large."""
    readers: dict[str, _Reader] = field(default_factory=dict, init=False)
    """By name of the token, or by address; those without questions are removed."""
    _tasks: set[asyncio.Task[object]] = field(default_factory=set, init=False)

    async def answer(
        self, request: Request, handler: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Answer a question.

        Raises ReadRefused, Denied, KeysUnavailable, and what the handler raises.
        """
        principal = await self._authenticate(request)
        release = await self._admit(payer_of(principal, request))
        sessions = Sessions(self.large)
        with collected_in(sessions):
            answering = asyncio.create_task(_run(handler, request))
        # Not when this request ends: an abandoned question keeps its turn until its thread has
        # noticed.
        answering.add_done_callback(lambda _: sessions.release_lines())
        answering.add_done_callback(lambda _: release())
        departure = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {answering, departure},
                timeout=self.page_seconds or None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            departure.cancel()
            if not answering.done():
                self._keep(asyncio.create_task(_cancel(answering, sessions)))
        if not answering.done():
            raise ReadRefused(503, self._sentence(request), max(1, round(self.page_seconds)))
        return answering.result()

    @contextlib.asynccontextmanager
    async def turn(self, payer: str) -> AsyncIterator[None]:
        """A turn of this payer while the block runs. Raises ReadRefused."""
        release = await self._admit(payer)
        try:
            yield
        finally:
            release()

    async def _authenticate(self, request: Request) -> Principal:
        header = bearer_header(request.headers.get("authorization", ""))
        # On a shared thread, so that requests of strangers occupy none of their own.
        if not self.keys.is_fresh(header):
            await self.keys.refresh_once(header)
        return self.keys.identify(request, header)

    async def _admit(self, payer: str) -> Callable[[], None]:
        """Wait for a turn; returns what ends it.

        Raises ReadRefused with 429 where this payer has too many, 503 where all together have. While
        any reader is at work the interpreter switches threads more often.
        """
        reader = self.readers.setdefault(payer, _Reader())
        reader.questions += 1
        try:
            await self._acquire(
                reader.turns,
                429,
                f"{payer} has {AT_ONCE} questions in progress: wait for an answer",
            )
            try:
                await self._acquire(
                    self.turns, 503, "too many questions of readers are in progress"
                )
            except BaseException:
                reader.turns.release()
                raise
        except BaseException:
            self._leave(payer)
            raise

        sys.setswitchinterval(BUSY_SWITCH_SECONDS)

        def release() -> None:
            self.turns.release()
            reader.turns.release()
            self._leave(payer)

        return release

    async def _acquire(self, turns: asyncio.Semaphore, status: int, sentence: str) -> None:
        try:
            await asyncio.wait_for(turns.acquire(), self.wait_seconds)
        except TimeoutError as error:
            raise ReadRefused(status, sentence, max(1, round(self.wait_seconds))) from error

    def _leave(self, payer: str) -> None:
        self.readers[payer].questions -= 1
        if not self.readers[payer].questions:
            del self.readers[payer]
        if not self.readers:
            sys.setswitchinterval(CALM_SWITCH_SECONDS)

    def _keep(self, task: asyncio.Task[object]) -> None:
        """Keep a reference to a task until it is done: the event loop has none."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sentence(self, request: Request) -> str:
        return (
            f"{request.url.path} takes over {self.page_seconds:g} s (page_seconds): ask for a"
            " shorter period, one owner or one pool, or use the command of gpuledger that answers"
            " the same, which has no limit"
        )


def payer_of(principal: object, request: Request) -> str:
    """Whom a question counts against: the token, or the address where none is needed."""
    if isinstance(principal, Principal) and principal is not ANYBODY:
        return principal.name
    return address_of(request)


def address_of(request: Request) -> str:
    """The address that a question comes from."""
    return "this address" if request.client is None else request.client.host


async def _run(handler: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    return await handler(request)


async def _wait_for_disconnect(request: Request) -> None:
    """Wait until the client is gone; only where no body is expected, which is the handler's to
    receive.
    """
    if request.method not in ("GET", "HEAD"):
        await asyncio.Event().wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(answering: asyncio.Task[Response], sessions: Sessions) -> None:
    """Cancel statements of a question until its thread has noticed."""
    while not answering.done():
        await asyncio.to_thread(sessions.cancel)
        await asyncio.wait({answering}, timeout=CANCEL_AGAIN_SECONDS)
    if not answering.cancelled():
        answering.exception()  # nobody else will ask for it

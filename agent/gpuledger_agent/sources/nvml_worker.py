"""A thread with a deadline: what hangs in the driver hangs here, and nobody else waits.

A call into NVML can take seconds or never return, and a thread inside it cannot be ended. So each GPU has one worker;
whoever asks waits until the deadline at most, and a worker that is still busy gets no new work until it comes back.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Pending(Generic[Answer]):
    """An answer on its way."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    def make(self, call: Callable[[], Answer]) -> None:
        """Makes the call and keeps what came of it."""
        try:
            self._answer = call()
        except BaseException as error:  # it is raised again where the answer is taken
            self._error = error

    def announce(self) -> None:
        """Lets those go on who wait for the answer."""
        self._done.set()

    def take(self, deadline: float) -> Answer:
        """The answer, waited for until `deadline` (time.monotonic()). Raises TimeoutError, or what the call raised."""
        if not self._done.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


class Worker:
    """One thread that makes one call at a time."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Answer]) -> Pending[Answer] | None:
        """Starts a call; None when the last one has not returned yet."""
        if not self._busy.acquire(blocking=False):
            return None
        pending: Pending[Answer] = Pending()

        def work() -> None:
            pending.make(call)
            self._busy.release()  # before the answer is out: whoever takes it may submit at once
            pending.announce()

        self._work.put(work)
        return pending

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        """Lets the thread end after the call that it is in."""
        self._work.put(None)

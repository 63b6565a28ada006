"""Worker threads for calls into the driver, so that a hanging call blocks nothing else.

A call into NVML can take seconds or never return, and a thread inside it cannot be ended. So each
GPU has one worker; callers wait until a deadline at most, and a worker that is still busy gets no
new call until the last one returns.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class PendingAnswer(Generic[Answer]):
    """The answer of a call that may still be running."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    def run(self, call: Callable[[], Answer]) -> None:
        """Make the call and keep its answer or exception."""
        try:
            self._answer = call()
        except BaseException as error:  # raised again in `take`
            self._error = error

    def set_done(self) -> None:
        """Wake up whoever waits for the answer."""
        self._done.set()

    def take(self, deadline: float) -> Answer:
        """Wait for the answer until `deadline` (time.monotonic()).

        Raises TimeoutError, or what the call raised.
        """
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

    def submit(self, call: Callable[[], Answer]) -> PendingAnswer[Answer] | None:
        """Start a call; None when the last one has not returned yet."""
        if not self._busy.acquire(blocking=False):
            return None
        pending: PendingAnswer[Answer] = PendingAnswer()

        def work() -> None:
            pending.run(call)
            self._busy.release()  # before the answer can be taken, because its taker may submit at once
            pending.set_done()

        self._work.put(work)
        return pending

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        """Let the thread end after its current call."""
        self._work.put(None)

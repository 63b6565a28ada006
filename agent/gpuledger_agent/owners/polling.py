"""A value that a thread of its own keeps current, so that a slow kubelet or engine never delays a
sample.

Readers get the latest answer unless it is older than the limit; then it is unknown, which is logged
once, and once more when it is known again. Unknown does not mean nobody: `known` raises, so that
the sampler treats accelerators whose holder no source names as unobserved, not as free.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuledger_common.readings import AgentError

log = logging.getLogger("gpuledger_agent")

T = TypeVar("T")


class NoRecentAnswer(AgentError):
    """The polled program has not answered for too long."""


class PolledValue(Generic[T]):
    """The latest result of `poll`, which is called every `interval_s` seconds; an exception is kept
    as the reason.
    """

    def __init__(
        self,
        name: str,
        poll: Callable[[], T],
        interval_s: float,
        stale_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._poll, self._interval_s, self._stale_s, self._clock = poll, interval_s, stale_s, clock
        self._latest: tuple[float, T] | None = None
        self._reason: str | None = None
        self._reported_stale = False
        self._closed = threading.Event()
        self._tried = threading.Event()

    def start(self, wait_s: float = 0.0) -> None:
        """Start polling, and wait at most `wait_s` for the first answer."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()
        self._tried.wait(wait_s)

    def close(self) -> None:
        """Stop polling."""
        self._closed.set()

    def latest(self) -> T:
        """The latest answer. Raises NoRecentAnswer when there is none, or only an old one."""
        value = self.value()
        if value is None:
            raise NoRecentAnswer(f"owners {self.name}: {self._reason or 'no answer yet'}")
        return value

    def value(self) -> T | None:
        """The latest answer; None when there is none, or only an old one."""
        # Read once: the polling thread replaces it.
        latest = self._latest
        if latest is not None and self._clock() - latest[0] <= self._stale_s:
            if self._reported_stale:
                self._reported_stale = False
                log.info("owners %s: answers again", self.name)
            return latest[1]
        # Before the first answer there is nothing to report yet; later silence means that a poll
        # hangs.
        reason = self._reason or ("it hangs" if latest is not None else None)
        if not self._reported_stale and reason is not None:
            self._reported_stale = True
            log.warning("owners %s: holders are unknown until it answers: %s", self.name, reason)
        return None

    def refresh(self) -> None:
        """Poll once, in this thread."""
        try:
            answer = self._poll()
        except Exception as error:  # any exception: a dead thread would never answer again
            self._reason = str(error) or type(error).__name__
        else:
            self._latest, self._reason = (self._clock(), answer), None
        finally:
            self._tried.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.refresh()
            self._closed.wait(self._interval_s)

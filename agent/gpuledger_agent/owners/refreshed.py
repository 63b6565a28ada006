"""A value that a thread of its own keeps fresh, so that a slow kubelet or engine never delays a tick.

The reader takes what was last seen, for as long as it is not older than the limit; then it is no longer known, which is
said in the log once, and once more when it is known again. Not known is not nobody: `known` raises then, so that the
sampler takes the accelerators whose holder nobody names as unobserved, and not as free.
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


class Silent(AgentError):
    """Whoever was asked has not answered for too long."""


class Refreshed(Generic[T]):
    """`look` is called every `interval_s` seconds; what it raises is kept as the reason why nothing is known."""

    def __init__(
        self,
        name: str,
        look: Callable[[], T],
        interval_s: float,
        stale_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._look, self._interval_s, self._stale_s, self._clock = look, interval_s, stale_s, clock
        self._seen: tuple[float, T] | None = None
        self._reason: str | None = None
        self._said = False
        self._closed = threading.Event()
        self._tried = threading.Event()

    def start(self, wait_s: float = 0.0) -> None:
        """Begins to look, and waits at most `wait_s` for the first look to end."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()
        self._tried.wait(wait_s)

    def close(self) -> None:
        """No look begins after this."""
        self._closed.set()

    def known(self) -> T:
        """What was seen last. Raises Silent when nothing was, or too long ago."""
        value = self.value()
        if value is None:
            raise Silent(f"owners {self.name}: {self._reason or 'no answer yet'}")
        return value

    def value(self) -> T | None:
        """What was seen last; None when nothing was, or too long ago."""
        seen = self._seen
        if seen is not None and self._clock() - seen[0] <= self._stale_s:
            if self._said:
                self._said = False
                log.info("owners %s: answers again", self.name)
            return seen[1]
        if not self._said and self._reason is not None:
            self._said = True
            log.warning("owners %s: who holds by it is not known until it answers: %s", self.name, self._reason)
        elif not self._said and seen is not None:
            self._said = True
            log.warning("owners %s: who holds by it is not known until it answers: it hangs", self.name)
        return None

    def refresh(self) -> None:
        """One look, now and here."""
        try:
            found = self._look()
        except Exception as error:  # a thread that died of a surprise would stay silent
            self._reason = str(error) or type(error).__name__
        else:
            self._seen, self._reason = (self._clock(), found), None
        finally:
            self._tried.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.refresh()
            self._closed.wait(self._interval_s)

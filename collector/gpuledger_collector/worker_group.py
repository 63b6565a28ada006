"""What a process of a collector knows of the others: the supervisor tells it over a socket pair.

The supervisor writes a JSON line whenever something changes; the process writes one line once it
works. When the supervisor has ended, whatever the reason, its processes end at once: nothing that
they acknowledged is lost by it, and the address is free for the next one.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

ORPHANED = 70
"""Exit code of a process whose supervisor has ended."""
JOBS = "jobs"
"""The name of the process that runs the jobs; workers have numbers."""


class GroupState(msgspec.Struct, frozen=True):
    """The workers of a collector as the supervisor sees them."""

    pids: dict[str, int] = {}
    """Process ids of the workers that serve, by their numbers, and of the jobs."""
    restarts: int = 0
    """Processes that ended unasked and were started again."""
    stopping: bool = False
    """The whole collector is stopping, not this process alone."""


class Place(msgspec.Struct, frozen=True):
    """What a process is started with: its name, its name among the metrics, and the sockets that it
    inherits.
    """

    name: str
    """The number of a worker, or JOBS."""
    workers: int
    """How many workers there should be."""
    metrics_name: str
    metrics_folder: str
    channel: int
    listener: int | None = None
    """None for the jobs, which accept nothing."""


class WorkerGroup:
    """The group of workers, and of the jobs beside them, that this process belongs to."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._channel = socket.socket(fileno=place.channel)
        self._state = GroupState()
        self._thread = threading.Thread(target=self._follow, name="worker-group", daemon=True)

    @classmethod
    def join(cls, text: str) -> WorkerGroup:
        """The group of a process that was started with this text; follows what the supervisor says
        from now on.
        """
        group = cls(msgspec.json.decode(text, type=Place))
        group._thread.start()
        return group

    def _follow(self) -> None:
        with self._channel.makefile("rb") as lines:
            for line in lines:
                self._state = msgspec.json.decode(line, type=GroupState)
        shutil.rmtree(self.metrics_folder, ignore_errors=True)
        os._exit(ORPHANED)

    def listener(self) -> socket.socket:
        """The socket that a worker inherits; asked for once."""
        assert self.place.listener is not None
        return socket.socket(fileno=self.place.listener)

    def say_ready(self) -> None:
        """Tell the supervisor that this process works."""
        self._channel.sendall(b"ready\n")

    @property
    def is_stopping(self) -> bool:
        """Whether the whole collector is stopping."""
        return self._state.stopping

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids of the workers that serve, by their numbers, and of the jobs."""
        return self._state.pids

    @property
    def serving_count(self) -> int:
        """How many workers serve."""
        return sum(name != JOBS for name in self.pids)

    @property
    def restarts(self) -> int:
        """Processes that ended unasked and were started again."""
        return self._state.restarts

    @property
    def metrics_folder(self) -> Path:
        """The folder in which all workers keep their counters."""
        return Path(self.place.metrics_folder)

    def summary(self) -> str:
        """How many workers serve, as `3 of 4`."""
        return f"{self.serving_count} of {self.place.workers}"

"""What a worker of a collector knows of the others: the supervisor tells it over a socket pair.

The supervisor writes a JSON line whenever something changes; the worker writes one line once it
serves. When the supervisor has ended, whatever the reason, its workers end at once: nothing that
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
"""Exit code of a worker whose supervisor has ended."""


class GroupState(msgspec.Struct, frozen=True):
    """The workers of a collector as the supervisor sees them."""

    wanted: int = 0
    pids: dict[int, int] = {}
    """Process ids of the workers that serve, by their numbers."""
    restarts: int = 0
    """Workers that ended unasked and were started again."""
    stopping: bool = False
    """The whole collector is stopping, not this worker alone."""


class Place(msgspec.Struct, frozen=True):
    """What a worker is started with: its number, its name among the metrics, and the sockets that
    it inherits.
    """

    number: int
    metrics_name: str
    metrics_folder: str
    listener: int
    channel: int


class WorkerGroup:
    """The group of workers that this process belongs to."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.listener = socket.socket(fileno=place.listener)
        self._channel = socket.socket(fileno=place.channel)
        self._state = GroupState()
        self._thread = threading.Thread(target=self._follow, name="worker-group", daemon=True)

    @classmethod
    def join(cls, text: str) -> WorkerGroup:
        """The group of a worker that was started with this text; follows what the supervisor says
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

    def say_ready(self) -> None:
        """Tell the supervisor that this worker serves."""
        self._channel.sendall(b"ready\n")

    @property
    def is_stopping(self) -> bool:
        """Whether the whole collector is stopping."""
        return self._state.stopping

    @property
    def pids(self) -> Mapping[int, int]:
        """Process ids of the workers that serve, by their numbers."""
        return self._state.pids

    @property
    def restarts(self) -> int:
        """Workers that ended unasked and were started again."""
        return self._state.restarts

    @property
    def wanted_count(self) -> int:
        """How many workers there should be."""
        return self._state.wanted

    @property
    def metrics_folder(self) -> Path:
        """The folder in which all workers keep their counters."""
        return Path(self.place.metrics_folder)

    def summary(self) -> str:
        """How many workers serve, as `3 of 4`."""
        return f"{len(self.pids)} of {self.wanted_count}"

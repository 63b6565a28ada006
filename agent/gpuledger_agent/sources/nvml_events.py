"""Xids and MIG changes that the driver reports, from an NVML event set and from the kernel log.

One thread waits for NVML's events with a deadline, so that it can be ended before nvmlShutdown. An
Xid may be reported by both, or by only one of them (DCGM issue 235): the larger of the two counts
is used, never their sum.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuledger_agent.sources.kernel_log import KernelLog
from gpuledger_common.readings import Health
from gpuledger_common.xids import bus_key, meaning, parse

log = logging.getLogger("gpuledger_agent")

XID, MIG_CHANGE = 0x8, 0x100
"""nvmlEventTypeXidCriticalError, nvmlEventMigConfigChange."""
WAIT_MS = 1000
FAILURE_WAIT_S = 5.0
TIMEOUT = 10
_RANK = {"info": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True, slots=True)
class WatchedBoard:
    """A board to watch."""

    uuid: str
    handle: Any
    bus: str | None


@dataclass(slots=True)
class XidHistory:
    """The Xids of one board since the agent started."""

    nvml: Counter[int] = field(default_factory=Counter)
    kernel: Counter[int] = field(default_factory=Counter)
    last: int | None = None
    standing: int | None = None
    """The worst Xid since the board was attached; a reset, which detaches the board, clears it."""

    def counts(self) -> dict[int, int]:
        """How often each Xid was reported."""
        return {
            xid: max(self.nvml[xid], self.kernel[xid]) for xid in sorted({*self.nvml, *self.kernel})
        }

    def health(self) -> Health:
        """Degraded by an Xid that requires an action on the card; a fault of a program does not
        affect the card.
        """
        if self.standing is None or _RANK[meaning(self.standing).severity] == 0:
            return Health()
        known = meaning(self.standing)
        return Health("degraded", f"Xid {self.standing}: {known.text}; {known.action}")


class DriverEvents:
    """Watches all boards. `poll` is called at each tick; only the thread waits for the driver."""

    def __init__(self, kernel: KernelLog | None = None) -> None:
        self._kernel = kernel
        if kernel is not None:
            kernel.open()
        self._lock = threading.Lock()
        self._histories: dict[str, XidHistory] = {}
        self._by_bus: dict[str, str] = {}
        self._by_handle: dict[int, str] = {}
        self._reshaped: set[str] = set()
        self._watched: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.ready = threading.Event()
        """Set when the events have been registered; earlier events are lost."""

    def start(self, nvml: Any, boards: Sequence[WatchedBoard]) -> None:
        """Watch these boards; earlier Xids no longer affect the health of boards that are attached
        again.
        """
        self.stop()
        self.poll()  # Xids logged during the reset are earlier ones
        with self._lock:
            for board in boards:
                self._histories.setdefault(board.uuid, XidHistory()).standing = None
            # The kernel log names a board by its bus address, an event by its handle.
            self._by_bus = {bus_key(board.bus): board.uuid for board in boards if board.bus}
            self._by_handle = {address(board.handle): board.uuid for board in boards}
            self._reshaped.clear()
            self._watched = frozenset()
        # A new event: an abandoned thread still sees its own, which stays set.
        self._stop = threading.Event()
        self.ready.clear()
        self._thread = threading.Thread(
            target=self._wait,
            args=(nvml, tuple(boards), self._stop),
            name="nvml-events",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it is abandoned if the driver hangs beyond its deadline."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * WAIT_MS / 1000)
            self._thread = None

    def _wait(self, nvml: Any, boards: Sequence[WatchedBoard], stop: threading.Event) -> None:
        try:
            events = nvml.nvmlEventSetCreate()
        except Exception as error:  # an old driver or a stub: only the kernel log remains
            log.debug("NVML reports no events (%s)", error)
            self.ready.set()
            return
        try:
            watched = [board for board in boards if self._register(nvml, events, board)]
            with self._lock:
                self._watched = frozenset(board.uuid for board in watched)
            self.ready.set()
            while watched and not stop.is_set():
                self._wait_once(nvml, events, stop)
        finally:
            try:
                nvml.nvmlEventSetFree(events)
            except Exception:  # nvmlShutdown frees it
                log.debug("an NVML event set could not be freed")

    def _register(self, nvml: Any, events: Any, board: WatchedBoard) -> bool:
        try:
            # Registering a kind that the card does not support fails for all kinds of the call.
            kinds = nvml.nvmlDeviceGetSupportedEventTypes(board.handle) & (XID | MIG_CHANGE)
            if kinds:
                nvml.nvmlDeviceRegisterEvents(board.handle, kinds, events)
            return bool(kinds)
        except Exception as error:  # not supported, or a lost board
            log.debug("NVML reports no events of %s (%s)", board.uuid, error)
            return False

    def _wait_once(self, nvml: Any, events: Any, stop: threading.Event) -> None:
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except Exception as error:
            if getattr(error, "value", None) != TIMEOUT:
                stop.wait(FAILURE_WAIT_S)  # a lost board makes every wait fail at once
            return
        uuid = self._by_handle.get(address(event.device))
        if uuid is None:
            return
        if int(event.eventType) & MIG_CHANGE:
            with self._lock:
                self._reshaped.add(uuid)
        if int(event.eventType) & XID:
            self._note(uuid, int(event.eventData), "nvml")

    def _note(self, uuid: str, xid: int, reporter: str) -> None:
        known = meaning(xid)
        level = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}[
            known.severity
        ]
        log.log(level, "Xid %d on %s (%s): %s; %s", xid, uuid, reporter, known.text, known.action)
        with self._lock:
            history = self._histories.setdefault(uuid, XidHistory())
            (history.nvml if reporter == "nvml" else history.kernel)[xid] += 1
            history.last = xid
            standing = history.standing
            # A later Xid of lower severity does not hide a worse one that still requires an action.
            if standing is None or _RANK[known.severity] >= _RANK[meaning(standing).severity]:
                history.standing = xid

    def poll(self) -> None:
        """Read the kernel log since the last tick."""
        if self._kernel is None:
            return
        for line in self._kernel.read():
            logged = parse(line)
            uuid = None if logged is None else self._by_bus.get(logged.bus)
            if logged is not None and uuid is not None:
                self._note(uuid, logged.xid, "kernel")

    def reshaped_boards(self) -> frozenset[str]:
        """Boards whose MIG instances have changed since they were attached."""
        with self._lock:
            return frozenset(self._reshaped)

    def history(self, uuid: str) -> XidHistory:
        """A copy of a board's history."""
        with self._lock:
            known = self._histories.get(uuid, XidHistory())
            return replace(known, nvml=Counter(known.nvml), kernel=Counter(known.kernel))

    def watches(self, uuid: str) -> bool:
        """Whether the driver reports events of this board, so that silence means that there were
        none.
        """
        with self._lock:
            return uuid in self._watched


def address(handle: Any) -> int:
    """The pointer behind a device handle, which identifies it."""
    try:
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
    except (TypeError, ctypes.ArgumentError):  # a test's own handle
        return id(handle)

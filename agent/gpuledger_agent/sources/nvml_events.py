"""What the driver says of itself: Xids and MIG changes, from an NVML event set and from the kernel log.

One thread waits for NVML's events with a deadline, so that it can be ended before nvmlShutdown. The same Xid may reach
both witnesses, or one of them only (DCGM issue 235): of two counts the larger is told, never their sum.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_agent.sources.kernel_log import KernelLog
from gpuledger_common.readings import Health
from gpuledger_common.xids import bus_key, meaning, parse

log = logging.getLogger("gpuledger_agent")

XID, MIG_CHANGE = 0x8, 0x100
"""nvmlEventTypeXidCriticalError, nvmlEventMigConfigChange."""
WAIT_MS = 1000
SICK_WAIT_S = 5.0
TIMEOUT = 10
_RANK = {"info": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True, slots=True)
class Watched:
    """A board as the watch knows it."""

    uuid: str
    handle: Any
    bus: str | None


@dataclass(slots=True)
class Record:
    """What was told of one board since the agent began."""

    nvml: Counter[int] = field(default_factory=Counter)
    kernel: Counter[int] = field(default_factory=Counter)
    last: int | None = None
    last_at: float | None = None
    """Unix seconds."""
    standing: int | None = None
    """The worst Xid since the board was attached: a reset needs the board let go, and so ends it."""

    def counts(self) -> dict[int, int]:
        """How often each Xid was told."""
        return {xid: max(self.nvml[xid], self.kernel[xid]) for xid in sorted({*self.nvml, *self.kernel})}

    def health(self) -> Health:
        """Degraded by an Xid that asks for an action on the card; a program's own fault says nothing of the card."""
        if self.standing is None or _RANK[meaning(self.standing).severity] == 0:
            return Health()
        known = meaning(self.standing)
        return Health("degraded", f"Xid {self.standing}: {known.text}; {known.action}")


class DriverEvents:
    """The watch over all boards. `poll` is called at each tick; nothing but the thread ever waits for the driver."""

    def __init__(self, kernel: KernelLog | None = None, clock: Callable[[], float] = time.time) -> None:
        self._kernel, self._clock = kernel, clock
        if kernel is not None:
            kernel.open()
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}
        self._by_bus: dict[str, str] = {}
        self._by_handle: dict[int, str] = {}
        self._reshaped: set[str] = set()
        self._watched: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem = ""
        self.ready = threading.Event()
        """Set when the driver has been asked to tell; what it told before is lost."""

    def start(self, nvml: Any, boards: Sequence[Watched]) -> None:
        """Watches these boards; what stood against those that are attached anew is over."""
        self.stop()
        self.poll()  # what the reset itself has logged belongs to before
        with self._lock:
            for board in boards:
                self._records.setdefault(board.uuid, Record()).standing = None
            self._by_bus = {bus_key(board.bus): board.uuid for board in boards if board.bus}
            self._by_handle = {address(board.handle): board.uuid for board in boards}
            self._reshaped.clear()
            self._watched = frozenset()
        self._stop = threading.Event()
        self.ready.clear()
        self._thread = threading.Thread(
            target=self._wait, args=(nvml, tuple(boards), self._stop), name="nvml-events", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which is within its deadline unless the driver hangs; then it is left behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * WAIT_MS / 1000)
            self._thread = None

    def _wait(self, nvml: Any, boards: Sequence[Watched], stop: threading.Event) -> None:
        try:
            events = nvml.nvmlEventSetCreate()
        except Exception as error:  # an old driver, a stub: the kernel log is left
            self.problem = f"NVML tells no events ({error})"
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
            except Exception:  # it goes with nvmlShutdown
                log.debug("an NVML event set could not be freed")

    def _register(self, nvml: Any, events: Any, board: Watched) -> bool:
        try:
            kinds = nvml.nvmlDeviceGetSupportedEventTypes(board.handle) & (XID | MIG_CHANGE)
            if kinds:
                nvml.nvmlDeviceRegisterEvents(board.handle, kinds, events)
            return bool(kinds)
        except Exception as error:  # not supported here, a lost board
            self.problem = f"NVML tells no events of {board.uuid} ({error})"
            return False

    def _wait_once(self, nvml: Any, events: Any, stop: threading.Event) -> None:
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except Exception as error:
            if getattr(error, "value", None) != TIMEOUT:
                stop.wait(SICK_WAIT_S)  # a lost board makes every wait fail at once
            return
        uuid = self._by_handle.get(address(event.device))
        if uuid is None:
            return
        if int(event.eventType) & MIG_CHANGE:
            with self._lock:
                self._reshaped.add(uuid)
        if int(event.eventType) & XID:
            self._note(uuid, int(event.eventData), "nvml")

    def _note(self, uuid: str, xid: int, witness: str) -> None:
        known = meaning(xid)
        level = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}[known.severity]
        log.log(level, "Xid %d on %s (%s): %s; %s", xid, uuid, witness, known.text, known.action)
        with self._lock:
            record = self._records.setdefault(uuid, Record())
            (record.nvml if witness == "nvml" else record.kernel)[xid] += 1
            record.last, record.last_at = xid, self._clock()
            standing = record.standing
            if standing is None or _RANK[known.severity] >= _RANK[meaning(standing).severity]:
                record.standing = xid

    def poll(self) -> None:
        """Takes what the kernel has logged since the last tick."""
        if self._kernel is None:
            return
        for line in self._kernel.read():
            found = parse(line)
            uuid = None if found is None else self._by_bus.get(found.bus)
            if found is not None and uuid is not None:
                self._note(uuid, found.xid, "kernel")

    def reshaped(self) -> frozenset[str]:
        """Boards whose MIG instances have changed since they were attached."""
        with self._lock:
            return frozenset(self._reshaped)

    def of(self, uuid: str) -> Record:
        """What was told of a board; a copy."""
        with self._lock:
            record = self._records.get(uuid, Record())
            return Record(Counter(record.nvml), Counter(record.kernel), record.last, record.last_at, record.standing)

    def watches(self, uuid: str) -> bool:
        """Whether the driver tells of this board, so that hearing nothing means that there was nothing."""
        with self._lock:
            return uuid in self._watched

    def problems(self) -> Iterable[str]:
        """Sentences for people: which witness is missing."""
        if self._kernel is not None and self._kernel.problem:
            yield self._kernel.problem


def address(handle: Any) -> int:
    """What tells one device handle from another: the pointer that it is."""
    try:
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
    except (TypeError, ctypes.ArgumentError):  # a test's own handle
        return id(handle)

"""NVML through NVIDIA's own binding: every metric of the catalog that a card gives, with a worker
thread per GPU.

NVML is initialized once, not per sample; a lost GPU stays in the inventory by its UUID; what a card
does not support is tried once per attach and then left out with its reason. With MIG on, the
instances are the accelerators, and the board's power and energy belong to none of them: there is no
sensor per instance, and any split would be invented. When the handles are stale (a driver reload,
changed MIG instances), the source raises SourceUnavailable, and the next `open` attaches again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpuledger_agent.sources.kernel_log import KernelLog
from gpuledger_agent.sources.nvml_binding import import_binding
from gpuledger_agent.sources.nvml_events import DriverEvents, WatchedBoard
from gpuledger_agent.sources.nvml_reader import LOST, DeviceReader, text
from gpuledger_agent.sources.nvml_worker import PendingAnswer, Worker
from gpuledger_common.health import worse
from gpuledger_common.mig import fit_shares, measured_share
from gpuledger_common.readings import (
    Accelerator,
    Health,
    Inventory,
    Sample,
    SeriesValue,
    SourceUnavailable,
    StillStarting,
)

INIT_DEADLINE_S = 60.0
"""The first client of a card without persistence mode waits up to 3 s per GPU (driver-persistence
documentation).
"""
IMPATIENT_S = 5.0
"""How long the daemon waits for that at a time: meanwhile it cannot stop, release the GPUs or send
a heartbeat.
"""
ATTACH_DEADLINE_S = 10.0
READ_DEADLINE_S = 5.0
STALE = frozenset({1, 2, 28, 999})
"""Error codes of a stale handle: uninitialized, invalid argument, GPU not found, unknown."""

_INIT_ERRORS = {
    9: "the NVIDIA driver is not loaded; load it (modprobe nvidia) or install it",
    12: (
        "libnvidia-ml.so.1 was not found: install the NVIDIA driver, or start the container with"
        " NVIDIA's runtime"
    ),
    4: "NVML refuses this user; give it access to /dev/nvidiactl and /dev/nvidia*",
    17: (
        "the operating system hides the GPUs from this process; check device permissions and"
        " cgroups"
    ),
    18: (
        "driver and library differ in version: the driver was upgraded, a reboot (or module reload)"
        " is needed"
    ),
}


@dataclass(frozen=True, slots=True)
class BoardAccelerator:
    """An accelerator of a board, with its reader."""

    accelerator: Accelerator
    reader: DeviceReader


@dataclass(frozen=True, slots=True)
class Board:
    """An attached GPU: one accelerator, or its MIG instances and a reader for the health of the
    board.
    """

    index: int
    uuid: str
    handle: Any
    bus: str | None
    entries: tuple[BoardAccelerator, ...]
    health_reader: DeviceReader | None = None
    mig_capable: bool = False


@dataclass(slots=True)
class Slot:
    """A GPU of the driver's enumeration; without a board, the accelerators known before and why
    they are not read.
    """

    worker: Worker | None
    board: Board | None
    accelerators: Sequence[Accelerator]
    health: Health = field(default_factory=Health)


class StaleHandle(Exception):
    """The handles of a board are stale."""


class NvmlSource:
    """All GPUs of this machine. Tests pass their own `binding` in place of pynvml."""

    name = "nvml"

    def __init__(
        self,
        binding: Any = None,
        deadline_s: float = READ_DEADLINE_S,
        attach_deadline_s: float = ATTACH_DEADLINE_S,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        events: DriverEvents | None = None,
        init_deadline_s: float = INIT_DEADLINE_S,
    ) -> None:
        self._init_deadline_s = init_deadline_s
        self._given, self._deadline_s, self._attach_deadline_s = (
            binding,
            deadline_s,
            attach_deadline_s,
        )
        self._monotonic_ns = monotonic_ns
        self._init = Worker("nvml-init")
        self._nvml: Any = binding
        self._started = False
        self._starting: PendingAnswer[tuple[int, str | None]] | None = None
        self._unwanted = False
        self._workers: dict[int, Worker] = {}
        self._late: dict[int, PendingAnswer[Board]] = {}
        self._slots: list[Slot] = []
        self._known: dict[str, Accelerator] = {}
        self._gpus = 0
        self._counting: PendingAnswer[int] | None = None
        self._events = events or DriverEvents(KernelLog())

    def open(self) -> Inventory:
        """Load the library and attach every GPU.

        Raises SourceUnavailable, whose message says what to do.
        """
        self._unwanted = False
        # An initialization that did not return in time is still running: wait for its answer
        # instead of starting another.
        pending = self._starting = self._starting or self._init.submit(self._start)
        if pending is None:
            raise StillStarting(
                "the NVIDIA driver has not answered the previous attempt; see dmesg for Xid errors"
            )
        try:
            gpus, driver = pending.take(time.monotonic() + self._init_deadline_s)
        except TimeoutError:
            raise StillStarting(
                f"the NVIDIA driver has not answered for {self._init_deadline_s:g} s; see dmesg for"
                " Xid errors"
            ) from None
        # A failed attempt is over: the next `open` starts a new one.
        except BaseException:
            self._starting = None
            raise
        self._starting = None
        self._gpus, self._counting = gpus, None
        problems = self._attach_all(gpus)
        boards = [slot.board for slot in self._slots if slot.board is not None]
        self._events.start(
            self._nvml, [WatchedBoard(board.uuid, board.handle, board.bus) for board in boards]
        )
        return Inventory(
            driver, [entry for slot in self._slots for entry in slot.accelerators], problems
        )

    def _start(self) -> tuple[int, str | None]:
        """Initialize NVML; returns the number of GPUs and the driver version.

        Runs in the init worker.
        """
        nvml = self._load()
        try:
            gpus = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            self._started = False
            # NVML counts its inits: one without shutdown would hold the GPUs.
            call_or_none(nvml, nvml.nvmlShutdown)
            raise SourceUnavailable(
                f"NVML cannot count the GPUs: {error_text(nvml, error)}"
            ) from error
        if self._unwanted:  # released while the driver was still starting
            self._started = False
            call_or_none(nvml, nvml.nvmlShutdown)
            raise SourceUnavailable("the GPUs were released while the driver started")
        return gpus, text(call_or_none(nvml, nvml.nvmlSystemGetDriverVersion)) or None

    def _attach_all(self, gpus: int) -> list[str]:
        """Attach all GPUs at once, each in its worker; returns messages about those that could not
        be attached.
        """
        boards = {slot.board.index: slot.board for slot in self._slots if slot.board is not None}
        started = []
        for index in range(gpus):
            if index not in self._workers:
                self._workers[index] = Worker(f"nvml-{index}")
            # All attaches run at the same time and share one deadline: GPUs without persistence
            # mode take seconds each.
            started.append((index, self._begin(index, boards.get(index))))
        deadline = time.monotonic() + self._attach_deadline_s
        problems: list[str] = []
        slots = [
            self._attach_result(index, pending, deadline, problems) for index, pending in started
        ]
        present = {
            uuid
            for slot in slots
            for entry in slot.accelerators
            for uuid in (entry.uuid, entry.device_uuid)
        }
        present |= {slot.board.uuid for slot in slots if slot.board is not None}
        lost = Health("failed", "the GPU is lost: the driver no longer shows it")
        # Instances that a present board no longer has were destroyed on purpose: they are gone, not
        # lost.
        for uuid, entry in self._known.items():
            if uuid not in present and entry.device_uuid not in present:
                slots.append(Slot(None, None, [entry], lost))
        self._known = {entry.uuid: entry for slot in slots for entry in slot.accelerators}
        self._slots = slots
        return problems

    def _begin(self, index: int, old: Board | None) -> PendingAnswer[Board] | None:
        """A pending attach: the previous one if it was late, else a new one; None while the worker
        is busy.
        """
        return self._late.pop(index, None) or self._workers[index].submit(
            partial(self._attach, index, old)
        )

    def _attach_result(
        self, index: int, pending: PendingAnswer[Board] | None, deadline: float, problems: list[str]
    ) -> Slot:
        """The result of an attach; without a board, the reason goes into `problems`."""
        worker = self._workers[index]
        known = [entry for entry in self._known.values() if entry.index == index]
        silent = Slot(
            worker, None, known, Health("unknown", "the GPU did not answer when it was attached")
        )
        try:
            board = None if pending is None else pending.take(deadline)
        except TimeoutError:
            board = None
            # Kept for the next attempt: the worker is busy with it and would refuse a new call.
            if pending is not None:
                self._late[index] = pending
        except Exception as error:  # one faulty GPU must not prevent the others from being read
            problems.append(f"GPU {index} cannot be attached: {error_text(self._nvml, error)}")
            return Slot(None, None, [])
        if board is None:
            problems.append(f"GPU {index} does not answer; it is attached as soon as it does")
            return silent
        if not board.entries:
            problems.append(f"GPU {index} has MIG on and no instance: it cannot be held")
        return Slot(worker, board, [entry.accelerator for entry in board.entries])

    def _load(self) -> Any:
        try:
            if self._given is None:
                self._nvml = import_binding()
            if not self._started:
                self._nvml.nvmlInit()
                self._started = True
        except ImportError as error:
            raise SourceUnavailable(
                "the package nvidia-ml-py is not installed: pip install nvidia-ml-py"
            ) from error
        except self._nvml.NVMLError as error:
            message = _INIT_ERRORS.get(
                error.value, f"NVML did not start: {error_text(self._nvml, error)}"
            )
            raise SourceUnavailable(message) from error
        return self._nvml

    def _attach(self, index: int, old: Board | None) -> Board:
        """Attach one GPU. Runs in its worker."""
        nvml = self._nvml
        if old is not None:
            # The GPM buffers of the old readers belong to this worker, which frees them before it
            # makes new ones.
            release(old)
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        model = text(call_or_none(nvml, nvml.nvmlDeviceGetName, handle)) or "unknown"
        bus = call_or_none(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        memory = call_or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        total = None if memory is None else int(memory.total)
        pci = None if bus is None else text(bus.busId)
        mode = call_or_none(nvml, nvml.nvmlDeviceGetMigMode, handle)
        device = Accelerator(uuid, uuid, index, model, memory_bytes=total, pci_bus_id=pci)
        reader = DeviceReader(nvml, handle)
        # The mode is a pair of the current and the pending one (after a reset); None where the card
        # has no MIG.
        if mode is None or mode[0] != 1:
            return Board(
                index,
                uuid,
                handle,
                pci,
                (BoardAccelerator(device, reader),),
                mig_capable=mode is not None,
            )
        instances = [
            mig_instance(nvml, handle, instance, device)
            for instance in instance_handles(nvml, handle)
        ]
        # Shares of a device are adjusted together, so that they never add up to more than the
        # device.
        shares = fit_shares(entry.accelerator for entry in instances)
        entries = (
            replace(entry, accelerator=share)
            for entry, share in zip(instances, shares, strict=True)
        )
        return Board(index, uuid, handle, pci, tuple(entries), reader)

    def read(self, tiers: Iterable[str]) -> Sequence[Sample]:
        """A sample of every accelerator; one that does not answer in time is `unknown`, one that is
        gone `failed`.

        Raises SourceUnavailable when the GPUs are no longer those that were attached.
        """
        wanted = frozenset(tiers)
        self._events.poll()
        self._count_again(wanted)
        # All GPUs are read at the same time, and share one deadline.
        started = [(slot, self._submit(slot, wanted)) for slot in self._slots]
        deadline = time.monotonic() + self._deadline_s
        samples: list[Sample] = []
        stale: list[str] = []
        for slot, pending in started:
            try:
                samples += self._take(slot, pending, deadline)
            except StaleHandle as error:
                stale.append(str(error))
        if stale:
            raise SourceUnavailable(f"{'; '.join(stale)}; the GPUs are attached again")
        return samples

    def _count_again(self, tiers: frozenset[str]) -> None:
        """Count the GPUs on slow ticks, without waiting for the answer, to detect added and removed
        ones.

        Raises SourceUnavailable when the driver shows another number of GPUs than were attached.
        """
        if self._counting is not None:
            try:
                gpus = self._counting.take(time.monotonic())
            except TimeoutError:
                return
            except self._nvml.NVMLError:  # reading the GPUs will show what is wrong
                gpus = self._gpus
            self._counting = None
            if gpus != self._gpus:
                raise SourceUnavailable(
                    f"the driver shows {gpus} GPUs instead of {self._gpus}; they are attached again"
                )
        if "slow" in tiers:
            self._counting = self._init.submit(lambda: int(self._nvml.nvmlDeviceGetCount()))

    def _submit(self, slot: Slot, wanted: frozenset[str]) -> PendingAnswer[list[Sample]] | None:
        if slot.worker is None:
            return None
        # The GPU did not answer when it was attached: as soon as its worker is free again, attach
        # everything anew.
        if slot.board is None:
            return slot.worker.submit(request_attach)
        return slot.worker.submit(partial(self._read, slot.board, wanted))

    def _take(
        self, slot: Slot, pending: PendingAnswer[list[Sample]] | None, deadline: float
    ) -> list[Sample]:
        health = slot.health
        if pending is not None:
            try:
                return pending.take(deadline)
            except TimeoutError:
                pass
            except StaleHandle:
                raise
            except Exception as error:  # `read` must not raise for one faulty accelerator
                health = Health("unknown", f"reading it failed: {error_text(self._nvml, error)}")
        # A slot with a reason of its own (lost, not attached) keeps it; an attached GPU that is
        # late has none yet.
        if health == Health():
            health = Health(
                "unknown", f"unresponsive: no answer from the driver within {self._deadline_s:g} s"
            )
        now_ns = self._monotonic_ns()
        values = {"gpu_lost": 1} if health.status == "failed" else {}
        return [Sample(entry.uuid, now_ns, values, {}, (), health) for entry in slot.accelerators]

    def _read(self, board: Board, tiers: frozenset[str]) -> list[Sample]:
        """Read one GPU. Runs in its worker. Raises StaleHandle."""
        self._check_handles(board, tiers)
        xids = self._events.history(board.uuid)
        board_health = (
            Health() if board.health_reader is None else board.health_reader.health(tiers)
        )
        board_health = worse(board_health, xids.health())
        samples = []
        for entry in board.entries:
            reading = entry.reader.read(tiers)
            values, series = reading.values, reading.series
            values["gpu_lost"] = int(reading.failed == LOST)
            # 0 only where the driver reports events: elsewhere silence does not mean that there was
            # no Xid.
            if xids.last is not None or self._events.watches(board.uuid):
                values["gpu_last_xid"] = xids.last or 0
            if xids.last is not None:
                series["gpu_xid_errors_total"] = [
                    SeriesValue((("xid", str(xid)),), count) for xid, count in xids.counts().items()
                ]
            if "slow" in tiers and board.health_reader is None and board.mig_capable:
                values["gpu_mig_instances"] = 0
            health, now_ns = worse(reading.health, board_health), self._monotonic_ns()
            uuid = entry.accelerator.uuid
            samples.append(
                Sample(uuid, now_ns, values, reading.absent, reading.processes, health, series)
            )
        return samples

    def _check_handles(self, board: Board, tiers: frozenset[str]) -> None:
        """Raise StaleHandle if the handles are stale or, checked on slow ticks, the MIG instances
        have changed.
        """
        codes = {entry.reader.alive() for entry in board.entries}
        if codes & STALE:
            # Uninitialized: the driver was reloaded, so NVML must be initialized again.
            if 1 in codes:
                self._started = False
            raise StaleHandle(f"GPU {board.index}: its handle is stale (NVML {min(codes & STALE)})")
        if board.uuid in self._events.reshaped_boards():
            raise StaleHandle(f"GPU {board.index}: its MIG instances are being changed")
        if board.health_reader is not None and "slow" in tiers:
            nvml = self._nvml
            handles = instance_handles(nvml, board.handle)
            uuids = {text(call_or_none(nvml, nvml.nvmlDeviceGetUUID, handle)) for handle in handles}
            if uuids != {entry.accelerator.uuid for entry in board.entries}:
                raise StaleHandle(f"GPU {board.index}: its MIG instances have changed")

    def close(self) -> None:
        """Release every handle (nvmlShutdown), so that a reset or a MIG change is not blocked."""
        self._starting, self._unwanted = None, True
        self._events.stop()
        ends: list[PendingAnswer[None] | None] = [
            slot.worker.submit(partial(release, slot.board))
            for slot in self._slots
            if slot.worker is not None and slot.board is not None
        ]
        deadline = time.monotonic() + self._deadline_s
        wait_for_all(ends, deadline)
        for worker in self._workers.values():
            worker.end()  # a worker that hangs in the driver is abandoned
        self._slots, self._workers, self._late = [], {}, {}
        if self._started:
            self._started = False
            wait_for_all(
                [self._init.submit(lambda: call_or_none(self._nvml, self._nvml.nvmlShutdown))],
                deadline,
            )


def request_attach() -> list[Sample]:
    """Request a new attach from the worker of a GPU that did not answer: once it runs this, the GPU
    answers again.
    """
    raise StaleHandle("a GPU that did not answer does so again")


def wait_for_all(calls: Iterable[PendingAnswer[None] | None], deadline: float) -> None:
    """Wait for calls without using their answers, until the deadline at most."""
    for call in calls:
        if call is not None:
            with contextlib.suppress(TimeoutError):
                call.take(deadline)


def release(board: Board) -> None:
    """Free the GPM buffers of a board's readers."""
    for entry in board.entries:
        entry.reader.release()


def instance_handles(nvml: Any, parent: Any) -> list[Any]:
    """Handles of the MIG instances of a device; positions of destroyed ones are empty."""
    count = call_or_none(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0
    handles = (
        call_or_none(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, at)
        for at in range(count)
    )
    return [handle for handle in handles if handle is not None]


def mig_instance(nvml: Any, parent: Any, handle: Any, device: Accelerator) -> BoardAccelerator:
    """A MIG instance with its dominant share of the device."""
    gpu_instance = call_or_none(nvml, nvml.nvmlDeviceGetGpuInstanceId, handle)
    attributes = call_or_none(nvml, nvml.nvmlDeviceGetAttributes, handle)
    # The name of an instance ends with its profile: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    profile = text(call_or_none(nvml, nvml.nvmlDeviceGetName, handle)).rpartition(" ")[2]
    # Slices of seven, as NVIDIA divides a device; without attributes the instance counts as the
    # entire device.
    compute, slices, memory = 7, 7, None
    if attributes is not None:
        compute, slices = (
            int(attributes.computeInstanceSliceCount or 1),
            int(attributes.gpuInstanceSliceCount or 1),
        )
        memory = int(attributes.memorySizeMB) * 1024**2
    share = measured_share(
        compute, slices, memory or 0, device.model, device.memory_bytes if memory else None
    )
    accelerator = replace(
        device,
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        mig_instance=f"{profile or 'mig'}/{'' if gpu_instance is None else gpu_instance}",
        gpu_micro=share,
        memory_bytes=memory,
    )
    return BoardAccelerator(
        accelerator, DeviceReader(nvml, handle, parent=parent, gpu_instance=gpu_instance)
    )


def call_or_none(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's answer; None where the card or the driver does not support it."""
    try:
        return call(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError, AttributeError):
        return None


def error_text(nvml: Any, error: Any) -> str:
    """NVML's text for an error, with its number."""
    code = getattr(error, "value", None)
    if not isinstance(code, int):
        return f"{type(error).__name__}: {error}"
    words = (
        text(call_or_none(nvml, nvml.nvmlErrorString, code))
        if hasattr(nvml, "nvmlErrorString")
        else ""
    )
    return f"{words or error} (NVML {code})"

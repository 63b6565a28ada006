"""NVML through NVIDIA's own binding: every row of the catalogue that a card answers, each GPU in a worker of its own.

Init happens once, never per sample; a GPU that is lost stays in the inventory by its UUID; what a card does not support
is asked once per attach and then left out with its reason. With MIG on, the instances are the accelerators and the
board's power and energy belong to none of them: there is no sensor per instance, and any split would be invented.
When the handles no longer stand for what is there (a driver reload, other MIG instances), the source says that it is
unavailable, and the next `open` attaches anew.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpuledger_agent.sources.kernel_log import KernelLog
from gpuledger_agent.sources.nvml_events import DriverEvents, Watched
from gpuledger_agent.sources.nvml_reader import LOST, DeviceReader, text
from gpuledger_agent.sources.nvml_worker import Pending, Worker
from gpuledger_common.health import worse
from gpuledger_common.mig import fitted, measured_share
from gpuledger_common.readings import Accelerator, Health, Inventory, Labelled, Sample, SourceUnavailable, StillStarting

INIT_DEADLINE_S = 60.0
"""The first client of a card without persistence mode waits up to 3 s per GPU (driver-persistence documentation)."""
IMPATIENT_S = 5.0
"""How long the daemon's thread waits for that at a time: meanwhile it cannot stop, let go or keep its heartbeat."""
ATTACH_DEADLINE_S = 10.0
READ_DEADLINE_S = 5.0
STALE = frozenset({1, 2, 28, 999})
"""Codes of a handle that no longer stands for its device: uninitialised, invalid argument, GPU not found, unknown."""

_INIT_SENTENCES = {
    9: "the NVIDIA driver is not loaded; load it (modprobe nvidia) or install it",
    12: "libnvidia-ml.so.1 was not found: install the NVIDIA driver, or start the container with NVIDIA's runtime",
    4: "NVML refuses this user; give it access to /dev/nvidiactl and /dev/nvidia*",
    17: "the operating system hides the GPUs from this process; check device permissions and cgroups",
    18: "driver and library differ in version: the driver was upgraded, a reboot (or module reload) is needed",
}


@dataclass(frozen=True, slots=True)
class Member:
    """An accelerator of a board, with what reads it."""

    accelerator: Accelerator
    reader: DeviceReader


@dataclass(frozen=True, slots=True)
class Board:
    """A physical GPU as attached: itself the one member, or its MIG instances and a reader for the board's health."""

    index: int
    uuid: str
    handle: Any
    bus: str | None
    members: tuple[Member, ...]
    guard: DeviceReader | None = None
    mig_capable: bool = False


@dataclass(slots=True)
class Slot:
    """A place in the driver's enumeration; without a board, `accelerators` are those known, and `health` says why."""

    worker: Worker | None
    board: Board | None
    accelerators: Sequence[Accelerator]
    health: Health = field(default_factory=Health)


class StaleBoard(Exception):
    """A board's handles no longer stand for what is there."""


class NvmlSource:
    """All GPUs of this machine. `pynvml` may be handed in by tests."""

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
        self._given, self._deadline_s, self._attach_deadline_s = binding, deadline_s, attach_deadline_s
        self._monotonic_ns = monotonic_ns
        self._init = Worker("nvml-init")
        self._nvml: Any = binding
        self._started = False
        self._starting: Pending[tuple[int, str | None]] | None = None
        self._unwanted = False
        self._workers: dict[int, Worker] = {}
        self._late: dict[int, Pending[Board]] = {}
        self._slots: list[Slot] = []
        self._known: dict[str, Accelerator] = {}
        self._gpus = 0
        self._counting: Pending[int] | None = None
        self._events = events or DriverEvents(KernelLog())

    def open(self) -> Inventory:
        """Loads the library and attaches every GPU. Raises SourceUnavailable with the sentence that cures it."""
        self._unwanted = False
        pending = self._starting = self._starting or self._init.submit(self._start)
        if pending is None:
            raise StillStarting("the NVIDIA driver has not answered the last attempt yet; see dmesg for Xid errors")
        try:
            gpus, driver = pending.take(time.monotonic() + self._init_deadline_s)
        except TimeoutError:
            raise StillStarting(
                f"the NVIDIA driver has not answered for {self._init_deadline_s:g} s; see dmesg for Xid errors"
            ) from None
        except BaseException:
            self._starting = None
            raise
        self._starting = None
        self._gpus, self._counting = gpus, None
        problems = self._attach_all(gpus)
        boards = [slot.board for slot in self._slots if slot.board is not None]
        self._events.start(self._nvml, [Watched(board.uuid, board.handle, board.bus) for board in boards])
        return Inventory(driver, [entry for slot in self._slots for entry in slot.accelerators], problems)

    def _start(self) -> tuple[int, str | None]:
        """Number of GPUs and driver version; runs in the init worker."""
        nvml = self._load()
        try:
            gpus = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            self._started = False
            quietly(nvml, nvml.nvmlShutdown)  # NVML counts its inits: one without its shutdown would hold the GPUs
            raise SourceUnavailable(f"NVML does not count its GPUs: {error_text(nvml, error)}") from error
        if self._unwanted:  # let go while the driver was still starting
            self._started = False
            quietly(nvml, nvml.nvmlShutdown)
            raise SourceUnavailable("the GPUs were let go while the driver started")
        return gpus, text(quietly(nvml, nvml.nvmlSystemGetDriverVersion)) or None

    def _attach_all(self, gpus: int) -> list[str]:
        """Attaches every GPU in its worker, all at once; sentences about those that could not be."""
        boards = {slot.board.index: slot.board for slot in self._slots if slot.board is not None}
        started = []
        for index in range(gpus):
            if index not in self._workers:
                self._workers[index] = Worker(f"nvml-{index}")
            started.append((index, self._begin(index, boards.get(index))))
        deadline = time.monotonic() + self._attach_deadline_s
        problems: list[str] = []
        slots = [self._attached(index, pending, deadline, problems) for index, pending in started]
        present = {uuid for slot in slots for entry in slot.accelerators for uuid in (entry.uuid, entry.device_uuid)}
        present |= {slot.board.uuid for slot in slots if slot.board is not None}
        lost = Health("failed", "the GPU is lost: it was here and the driver no longer shows it")
        for uuid, entry in self._known.items():
            if uuid not in present and entry.device_uuid not in present:
                slots.append(Slot(None, None, [entry], lost))
        here = {entry.uuid: entry for slot in slots for entry in slot.accelerators}
        # Instances that a present board no longer has were taken apart on purpose: they are gone, not lost.
        self._known = here
        self._slots = slots
        return problems

    def _begin(self, index: int, old: Board | None) -> Pending[Board] | None:
        """An attach under way: the last one when it came too late to be taken, else a new one; None when neither."""
        return self._late.pop(index, None) or self._workers[index].submit(partial(self._attach, index, old))

    def _attached(self, index: int, pending: Pending[Board] | None, deadline: float, problems: list[str]) -> Slot:
        """What became of an attach; its sentence goes to `problems` when there is no board."""
        worker = self._workers[index]
        known = [entry for entry in self._known.values() if entry.index == index]
        silent = Slot(worker, None, known, Health("unknown", "the GPU did not answer when it was attached"))
        try:
            board = None if pending is None else pending.take(deadline)
        except TimeoutError:
            board = None
            if pending is not None:
                self._late[index] = pending
        except Exception as error:  # one sick GPU must not keep the others from being read
            problems.append(f"GPU {index} cannot be attached: {error_text(self._nvml, error)}")
            return Slot(None, None, [])
        if board is None:
            problems.append(f"GPU {index} does not answer; it is attached as soon as it does")
            return silent
        if not board.members:
            problems.append(f"GPU {index} has MIG on and no instance: nothing on it can be held")
        return Slot(worker, board, [member.accelerator for member in board.members])

    def _load(self) -> Any:
        try:
            if self._given is None:
                import pynvml

                self._nvml = pynvml
            if not self._started:
                self._nvml.nvmlInit()
                self._started = True
        except ImportError as error:
            raise SourceUnavailable("the package nvidia-ml-py is not installed: pip install nvidia-ml-py") from error
        except self._nvml.NVMLError as error:
            sentence = _INIT_SENTENCES.get(error.value, f"NVML did not start: {error_text(self._nvml, error)}")
            raise SourceUnavailable(sentence) from error
        return self._nvml

    def _attach(self, index: int, old: Board | None) -> Board:
        """Runs in the worker of this GPU."""
        nvml = self._nvml
        for member in old.members if old is not None else ():
            member.reader.release()
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        model = text(quietly(nvml, nvml.nvmlDeviceGetName, handle)) or "unknown"
        bus = quietly(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        memory = quietly(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        total = None if memory is None else int(memory.total)
        pci = None if bus is None else text(bus.busId)
        mode = quietly(nvml, nvml.nvmlDeviceGetMigMode, handle)
        device = Accelerator(uuid, uuid, index, model, memory_bytes=total, pci_bus_id=pci)
        if mode is not None and mode[0] == 1:
            found = [instance(nvml, handle, entry, device) for entry in instance_handles(nvml, handle)]
            shares = fitted(member.accelerator for member in found)
            instances = tuple(replace(member, accelerator=one) for member, one in zip(found, shares, strict=True))
            return Board(index, uuid, handle, pci, instances, DeviceReader(nvml, handle))
        return Board(
            index, uuid, handle, pci, (Member(device, DeviceReader(nvml, handle)),), mig_capable=mode is not None
        )

    def read(self, tiers: Iterable[str]) -> Sequence[Sample]:
        """A sample of every accelerator; one that does not answer in time is `unknown`, one that is gone `failed`.

        Raises SourceUnavailable when the GPUs are no longer those that were attached.
        """
        wanted = frozenset(tiers)
        self._events.poll()
        self._count_again(wanted)
        started = [(slot, self._submit(slot, wanted)) for slot in self._slots]
        deadline = time.monotonic() + self._deadline_s
        samples: list[Sample] = []
        stale: list[str] = []
        for slot, pending in started:
            try:
                samples += self._take(slot, pending, deadline)
            except StaleBoard as error:
                stale.append(str(error))
        if stale:
            raise SourceUnavailable(f"{'; '.join(stale)}; the GPUs are attached anew")
        return samples

    def _count_again(self, tiers: frozenset[str]) -> None:
        """A GPU that was plugged in or taken out is found by the next slow tick; nobody waits for the answer.

        Raises SourceUnavailable when the driver shows another number of GPUs than were attached.
        """
        if self._counting is not None:
            try:
                gpus = self._counting.take(time.monotonic())
            except TimeoutError:
                return
            except self._nvml.NVMLError:  # what is wrong shows when the GPUs are read
                gpus = self._gpus
            self._counting = None
            if gpus != self._gpus:
                raise SourceUnavailable(
                    f"the driver shows {gpus} GPUs where {self._gpus} were attached; they are attached anew"
                )
        if "slow" in tiers:
            self._counting = self._init.submit(lambda: int(self._nvml.nvmlDeviceGetCount()))

    def _submit(self, slot: Slot, wanted: frozenset[str]) -> Pending[list[Sample]] | None:
        if slot.worker is None:
            return None
        if slot.board is None:
            return slot.worker.submit(answers_again)
        return slot.worker.submit(partial(self._read, slot.board, wanted))

    def _take(self, slot: Slot, pending: Pending[list[Sample]] | None, deadline: float) -> list[Sample]:
        health = slot.health
        if pending is not None:
            try:
                return pending.take(deadline)
            except TimeoutError:
                pass
            except StaleBoard:
                raise
            except Exception as error:  # read never raises for one sick accelerator
                health = Health("unknown", f"reading it failed: {error_text(self._nvml, error)}")
        if health == Health():
            health = Health("unknown", f"unresponsive: no answer from the driver within {self._deadline_s:g} s")
        now_ns = self._monotonic_ns()
        values = {"gpu_lost": 1} if health.status == "failed" else {}
        return [Sample(entry.uuid, now_ns, values, {}, (), health) for entry in slot.accelerators]

    def _read(self, board: Board, tiers: frozenset[str]) -> list[Sample]:
        """Runs in the worker of this GPU. Raises StaleBoard."""
        self._check(board, tiers)
        told = self._events.of(board.uuid)
        fate = worse(Health() if board.guard is None else board.guard.health(tiers), told.health())
        samples = []
        for member in board.members:
            seen = member.reader.read(tiers)
            seen.values["gpu_lost"] = int(seen.failed == LOST)
            if told.last is not None or self._events.watches(board.uuid):
                seen.values["gpu_last_xid"] = told.last or 0
            if told.last is not None:
                seen.series["gpu_xid_errors_total"] = [
                    Labelled((("xid", str(xid)),), count) for xid, count in told.counts().items()
                ]
            if "slow" in tiers and board.guard is None and board.mig_capable:
                seen.values["gpu_mig_instances"] = 0
            samples.append(
                Sample(
                    member.accelerator.uuid,
                    self._monotonic_ns(),
                    seen.values,
                    seen.absent,
                    seen.processes,
                    worse(seen.health, fate),
                    seen.series,
                )
            )
        return samples

    def _check(self, board: Board, tiers: frozenset[str]) -> None:
        """Whether the handles still stand for what is there; the instances are counted on slow ticks only."""
        codes = {member.reader.alive() for member in board.members}
        if codes & STALE:
            if 1 in codes:
                self._started = False
            raise StaleBoard(f"GPU {board.index}: its handle is stale (NVML {min(codes & STALE)})")
        if board.uuid in self._events.reshaped():
            raise StaleBoard(f"GPU {board.index}: its MIG instances are being changed")
        if board.guard is not None and "slow" in tiers:
            nvml = self._nvml
            there = {
                text(quietly(nvml, nvml.nvmlDeviceGetUUID, entry)) for entry in instance_handles(nvml, board.handle)
            }
            if there != {member.accelerator.uuid for member in board.members}:
                raise StaleBoard(f"GPU {board.index}: its MIG instances are others now")

    def close(self) -> None:
        """Lets every handle go (nvmlShutdown), so that a reset or a MIG change is not blocked."""
        self._starting, self._unwanted = None, True
        self._events.stop()
        ends: list[Pending[None] | None] = [
            slot.worker.submit(partial(release, slot.board))
            for slot in self._slots
            if slot.worker is not None and slot.board is not None
        ]
        deadline = time.monotonic() + self._deadline_s
        settled(ends, deadline)
        for worker in self._workers.values():
            worker.end()
        self._slots, self._workers, self._late = [], {}, {}
        if self._started:
            self._started = False
            settled([self._init.submit(lambda: quietly(self._nvml, self._nvml.nvmlShutdown))], deadline)


def answers_again() -> list[Sample]:
    """The first thing that the worker of a GPU does which did not answer when it was attached: it can be attached."""
    raise StaleBoard("a GPU that did not answer does so again")


def settled(calls: Iterable[Pending[None] | None], deadline: float) -> None:
    """Waits for calls whose answers nobody needs, until the deadline at most."""
    for call in calls:
        if call is not None:
            with contextlib.suppress(TimeoutError):
                call.take(deadline)


def release(board: Board) -> None:
    """Frees what the readers of a board hold."""
    for member in board.members:
        member.reader.release()


def instance_handles(nvml: Any, parent: Any) -> list[Any]:
    """Handles of the MIG instances of a device; the positions of destroyed ones stay empty."""
    most = quietly(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0
    found = [quietly(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, position) for position in range(most)]
    return [handle for handle in found if handle is not None]


def instance(nvml: Any, parent: Any, handle: Any, device: Accelerator) -> Member:
    """A MIG instance with its dominant share of the device."""
    gpu_instance = quietly(nvml, nvml.nvmlDeviceGetGpuInstanceId, handle)
    attributes = quietly(nvml, nvml.nvmlDeviceGetAttributes, handle)
    profile = text(quietly(nvml, nvml.nvmlDeviceGetName, handle)).rpartition(" ")[2]
    memory = None if attributes is None else int(attributes.memorySizeMB) * 1024**2
    compute, slices = (
        (7, 7)
        if attributes is None
        else (int(attributes.computeInstanceSliceCount or 1), int(attributes.gpuInstanceSliceCount or 1))
    )
    share = measured_share(compute, slices, memory or 0, device.model, device.memory_bytes if memory else None)
    accelerator = replace(
        device,
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        mig_instance=f"{profile or 'mig'}/{'' if gpu_instance is None else gpu_instance}",
        gpu_micro=share,
        memory_bytes=memory,
    )
    return Member(accelerator, DeviceReader(nvml, handle, parent=parent, gpu_instance=gpu_instance))


def quietly(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's answer, None where the card or the driver does not have it."""
    try:
        return call(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError, AttributeError):
        return None


def error_text(nvml: Any, error: Any) -> str:
    """NVML's own words for an error, with its number."""
    code = getattr(error, "value", None)
    if not isinstance(code, int):
        return f"{type(error).__name__}: {error}"
    words = text(quietly(nvml, nvml.nvmlErrorString, code)) if hasattr(nvml, "nvmlErrorString") else ""
    return f"{words or error} (NVML {code})"

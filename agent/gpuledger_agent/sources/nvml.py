"""NVML through NVIDIA's own binding: every row of the catalogue that a card answers, each GPU in a worker of its own.

Init happens once, never per sample; a GPU that is lost stays in the inventory by its UUID; what a card does not support
is asked once per attach and then left out with its reason. With MIG on, the instances are the accelerators and the
board's power and energy belong to none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_agent.mig import measured_share
from gpuledger_agent.readings import Accelerator, Health, Inventory, Sample, SourceUnavailable
from gpuledger_agent.sources.nvml_reader import DeviceReader, text
from gpuledger_agent.sources.nvml_worker import Pending, Worker

INIT_DEADLINE_S = 60.0
"""The first client of a card without persistence mode waits up to 3 s per GPU (driver-persistence documentation)."""
READ_DEADLINE_S = 5.0

_INIT_SENTENCES = {
    9: "the NVIDIA driver is not loaded; load it (modprobe nvidia) or install it",
    12: "libnvidia-ml.so.1 was not found: this machine has no NVIDIA driver, or the agent cannot see its library",
    4: "NVML refuses this user; give it access to /dev/nvidiactl and /dev/nvidia*",
    17: "the operating system hides the GPUs from this process; check device permissions and cgroups",
    18: "driver and library differ in version: the driver was upgraded, a reboot (or module reload) is needed",
}


@dataclass(slots=True)
class Device:
    """One accelerator with its worker and reader; `reader` is None for a device that could not be attached."""

    accelerator: Accelerator
    worker: Worker
    reader: DeviceReader | None
    health: Health = field(default_factory=Health)


class NvmlSource:
    """All GPUs of this machine. `pynvml` may be handed in by tests."""

    name = "nvml"

    def __init__(
        self,
        binding: Any = None,
        deadline_s: float = READ_DEADLINE_S,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._given, self._deadline_s, self._monotonic_ns = binding, deadline_s, monotonic_ns
        self._init = Worker("nvml-init")
        self._nvml: Any = binding
        self._devices: list[Device] = []
        self._known: dict[str, Accelerator] = {}

    def open(self) -> Inventory:
        """Loads the library and attaches every GPU. Raises SourceUnavailable with the sentence that cures it."""
        pending = self._init.submit(self._attach)
        if pending is None:
            raise SourceUnavailable("the NVIDIA driver has not answered the last attempt yet; see dmesg for Xid errors")
        try:
            return pending.take(time.monotonic() + INIT_DEADLINE_S)
        except TimeoutError:
            raise SourceUnavailable(
                f"the NVIDIA driver did not answer within {INIT_DEADLINE_S:.0f} s; see dmesg for Xid errors"
            ) from None

    def _attach(self) -> Inventory:
        """Runs in the init worker."""
        nvml = self._load()
        problems: list[str] = []
        devices: list[Device] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                devices += self._attach_device(nvml, handle, index)
            except nvml.NVMLError as error:
                problems.append(f"GPU {index} cannot be attached: {error_text(nvml, error)}")
        present = {device.accelerator.uuid for device in devices}
        parents = {device.accelerator.device_uuid for device in devices}
        for uuid, accelerator in self._known.items():
            if uuid not in present and accelerator.device_uuid not in parents:
                lost = Health("failed", "the GPU is lost: it was here and the driver no longer shows it")
                devices.append(Device(accelerator, Worker(f"nvml-{uuid}"), None, lost))
        self._known |= {device.accelerator.uuid: device.accelerator for device in devices}
        for old in self._devices:
            old.worker.end()
        self._devices = devices
        driver = quietly(nvml, nvml.nvmlSystemGetDriverVersion)
        return Inventory(text(driver) or None, [device.accelerator for device in devices], problems)

    def _load(self) -> Any:
        try:
            if self._given is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
        except ImportError as error:
            raise SourceUnavailable("the package nvidia-ml-py is not installed: pip install nvidia-ml-py") from error
        except self._nvml.NVMLError as error:
            sentence = _INIT_SENTENCES.get(error.value, f"NVML did not start: {error_text(self._nvml, error)}")
            raise SourceUnavailable(sentence) from error
        return self._nvml

    def _attach_device(self, nvml: Any, handle: Any, index: int) -> list[Device]:
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        model = text(quietly(nvml, nvml.nvmlDeviceGetName, handle)) or "unknown"
        bus = quietly(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        memory = quietly(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        total = None if memory is None else int(memory.total)
        pci = None if bus is None else text(bus.busId)
        mode = quietly(nvml, nvml.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == 1:
            return self._attach_instances(nvml, handle, Accelerator(uuid, uuid, index, model, None, 1, total, pci))
        accelerator = Accelerator(uuid, uuid, index, model, memory_bytes=total, pci_bus_id=pci)
        return [Device(accelerator, Worker(f"nvml-{index}"), DeviceReader(nvml, handle))]

    def _attach_instances(self, nvml: Any, parent: Any, device: Accelerator) -> list[Device]:
        """The MIG instances of a device; they share the device's worker, since they share its fate."""
        worker = Worker(f"nvml-{device.index}")
        found = []
        for position in range(quietly(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
            handle = quietly(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, position)
            if handle is None:
                continue
            gpu_instance = quietly(nvml, nvml.nvmlDeviceGetGpuInstanceId, handle)
            attributes = quietly(nvml, nvml.nvmlDeviceGetAttributes, handle)
            profile = text(quietly(nvml, nvml.nvmlDeviceGetName, handle)).rpartition(" ")[2]
            memory = None if attributes is None else int(attributes.memorySizeMB) * 1024**2
            compute = 7 if attributes is None else int(attributes.computeInstanceSliceCount or 1)
            share = measured_share(compute, memory or 0, device.model, device.memory_bytes if memory else None)
            accelerator = Accelerator(
                text(nvml.nvmlDeviceGetUUID(handle)), device.uuid, device.index, device.model,
                f"{profile or 'mig'}/{position if gpu_instance is None else gpu_instance}", share, memory,
                device.pci_bus_id,
            )  # fmt: skip
            reader = DeviceReader(nvml, handle, parent=parent, gpu_instance=gpu_instance)
            found.append(Device(accelerator, worker, reader))
        return found

    def read(self, tiers: Iterable[str]) -> Sequence[Sample]:
        """A sample of every accelerator; one that does not answer in time is `unknown`, one that is gone `failed`."""
        wanted = frozenset(tiers)
        groups: dict[int, list[Device]] = {}
        for device in self._devices:
            groups.setdefault(id(device.worker), []).append(device)
        started = [
            (group, group[0].worker.submit(lambda group=group: [self._read(device, wanted) for device in group]))  # type: ignore[misc]
            for group in groups.values()
        ]
        deadline = time.monotonic() + self._deadline_s
        samples: list[Sample] = []
        for group, pending in started:
            samples += self._take(group, pending, deadline)
        return samples

    def _take(self, group: list[Device], pending: Pending[list[Sample]] | None, deadline: float) -> list[Sample]:
        if pending is not None:
            try:
                return pending.take(deadline)
            except TimeoutError:
                pass
        silent = Health("unknown", f"no answer from the driver within {self._deadline_s:g} s")
        now_ns = self._monotonic_ns()
        return [Sample(device.accelerator.uuid, now_ns, {}, {}, (), silent) for device in group]

    def _read(self, device: Device, tiers: frozenset[str]) -> Sample:
        """Runs in the device's worker."""
        uuid = device.accelerator.uuid
        if device.reader is None:
            return Sample(uuid, self._monotonic_ns(), {}, {}, (), device.health)
        seen = device.reader.read(tiers)
        return Sample(uuid, self._monotonic_ns(), seen.values, seen.absent, seen.processes, seen.health)

    def close(self) -> None:
        """Lets every handle go (nvmlShutdown), so that a reset or a MIG change is not blocked."""
        for device in self._devices:
            device.worker.end()
        self._devices = []
        if self._nvml is not None:
            pending = self._init.submit(lambda: quietly(self._nvml, self._nvml.nvmlShutdown))
            if pending is not None:
                try:
                    pending.take(time.monotonic() + self._deadline_s)
                except TimeoutError:
                    return


def quietly(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's answer, None where the card or the driver does not have it."""
    try:
        return call(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def error_text(nvml: Any, error: Any) -> str:
    """NVML's own words for an error, with its number."""
    words = text(quietly(nvml, nvml.nvmlErrorString, error.value)) if hasattr(nvml, "nvmlErrorString") else ""
    return f"{words or error} (NVML {error.value})"

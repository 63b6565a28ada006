"""The readings of a node at one instant: its accelerators, their samples and their holders.

These immutable values are the interface between the sampler and every source (NVML, an exporter, a
recording, a simulation) and owner source. A reading that a card does not give is *absent with a
reason*, never 0 and never -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

HOUR_MS = 3_600_000

WHOLE_GPU = 1_000_000
"""Micro-GPUs of a whole device: the unit of an accelerator's share (see `Accelerator.gpu_micro`).
"""

HealthStatus = Literal["ok", "degraded", "failed", "unknown"]


class AgentError(Exception):
    """Root of the agent's expected errors; `permanent` means that a retry cannot help."""

    permanent = False


class SourceUnavailable(AgentError):
    """A source cannot be read at all: no driver, no library, no file.

    The message says what to do.
    """


class StillStarting(SourceUnavailable):
    """The source is still starting: retry soon."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The unit that usage is counted for: a device, or a MIG instance when MIG is on.

    `gpu_micro` is the share of a physical device in millionths: 1,000,000 for a whole device, and
    the dominant share max(compute, memory) for a MIG instance. `uuid` is the key everywhere;
    `index` changes at boot and is display only.
    """

    uuid: str
    device_uuid: str
    index: int
    model: str
    mig_instance: str | None = None
    """For a MIG instance its profile and id, such as `1g.10gb/7` (profile/GPU instance id); None
    for a device.
    """
    gpu_micro: int = WHOLE_GPU
    memory_bytes: int | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has a context on an accelerator.

    `memory_bytes` is None where the driver does not report it.
    """

    pid: int
    memory_bytes: int | None = None
    kind: Literal["compute", "graphics"] = "compute"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one accelerator with its cause.

    `failed` makes its time *unavailable* in the ledger.
    """

    status: HealthStatus = "ok"
    cause: str = ""


@dataclass(frozen=True, slots=True)
class SeriesValue:
    """One series of a metric that has several: its labels and its value in base units."""

    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The readings of one accelerator at one instant, in base units, by catalog name.

    `monotonic_ns` is the instant of the reading on CLOCK_MONOTONIC. A metric is in `values`, or in
    `absent` with a reason, or in neither when its tier was not due.
    """

    uuid: str
    monotonic_ns: int
    values: Mapping[str, float | int]
    absent: Mapping[str, str] = field(default_factory=dict)
    processes: Sequence[Process] = ()
    health: Health = Health()
    series: Mapping[str, Sequence[SeriesValue]] = field(default_factory=dict)
    """Metrics that have several series on one accelerator (a link, a process, a reason); shown, not
    stored.
    """


@dataclass(frozen=True, slots=True)
class Inventory:
    """The accelerators that a source sees.

    `problems` are sentences such as an unreadable GPU, a missing permission.
    """

    driver: str | None
    accelerators: Sequence[Accelerator]
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """The job, pod, container or process that holds an accelerator.

    `id` is unique within its `kind` and node/cluster.

    `tags` are set by people; tags named like a level of the owner tree (team, project, ...)
    attribute it.
    """

    id: str
    kind: Literal[
        "slurm", "kubernetes", "container", "process", "static", "simulated", "dcgm", "labels"
    ]
    user: str | None = None
    account: str | None = None
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    job: str | None = None
    """The job that it is a part of, such as `JobSet vision/train` of 64 pods; None: none is known."""
    job_uid: str | None = None
    """Which of the jobs of that name it is; None: not known."""
    queue: str | None = None
    """The queue of its scheduler that admitted it, such as `vision/train`; None: none is known."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Owners that its labels claimed and that it may not name, by level; they are no tags."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A workload that holds an accelerator; holders of one accelerator share it in proportion to
    their weights.
    """

    workload: Workload
    weight: int = 1


Holders = Mapping[str, Sequence[Holder]]
"""Holders by accelerator uuid; an accelerator without an entry has no known holder."""


class Source(Protocol):
    """A source of samples.

    `read` never raises for one faulty accelerator: the health of its sample says so.
    """

    name: str

    def open(self) -> Inventory:
        """Attach and enumerate. Raises SourceUnavailable when nothing can be read at all."""

    def read(self, tiers: Iterable[str], /) -> Sequence[Sample]:
        """One sample per accelerator with the metrics of the requested tiers."""

    def close(self) -> None:
        """Release every handle."""


@runtime_checkable
class ChangingSource(Protocol):
    """A source whose accelerators may be others at each read, without being opened again."""

    def take_changed(self) -> Inventory | None:
        """The inventory, if the last read showed another one than before."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a node is to its cloud; empty: not known."""

    pool: str = ""
    """Pool of nodes that it belongs to."""
    purchase: str = ""
    """How it is bought: on_demand, spot or reserved, as the price book calls it."""
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    provider_id: str = ""
    """Its id at the cloud, by which a line of the bill names it."""


@runtime_checkable
class MachineSource(Protocol):
    """An owner source that also knows what the node is to its cloud."""

    def machine(self) -> Machine | None:
        """The latest answer, however old; None while nothing is known."""


@runtime_checkable
class OwnerSource(Protocol):
    """A source of holders: it knows who *holds* an accelerator, or (processes alone) who *uses* it."""

    name: str

    def holders(self, accelerators: Sequence[Accelerator], samples: Sequence[Sample], /) -> Holders:
        """The holders of these accelerators that this source knows."""

"""What the readers of schedulers share: metadata, requests of pods, and what was not answered."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gpuledger_collector.accounting.queue_quotas import QueuedWorkload, QueueReading
from gpuledger_collector.insight.queue_health import ListProblem, Trouble
from gpuledger_common.gpu_resources import gpu_micro, is_gpu
from gpuledger_common.instants import to_ms
from gpuledger_common.kubernetes_client import (
    ApiFailed,
    Item,
    KubernetesClient,
    NoSuchResource,
    NotAllowed,
)

Quantities = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class SchedulerReading:
    """What one scheduler's objects say; a part that is None was not answered."""

    scheduler: str
    reading: QueueReading | None
    tenants: Mapping[str, str] | None = None
    """Queues that workloads name -> the queue that has their quota."""
    workloads: tuple[QueuedWorkload, ...] | None = None
    problems: tuple[ListProblem, ...] = ()

    @property
    def is_unanswered(self) -> bool:
        """Whether its queues are not known; where the API server has none, it is not installed."""
        return self.reading is None and any(
            problem.trouble is not Trouble.MISSING for problem in self.problems
        )


class Metadata(msgspec.Struct):
    """The fields that are read of every object's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    created: str = msgspec.field(default="", name="creationTimestamp")


class Resources(msgspec.Struct):
    """What a container asks for; limits alone may be given."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(msgspec.Struct):
    """A container of a pod; an init container with `restartPolicy` Always keeps running."""

    resources: Resources = msgspec.field(default_factory=Resources)
    restart: str = msgspec.field(default="", name="restartPolicy")


class PodSpec(msgspec.Struct):
    """The containers of a pod."""

    containers: list[Container] | None = None
    init: list[Container] | None = msgspec.field(default=None, name="initContainers")


@dataclass(slots=True)
class Lister:
    """Lists resources of an API server, and keeps what was not answered."""

    client: KubernetesClient
    problems: list[ListProblem] = field(default_factory=list)

    def list_all(
        self, group: str, versions: tuple[str, ...], plural: str, kind: type[Item]
    ) -> list[Item] | None:
        """Every object, by the first version that is served; None after keeping why not."""
        for version in versions:
            try:
                return self.client.list_all(f"/apis/{group}/{version}/{plural}", kind)
            except NoSuchResource:
                continue
            except ApiFailed as error:
                trouble = Trouble.FORBIDDEN if isinstance(error, NotAllowed) else Trouble.FAILED
                detail = "" if trouble is Trouble.FORBIDDEN else str(error)[:500]
                self.problems.append(ListProblem(f"{plural}.{group}", trouble, detail))
                return None
        self.problems.append(ListProblem(f"{plural}.{group}", Trouble.MISSING))
        return None


def gpus_of(quantities: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Millionths of a GPU by resource; other resources and what is no quantity are left out."""
    counted = {name: gpu_micro(name, value) for name, value in (quantities or {}).items()}
    return {name: micro for name, micro in counted.items() if micro is not None and is_gpu(name)}


def gpus_of_pod(spec: PodSpec) -> dict[str, int]:
    """What a pod asks for at once: its containers together, or the largest init container."""
    running: dict[str, int] = {}
    initial: dict[str, int] = {}
    for container, is_init in [
        *((entry, False) for entry in spec.containers or ()),
        *((entry, True) for entry in spec.init or ()),
    ]:
        resources = container.resources
        for name, micro in gpus_of(
            {**(resources.limits or {}), **(resources.requests or {})}
        ).items():
            if is_init and container.restart != "Always":
                initial[name] = max(initial.get(name, 0), micro)
            else:
                running[name] = running.get(name, 0) + micro
    return {name: max(running.get(name, 0), initial.get(name, 0)) for name in {*running, *initial}}


def instant_of(text: str) -> int | None:
    """Unix milliseconds of what Kubernetes writes as an instant."""
    try:
        return to_ms(dt.datetime.fromisoformat(text))
    except ValueError:
        return None

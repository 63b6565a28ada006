"""Pending pods of Kubernetes with the GPUs that they request, by the API server.

A pod that is bound to a node holds its GPUs already, and a gated one does not request any yet:
neither waits. A MIG instance counts as the sevenths of a GPU in its resource's name.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping

import msgspec

from gpuledger_agent.owners.kubernetes_api import ApiServer
from gpuledger_agent.queue import QueuedWorkload

WHOLE = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
SEVENTHS = 7
_MIG = re.compile(r"nvidia\.com/mig-([1-7])g\..*")


class Resources(msgspec.Struct):
    """What a container requests; for GPUs requests and limits are equal, and limits alone may be
    given.
    """

    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class Container(msgspec.Struct):
    """A container of a pod; an init container with `restartPolicy` Always keeps running (a
    sidecar).
    """

    resources: Resources = msgspec.field(default_factory=Resources)
    restart: str = msgspec.field(default="", name="restartPolicy")


class Spec(msgspec.Struct):
    """The fields that are read of a pod's spec."""

    node: str = msgspec.field(default="", name="nodeName")
    selector: dict[str, str] | None = msgspec.field(default=None, name="nodeSelector")
    containers: list[Container] | None = None
    init: list[Container] | None = msgspec.field(default=None, name="initContainers")


class Condition(msgspec.Struct):
    """One of a pod's conditions."""

    reason: str = ""


class Status(msgspec.Struct):
    """The fields that are read of a pod's status."""

    phase: str = ""
    conditions: list[Condition] | None = None


class Metadata(msgspec.Struct):
    """The fields that are read of a pod's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    created: str = msgspec.field(default="", name="creationTimestamp")
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")


class Pod(msgspec.Struct):
    """A pod with the fields that decide whether it waits."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)


def pending(server: ApiServer, pool: str = "") -> list[QueuedWorkload]:
    """The pods that wait for GPUs, all in `pool`. Raises ApiFailed."""
    return [
        QueuedWorkload(
            workload_id=pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}",
            gpus=gpus,
            pool=pool,
            gpu_model=model_of(pod.spec),
            team=(pod.metadata.labels or {}).get("team", pod.metadata.namespace),
            submitted=_seconds(pod.metadata.created),
        )
        for pod in server.pending(Pod)
        if (gpus := gpus_of(pod.spec)) and waits(pod)
    ]


def waits(pod: Pod) -> bool:
    """Whether the pod waits for a node: not bound, not gated, not being deleted."""
    gated = any(condition.reason == "SchedulingGated" for condition in pod.status.conditions or ())
    return (
        pod.status.phase == "Pending"
        and not pod.spec.node
        and not gated
        and pod.metadata.deleted is None
    )


def gpus_of(spec: Spec) -> float:
    """GPUs that a pod needs at once: its containers together, or the largest init container where
    that is more.
    """
    running = [*(spec.containers or ())]
    initial = [0.0]
    for container in spec.init or ():
        if container.restart == "Always":
            running.append(container)
        else:
            initial.append(_requested_gpus(container.resources))
    return max(sum(_requested_gpus(container.resources) for container in running), *initial)


def model_of(spec: Spec) -> str:
    """The model that the pod's node selector requires; '' for any."""
    return next(
        (
            spec.selector[label]
            for label in MODEL_LABELS
            if spec.selector and label in spec.selector
        ),
        "",
    )


def _requested_gpus(resources: Resources) -> float:
    requested: Mapping[str, str | int] = {**(resources.requests or {}), **(resources.limits or {})}
    total = 0.0
    for name, count in requested.items():
        part = _MIG.fullmatch(name)
        if name in WHOLE:
            total += _number(count)
        elif part:
            total += _number(count) * int(part[1]) / SEVENTHS
    return total


def _number(count: str | int) -> int:
    """A count of devices, always an integer; 0 for anything else."""
    text = str(count)
    return int(text) if text.isdecimal() else 0


def _seconds(text: str) -> float | None:
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None

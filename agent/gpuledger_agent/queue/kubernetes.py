"""Pending pods of Kubernetes with the GPUs that they ask for, by the API server.

A pod that has a node holds its GPUs already, and one that is gated does not ask for any yet: neither waits. A MIG
instance counts by its sevenths of a GPU, as its resource's name tells them.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping

import msgspec

from gpuledger_agent.owners.kubernetes_api import ApiServer
from gpuledger_agent.queue import Waiting

WHOLE = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
SEVENTHS = 7
_MIG = re.compile(r"nvidia\.com/mig-([1-7])g\..*")


class Resources(msgspec.Struct):
    """What a container asks for; of GPUs requests and limits are the same, and limits alone may be given."""

    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class Container(msgspec.Struct):
    """A container of a pod; `restartPolicy` Always makes an init container one that stays."""

    resources: Resources = msgspec.field(default_factory=Resources)
    restart: str = msgspec.field(default="", name="restartPolicy")


class Spec(msgspec.Struct):
    """What is read of a pod's spec."""

    node: str = msgspec.field(default="", name="nodeName")
    selector: dict[str, str] | None = msgspec.field(default=None, name="nodeSelector")
    containers: list[Container] | None = None
    init: list[Container] | None = msgspec.field(default=None, name="initContainers")


class Condition(msgspec.Struct):
    """One of a pod's conditions."""

    reason: str = ""


class Status(msgspec.Struct):
    """What is read of a pod's status."""

    phase: str = ""
    conditions: list[Condition] | None = None


class Metadata(msgspec.Struct):
    """Whose the pod is, and since when it is there."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    made: str = msgspec.field(default="", name="creationTimestamp")
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")


class Pod(msgspec.Struct):
    """A pod as far as its wait goes."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)


def pending(server: ApiServer, pool: str = "") -> list[Waiting]:
    """The pods that wait for GPUs, all as of `pool`. Raises ApiFailed."""
    found = []
    for pod in server.pending(Pod):
        gpus = gpus_of(pod.spec)
        if gpus and waits(pod):
            found.append(_waiting(pod, gpus, pool))
    return found


def _waiting(pod: Pod, gpus: float, pool: str) -> Waiting:
    told = pod.metadata
    return Waiting(
        workload_id=told.uid or f"{told.namespace}/{told.name}",
        gpus=gpus,
        pool=pool,
        gpu_model=model_of(pod.spec),
        team=(told.labels or {}).get("team", told.namespace),
        submitted=_seconds(told.made),
    )


def waits(pod: Pod) -> bool:
    """Whether the pod waits for a node: not bound, not gated, not on its way out."""
    gated = any(one.reason == "SchedulingGated" for one in pod.status.conditions or ())
    return pod.status.phase == "Pending" and not pod.spec.node and not gated and pod.metadata.deleted is None


def gpus_of(spec: Spec) -> float:
    """GPUs that a pod needs at once: its containers together, or the largest init container where that is more."""
    placements = [one for one in spec.init or () if one.restart == "Always"]
    passing = [_asked(one.resources) for one in spec.init or () if one.restart != "Always"]
    return max([sum(_asked(one.resources) for one in [*(spec.containers or ()), *placements]), *passing])


def model_of(spec: Spec) -> str:
    """The model that the pod's node selector asks for; '' where it takes any."""
    return next((spec.selector[label] for label in MODEL_LABELS if spec.selector and label in spec.selector), "")


def _asked(resources: Resources) -> float:
    asked: Mapping[str, str | int] = {**(resources.requests or {}), **(resources.limits or {})}
    total = 0.0
    for name, count in asked.items():
        part = _MIG.fullmatch(name)
        if name in WHOLE:
            total += _number(count)
        elif part:
            total += _number(count) * int(part[1]) / SEVENTHS
    return total


def _number(count: str | int) -> int:
    """A count of devices, which are whole; 0 for what is no number."""
    text = str(count)
    return int(text) if text.isdecimal() else 0


def _seconds(text: str) -> float | None:
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None

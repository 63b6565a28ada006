"""The devices allocated to each pod: the kubelet's pod-resources API, v1 (GA since Kubernetes
1.28).

`/v1.PodResourcesLister/List` over the kubelet's unix socket names every pod of the node, with the
devices of those that hold any. `Get` (for one pod by name) and `GetAllocatableResources` (what
could be allocated) say no more about holders and are not called. Fields: kubernetes/kubelet
pkg/apis/podresources/v1/api.proto; unknown ones are skipped, for newer kubelets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger_agent.owners.grpc_unix import call
from gpuledger_agent.owners.protobuf import Reader, text

LIST = "/v1.PodResourcesLister/List"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device allocated to a container: by the device plugin (`resource`, `id`), or by a claim
    (DRA).

    For a claim `resource` is the driver's name, such as gpu.nvidia.com, and `id` the device's name
    in `pool`, such as gpu-0; `cdi` are its names for the container runtime, and `share` tells apart
    the shares of a device that several claims consume (Kubernetes 1.36; empty: the whole device).
    """

    container: str
    resource: str
    id: str
    cdi: tuple[str, ...] = ()
    claim: str | None = None
    pool: str = ""
    share: str = ""
    claim_namespace: str = ""


@dataclass(frozen=True, slots=True)
class AllocatedPod:
    """A pod with the devices of all its containers; most pods have none."""

    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]


KnownPods = dict[bytes, AllocatedPod]
"""Pods by their bytes: most are in the next list as they were in the last."""


def list_pods(
    socket_path: Path, timeout_s: float = 2.0, known: KnownPods | None = None
) -> tuple[AllocatedPod, ...]:
    """The pods of this node, those in `known` as they were read before; it has the pods of this list
    afterwards.

    Raises CallFailed or BadMessage.
    """
    return read_list(call(socket_path, LIST, timeout_s=timeout_s), known)


def read_list(message: bytes, known: KnownPods | None = None) -> tuple[AllocatedPod, ...]:
    """The pods of a ListPodResourcesResponse; `known` as in `list_pods`. Raises BadMessage."""
    reader, before = Reader(), known or {}
    contents = [content for number, content in reader.parts(message) if number == 1]
    pods = [before.get(content) or _pod(reader, content) for content in contents]
    if known is not None:
        known.clear()
        known.update(zip(contents, pods, strict=True))
    return tuple(pods)


def _pod(reader: Reader, message: bytes) -> AllocatedPod:
    name = namespace = ""
    devices: list[AllocatedDevice] = []
    for number, content in reader.parts(message):
        if number == 1:
            name = text(content)
        elif number == 2:
            namespace = text(content)
        elif number == 3:
            devices += _container(reader, content)
    return AllocatedPod(namespace, name, tuple(devices))


def _container(reader: Reader, message: bytes) -> list[AllocatedDevice]:
    parts = list(reader.parts(message))
    name = _first_text(parts, 1)
    devices: list[AllocatedDevice] = []
    for number, content in parts:
        inner = list(reader.parts(content)) if number in {2, 5} else []
        if number == 2:  # by the device plugin
            resource = _first_text(inner, 1)
            devices += [
                AllocatedDevice(name, resource, text(part)) for field, part in inner if field == 2
            ]
        elif number == 5:  # by a claim
            claim = _first_text(inner, 2), _first_text(inner, 3)
            devices += [
                _claimed_device(reader, part, name, claim) for field, part in inner if field == 4
            ]
    return devices


def _first_text(parts: Sequence[tuple[int, bytes]], wanted: int) -> str:
    return next((text(content) for number, content in parts if number == wanted), "")


def _claimed_device(
    reader: Reader, message: bytes, container: str, claim: tuple[str, str]
) -> AllocatedDevice:
    parts = list(reader.parts(message))
    cdi = [
        text(name)
        for number, content in parts
        if number == 1
        for inner, name in reader.parts(content)
        if inner == 1
    ]
    driver, pool, device, share = (_first_text(parts, number) for number in (2, 3, 4, 5))
    name, namespace = claim
    return AllocatedDevice(container, driver, device, tuple(cdi), name, pool, share, namespace)

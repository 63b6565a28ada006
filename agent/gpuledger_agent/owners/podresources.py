"""The devices allocated to each pod: the kubelet's pod-resources API, v1 (GA since Kubernetes
1.28).

`/v1.PodResourcesLister/List` over the kubelet's unix socket names every pod of the node that holds
devices. `Get` (for one pod by name) and `GetAllocatableResources` (what could be allocated) say no
more about holders and are not called. Fields: kubernetes/kubelet
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
    in `pool`, such as gpu-0; `cdi` are its names for the container runtime.
    """

    container: str
    resource: str
    id: str
    cdi: tuple[str, ...] = ()
    claim: str | None = None
    pool: str = ""


@dataclass(frozen=True, slots=True)
class AllocatedPod:
    """A pod with the devices of all its containers."""

    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]


def list_pods(socket_path: Path, timeout_s: float = 2.0) -> tuple[AllocatedPod, ...]:
    """The pods of this node with allocated devices. Raises CallFailed or BadMessage."""
    return read_list(call(socket_path, LIST, timeout_s=timeout_s))


def read_list(message: bytes) -> tuple[AllocatedPod, ...]:
    """The pods with devices of a ListPodResourcesResponse. Raises BadMessage."""
    reader = Reader()
    pods = (_pod(reader, content) for number, content in reader.parts(message) if number == 1)
    return tuple(pod for pod in pods if pod.devices)


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
            claim = _first_text(inner, 2)
            devices += [
                _claimed_devices(reader, part, name, claim) for field, part in inner if field == 4
            ]
    return devices


def _first_text(parts: Sequence[tuple[int, bytes]], wanted: int) -> str:
    return next((text(content) for number, content in parts if number == wanted), "")


def _claimed_devices(reader: Reader, message: bytes, container: str, claim: str) -> AllocatedDevice:
    driver = pool = device = ""
    cdi: list[str] = []
    for number, content in reader.parts(message):
        if number == 1:
            cdi += [text(name) for inner, name in reader.parts(content) if inner == 1]
        elif number == 2:
            driver = text(content)
        elif number == 3:
            pool = text(content)
        elif number == 4:
            device = text(content)
    return AllocatedDevice(container, driver, device, tuple(cdi), claim, pool)

"""Which pod was given which devices: the kubelet's pod-resources API, v1 (GA since Kubernetes 1.28).

`/v1.PodResourcesLister/List` over the kubelet's unix socket names every pod of the node that holds devices. `Get` asks
for one pod of which the name is known, and `GetAllocatableResources` lists what could be given out: neither tells more
of who holds what, so neither is asked. Fields: kubernetes/kubelet pkg/apis/podresources/v1/api.proto; unknown ones are
skipped, so that newer kubelets are read as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuledger_agent.owners.grpc_unix import call
from gpuledger_agent.owners.protobuf import Reader, text

LIST = "/v1.PodResourcesLister/List"


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device that a container was given: by the device plugin (`resource`, `id`), or by a claim (DRA).

    For a claim `resource` is the driver's name, such as gpu.nvidia.com, and `id` the device's name in its pool,
    such as gpu-0 of `pool`; `cdi` are the names by which the container's runtime knows it.
    """

    container: str
    resource: str
    id: str
    cdi: tuple[str, ...] = ()
    claim: str | None = None
    pool: str = ""


@dataclass(frozen=True, slots=True)
class GivenPod:
    """A pod with the devices of all its containers."""

    namespace: str
    name: str
    devices: tuple[GivenDevice, ...]


def list_pods(socket_path: Path, timeout_s: float = 2.0) -> tuple[GivenPod, ...]:
    """The pods of this node that were given devices. Raises CallFailed or BadMessage."""
    return read_list(call(socket_path, LIST, timeout_s=timeout_s))


def read_list(message: bytes) -> tuple[GivenPod, ...]:
    """The pods with devices of a ListPodResourcesResponse. Raises BadMessage."""
    reader = Reader()
    pods = (_pod(reader, content) for number, content in reader.parts(message) if number == 1)
    return tuple(pod for pod in pods if pod.devices)


def _pod(reader: Reader, message: bytes) -> GivenPod:
    name = namespace = ""
    devices: list[GivenDevice] = []
    for number, content in reader.parts(message):
        if number == 1:
            name = text(content)
        elif number == 2:
            namespace = text(content)
        elif number == 3:
            devices += _container(reader, content)
    return GivenPod(namespace, name, tuple(devices))


def _container(reader: Reader, message: bytes) -> list[GivenDevice]:
    parts = list(reader.parts(message))
    name = next((text(content) for number, content in parts if number == 1), "")
    devices: list[GivenDevice] = []
    for number, content in parts:
        if number == 2:
            devices += _plugin_devices(reader, content, name)
        elif number == 5:
            devices += _claimed_devices(reader, content, name)
    return devices


def _plugin_devices(reader: Reader, message: bytes, container: str) -> list[GivenDevice]:
    parts = list(reader.parts(message))
    resource = next((text(content) for number, content in parts if number == 1), "")
    return [GivenDevice(container, resource, text(content)) for number, content in parts if number == 2]


def _claimed_devices(reader: Reader, message: bytes, container: str) -> list[GivenDevice]:
    parts = list(reader.parts(message))
    claim = next((text(content) for number, content in parts if number == 2), "")
    return [_claimed(reader, content, container, claim) for number, content in parts if number == 4]


def _claimed(reader: Reader, message: bytes, container: str, claim: str) -> GivenDevice:
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
    return GivenDevice(container, driver, device, tuple(cdi), claim, pool)

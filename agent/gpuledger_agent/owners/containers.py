"""Owners from docker and podman: the containers that accelerators are assigned to, with names,
images and labels.

Both engines answer `GET /containers/json` and `GET /containers/ID/json` over a unix socket. The
devices of a container are in HostConfig.DeviceRequests (`--gpus`, CDI), in device files (`--device
/dev/nvidia0`), in podman's command (CDI), and in NVIDIA_VISIBLE_DEVICES for one that runs under
NVIDIA's runtime. That variable alone means nothing: CUDA's base images set it to `all`, and without
that runtime it has no effect.

A running container holds its devices even without a process on them. Engines reserve nothing:
containers with the same device share it in equal parts. A monitor that needs every GPU (this agent,
dcgm-exporter) holds nothing when it has the label `gpuledger.hold=false`; pods are reported by the
kubelet instead.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuledger_agent.owners.labels import tags_of
from gpuledger_agent.owners.polling import PolledValue
from gpuledger_common.http_exchange import AnswerTooLarge, BoundedConnection
from gpuledger_common.readings import Accelerator, AgentError, Holder, Holders, Sample, Workload

T = TypeVar("T")

HOLD_LABEL = "gpuledger.hold"
MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_CONTAINERS = 1024
ID_DIGITS = 12
"""Length of the short ids that people and ProcessOwners use."""
_SHORT_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}[0-9a-fA-F-]*$")
_DEVICE_FILE = re.compile(r"/dev/nvidia(\d+)$")
_PODMAN = "oci"
"""Name of every runtime in podman's answers."""
_NO_DEVICE = frozenset({"", "none", "void"})


class EngineFailed(AgentError):
    """The container engine gave no usable answer; the message says why."""


class EngineSilent(EngineFailed):
    """The engine cannot be reached or does not answer in time."""


@dataclass(frozen=True, slots=True)
class Container:
    """A running container.

    `devices` are names such as `all`, indices, UUIDs, `0:1` for a MIG instance.
    """

    id: str
    name: str
    image: str
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    @property
    def is_holder(self) -> bool:
        """Whether it holds its devices: monitors do not, and pods are reported by the kubelet."""
        return (
            self.labels.get(HOLD_LABEL, "").lower() != "false"
            and "io.kubernetes.pod.uid" not in self.labels
        )


class _Listed(msgspec.Struct):
    id: str = msgspec.field(name="Id")


class _Request(msgspec.Struct, rename="pascal"):
    driver: str = ""
    count: int = 0
    device_ids: list[str] | None = msgspec.field(default=None, name="DeviceIDs")
    capabilities: list[list[str]] | None = None


class _DeviceFile(msgspec.Struct, rename="pascal"):
    path_on_host: str = ""


class _Host(msgspec.Struct, rename="pascal"):
    runtime: str = ""
    devices: list[_DeviceFile] | None = None
    device_requests: list[_Request] | None = None


class _Config(msgspec.Struct, rename="pascal"):
    image: str = ""
    env: list[str] | None = None
    labels: dict[str, str] | None = None


class _LibpodConfig(msgspec.Struct, rename="pascal"):
    create_command: list[str] | None = None


class _Libpod(msgspec.Struct, rename="pascal"):
    config: _LibpodConfig = msgspec.field(default_factory=_LibpodConfig)


class _Inspected(msgspec.Struct, rename="pascal"):
    id: str
    name: str = ""
    host_config: _Host = msgspec.field(default_factory=_Host)
    config: _Config = msgspec.field(default_factory=_Config)


class Engine:
    """Asks one engine.

    The devices of a running container never change, so each is inspected once.
    """

    def __init__(self, path: Path, timeout_s: float = 2.0) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._known: dict[str, Container] = {}

    def look(self) -> Mapping[str, Container]:
        """The running containers by the first digits of their ids. Raises EngineFailed."""
        body = self._get("/containers/json")
        if body is None:
            raise EngineFailed(f"{self._path}: does not know /containers/json")
        listed = [entry.id for entry in _decode(self._path, body, list[_Listed])][:MAX_CONTAINERS]
        # Containers that have ended are forgotten; new ones are inspected below.
        self._known = {
            identity: self._known[identity] for identity in listed if identity in self._known
        }
        failure: EngineFailed | None = None
        for identity in listed:
            if identity not in self._known:
                try:
                    self._inspect(identity)
                except EngineSilent:
                    raise
                except EngineFailed as error:  # the other containers can still be inspected
                    failure = error
        if failure is not None and not self._known:
            raise failure
        return {identity[:ID_DIGITS]: container for identity, container in self._known.items()}

    def _inspect(self, identity: str) -> None:
        inspected = self._get(f"/containers/{identity}/json")
        if inspected is None:
            return  # it ended between the two requests
        details = _decode(self._path, inspected, _Inspected)
        container = _container(details)
        # Podman's Docker-compatible answer lacks CDI devices; its own API has the command that
        # created the container.
        if not container.devices and details.host_config.runtime == _PODMAN:
            libpod = self._get(f"/v4.0.0/libpod/containers/{identity}/json")
            command = (
                _decode(self._path, libpod, _Libpod).config.create_command
                if libpod is not None
                else None
            )
            container = replace(container, devices=tuple(devices_of_command(command or ())))
        self._known[identity] = container

    def _get(self, target: str) -> bytes | None:
        connection = BoundedConnection(
            "http://localhost",
            timeout_s=self._timeout_s,
            max_bytes=MAX_ANSWER_BYTES,
            unix_path=self._path,
        )
        try:
            answer = connection.exchange("GET", target, headers={"Accept": "application/json"})
        except AnswerTooLarge as error:
            raise EngineFailed(f"{self._path}: {target}: {error}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineSilent(
                f"{self._path}: {getattr(error, 'strerror', None) or error!r}"
            ) from error
        finally:
            connection.close()
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise EngineFailed(f"{self._path}: HTTP status {answer.status} for {target}")
        return answer.body


class ContainerOwners:
    """The containers by accelerator, from a polled view."""

    name = "containers"

    def __init__(self, containers: PolledValue[Mapping[str, Container]]) -> None:
        self._containers = containers

    def holders(self, accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The running containers of each accelerator, at equal weights.

        Raises NoRecentAnswer if unknown.
        """
        holders: dict[str, list[Holder]] = {}
        for container in self._containers.latest().values():
            if container.is_holder:
                for uuid in {
                    uuid for name in container.devices for uuid in resolve(name, accelerators)
                }:
                    holders.setdefault(uuid, []).append(Holder(workload_of(container)))
        return holders

    def describe(self, workload: Workload) -> Workload:
        """A container known by its processes, with the name and labels that the engine has for it."""
        container = (
            (self._containers.value() or {}).get(workload.id)
            if workload.kind == "container"
            else None
        )
        if container is None:
            return workload
        described = workload_of(container)
        return replace(workload, name=described.name, tags={**workload.tags, **described.tags})


def workload_of(container: Container) -> Workload:
    """The container as a workload, with the same id as ProcessOwners give it."""
    tags = {**tags_of(container.labels), "container": container.name, "image": container.image}
    return Workload(container.id[:ID_DIGITS], "container", None, None, container.name or None, tags)


def resolve(name: str, accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    """The accelerators that NVIDIA's container runtime assigns for a name; none for an unknown
    name.

    `all`; an index; `0:1`, the second MIG instance of the first device; a UUID or its beginning;
    each of these behind `nvidia.com/gpu=` of CDI.
    """
    name = name.rpartition("=")[2].strip()
    if name == "all":
        return tuple(entry.uuid for entry in accelerators)
    device, _, instance = name.partition(":")
    if device.isdecimal() and (instance.isdecimal() or not instance):
        uuids = tuple(entry.uuid for entry in accelerators if entry.index == int(device))
        return uuids[int(instance) : int(instance) + 1] if instance else uuids
    if not _SHORT_UUID.match(name):
        return ()
    exact = tuple(entry.uuid for entry in accelerators if entry.uuid.startswith(name))
    return exact or tuple(
        entry.uuid for entry in accelerators if entry.device_uuid.startswith(name)
    )


def _container(details: _Inspected) -> Container:
    name, devices = details.name.removeprefix("/"), tuple(dict.fromkeys(_devices(details)))
    return Container(details.id, name, details.config.image, details.config.labels or {}, devices)


def _devices(details: _Inspected) -> Iterator[str]:
    for request in details.host_config.device_requests or ():
        kinds = {kind for group in request.capabilities or () for kind in group}
        if request.driver in {"nvidia", "cdi"} or "gpu" in kinds or "nvidia" in kinds:
            yield from _requested_devices(request)
    yield from device_file_numbers(file.path_on_host for file in details.host_config.devices or ())
    # Only NVIDIA's runtime reads the variable.
    if details.host_config.runtime.startswith("nvidia"):
        yield from visible_devices(details.config.env or ())


def device_file_numbers(paths: Iterable[str]) -> Iterator[str]:
    """The numbers of GPUs in device files such as /dev/nvidia0."""
    return (match[1] for match in map(_DEVICE_FILE.match, paths) if match)


def visible_devices(environment: Iterable[str]) -> Iterator[str]:
    """The devices in NVIDIA_VISIBLE_DEVICES of a container's environment (NAME=VALUE)."""
    variables = dict(entry.partition("=")[::2] for entry in environment)
    return (
        name
        for name in variables.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
        if name not in _NO_DEVICE
    )


def devices_of_command(words: Sequence[str]) -> Iterator[str]:
    """The devices in a podman command: `--device nvidia.com/gpu=0` (CDI), `--gpus all`.

    Podman turns a CDI name into device files and forgets it; the command that created the container
    still has it.
    """
    for word, following in zip(words, [*words[1:], ""], strict=False):
        option, equals, attached = word.partition("=")
        value = attached if equals else following
        if (option == "--device" and value.startswith("nvidia.com/gpu=")) or (
            option == "--gpus" and value
        ):
            yield from value.removeprefix("device=").split(",")


def _requested_devices(request: _Request) -> Sequence[str]:
    """The devices of a request; the engine turns a count into the first ones, -1 into all (moby,
    nvidia_linux.go).
    """
    if request.device_ids:
        return request.device_ids
    return (
        ["all"]
        if request.count < 0
        else [str(index) for index in range(min(request.count, MAX_CONTAINERS))]
    )


def _decode(path: Path, body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineFailed(f"{path}: the answer cannot be read: {error}") from error

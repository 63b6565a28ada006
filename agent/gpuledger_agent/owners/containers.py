"""Owners from docker and podman: the containers that were given accelerators, with their names, images and labels.

Both engines answer `GET /containers/json` and `GET /containers/ID/json` over a unix socket. What a container was given
is stated in HostConfig.DeviceRequests (`--gpus`, CDI), as device files (`--device /dev/nvidia0`), in podman's command
(CDI), and in NVIDIA_VISIBLE_DEVICES for one that runs under NVIDIA's runtime. That variable alone says nothing: CUDA's
base images set it to `all`, and without that runtime it gives nothing.

A running container holds what it was given even with no process there. Engines reserve nothing: containers that were
given the same device share it in equal parts. A monitor that is given every GPU to look at them (this agent,
dcgm-exporter) holds nothing when it has the label `gpuledger.hold=false`; pods are the kubelet's to tell.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuledger_agent.owners.http_bounded import read_body
from gpuledger_agent.owners.labels import tags_of
from gpuledger_agent.owners.refreshed import Refreshed
from gpuledger_common.readings import Accelerator, AgentError, Holder, Sample, Workload

T = TypeVar("T")

HOLD_LABEL = "gpuledger.hold"
MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_CONTAINERS = 1024
ID_DIGITS = 12
"""Digits of an id that people and our process holders use."""
_SHORT_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}[0-9a-fA-F-]*$")
_DEVICE_FILE = re.compile(r"/dev/nvidia(\d+)$")
_PODMAN = "oci"
"""What podman's answers call every runtime."""
_NOTHING = frozenset({"", "none", "void"})


class EngineFailed(AgentError):
    """The container engine gave no answer that can be used; the sentence says why."""


class EngineSilent(EngineFailed):
    """The engine cannot be reached, or does not answer in time."""


@dataclass(frozen=True, slots=True)
class Container:
    """A running container. `given`: names of devices (`all`, indices, UUIDs, `0:1` for a MIG instance)."""

    id: str
    name: str
    image: str
    labels: Mapping[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether what it was given is its own to hold."""
        return self.labels.get(HOLD_LABEL, "").lower() != "false" and "io.kubernetes.pod.uid" not in self.labels


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


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connects to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Engine:
    """Asks one engine. What a container was given never changes while it runs, so it is inspected once."""

    def __init__(self, path: Path, timeout_s: float = 2.0) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._known: dict[str, Container] = {}

    def look(self) -> Mapping[str, Container]:
        """The running containers by the first digits of their ids. Raises EngineFailed."""
        body = self._get("/containers/json")
        if body is None:
            raise EngineFailed(f"{self._path}: does not know /containers/json")
        listed = [one.id for one in _decode(self._path, body, list[_Listed])][:MAX_CONTAINERS]
        self._known = {identity: self._known[identity] for identity in listed if identity in self._known}
        failure: EngineFailed | None = None
        for identity in listed:
            if identity not in self._known:
                try:
                    self._inspect(identity)
                except EngineSilent:
                    raise
                except EngineFailed as error:  # the others are known all the same
                    failure = error
        if failure is not None and not self._known:
            raise failure
        return {identity[:ID_DIGITS]: container for identity, container in self._known.items()}

    def _inspect(self, identity: str) -> None:
        inspected = self._get(f"/containers/{identity}/json")
        if inspected is None:
            return  # it ended between the two questions
        container = _container(seen := _decode(self._path, inspected, _Inspected))
        if not container.given and seen.host_config.runtime == _PODMAN:
            told = self._get(f"/v4.0.0/libpod/containers/{identity}/json")
            command = _decode(self._path, told, _Libpod).config.create_command if told is not None else None
            container = replace(container, given=tuple(given_by_command(command or ())))
        self._known[identity] = container

    def _get(self, target: str) -> bytes | None:
        line = _UnixConnection(self._path, self._timeout_s)
        try:
            line.request("GET", target, headers={"Accept": "application/json"})
            answer = line.getresponse()
            body = read_body(answer, MAX_ANSWER_BYTES, time.monotonic() + self._timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise EngineSilent(f"{self._path}: {getattr(error, 'strerror', None) or error!r}") from error
        finally:
            line.close()
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise EngineFailed(f"{self._path}: HTTP status {answer.status} for {target}")
        if len(body) > MAX_ANSWER_BYTES:
            raise EngineFailed(f"{self._path}: the answer to {target} is larger than {MAX_ANSWER_BYTES} bytes")
        return body


class ContainerOwners:
    """The containers by accelerator, from a view that is kept fresh."""

    name = "containers"

    def __init__(self, containers: Refreshed[Mapping[str, Container]]) -> None:
        self._containers = containers

    def holders(
        self,
        accelerators: Sequence[Accelerator],
        samples: Sequence[Sample],  # noqa: ARG002
    ) -> Mapping[str, Sequence[Holder]]:
        """The running containers that were given each accelerator, equally. Raises Silent while it is not known."""
        found: dict[str, list[Holder]] = {}
        for container in self._containers.known().values():
            if container.holds:
                uuids = {uuid for name in container.given for uuid in resolve(name, accelerators)}
                for uuid in uuids:
                    found.setdefault(uuid, []).append(Holder(workload_of(container)))
        return found

    def describe(self, workload: Workload) -> Workload:
        """A container that was found by its processes, with the name and labels that the engine knows of it."""
        container = (self._containers.value() or {}).get(workload.id) if workload.kind == "container" else None
        if container is None:
            return workload
        told = workload_of(container)
        return replace(workload, name=told.name, tags={**workload.tags, **told.tags})


def workload_of(container: Container) -> Workload:
    """The container as a workload, with the same id as one that was found by its processes."""
    tags = {**tags_of(container.labels), "container": container.name, "image": container.image}
    return Workload(container.id[:ID_DIGITS], "container", None, None, container.name or None, tags)


def resolve(name: str, accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    """The accelerators that NVIDIA's container runtime takes a name for; none for a name that it does not know.

    `all`; an index; `0:1`, the second MIG instance of the first device; a UUID or the beginning of one; the same behind
    `nvidia.com/gpu=` of CDI.
    """
    name = name.rpartition("=")[2].strip()
    if name == "all":
        return tuple(one.uuid for one in accelerators)
    device, _, instance = name.partition(":")
    if device.isdecimal() and (instance.isdecimal() or not instance):
        there = tuple(one.uuid for one in accelerators if one.index == int(device))
        return there[int(instance) : int(instance) + 1] if instance else there
    if not _SHORT_UUID.match(name):
        return ()
    same = tuple(one.uuid for one in accelerators if one.uuid.startswith(name))
    return same or tuple(one.uuid for one in accelerators if one.device_uuid.startswith(name))


def _container(seen: _Inspected) -> Container:
    name = seen.name.removeprefix("/")
    return Container(seen.id, name, seen.config.image, seen.config.labels or {}, tuple(dict.fromkeys(_given(seen))))


def _given(seen: _Inspected) -> Iterator[str]:
    for request in seen.host_config.device_requests or ():
        kinds = {kind for group in request.capabilities or () for kind in group}
        if request.driver in {"nvidia", "cdi"} or "gpu" in kinds or "nvidia" in kinds:
            yield from _requested(request)
    for file in seen.host_config.devices or ():
        number = _DEVICE_FILE.match(file.path_on_host)
        if number:
            yield number[1]
    if seen.host_config.runtime.startswith("nvidia"):
        variables = dict(entry.partition("=")[::2] for entry in seen.config.env or ())
        for name in variables.get("NVIDIA_VISIBLE_DEVICES", "").split(","):
            if name not in _NOTHING:
                yield name


def given_by_command(words: Sequence[str]) -> Iterator[str]:
    """Devices that a podman command names: `--device nvidia.com/gpu=0` (CDI), `--gpus all`.

    Podman turns a CDI name into device files and forgets it; the command that made the container still has it.
    """
    for word, following in zip(words, [*words[1:], ""], strict=False):
        option, equals, attached = word.partition("=")
        value = attached if equals else following
        if (option == "--device" and value.startswith("nvidia.com/gpu=")) or (option == "--gpus" and value):
            yield from value.removeprefix("device=").split(",")


def _requested(request: _Request) -> Sequence[str]:
    """The engine turns a count into the first so many devices (moby, daemon/nvidia_linux.go), -1 into all."""
    if request.device_ids:
        return request.device_ids
    return ["all"] if request.count < 0 else [str(index) for index in range(min(request.count, MAX_CONTAINERS))]


def _decode(path: Path, body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineFailed(f"{path}: answers what cannot be read: {error}") from error

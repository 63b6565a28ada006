"""The containers of a containerd without docker (nerdctl, ctr), by containerd's own gRPC services.

`Tasks/List` names the running containers of a namespace; `Containers/Get` returns image, labels and
the OCI specification (github.com/containerd/containerd api/services). The devices are in the
specification: the hook of `--gpus`, device files (CDI), and NVIDIA_VISIBLE_DEVICES under NVIDIA's
runtime. A privileged container has the files of every device, which assigns none to it. The
namespace k8s.io is reported by the kubelet instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from gpuledger_agent.owners.containers import (
    ID_DIGITS,
    MAX_CONTAINERS,
    Container,
    device_file_numbers,
    visible_devices,
)
from gpuledger_agent.owners.grpc_unix import call
from gpuledger_agent.owners.protobuf import BadMessage, Reader, text

_SERVICES = "/containerd.services"
_KUBERNETES = "k8s.io"
_HOLDING = frozenset({2, 4, 5})
"""States of a task that runs, is paused, or is being paused."""
_EVERY_DEVICE = frozenset({"/dev/mem", "/dev/kmsg"})
"""Device files that only a privileged container has."""


class _Process(msgspec.Struct):
    env: list[str] | None = None


class _Hook(msgspec.Struct):
    args: list[str] | None = None


class _Hooks(msgspec.Struct):
    prestart: list[_Hook] | None = None
    created: list[_Hook] | None = msgspec.field(default=None, name="createRuntime")


class _Device(msgspec.Struct):
    path: str = ""


class _Linux(msgspec.Struct):
    devices: list[_Device] | None = None


class _Specification(msgspec.Struct):
    process: _Process = msgspec.field(default_factory=_Process)
    hooks: _Hooks = msgspec.field(default_factory=_Hooks)
    linux: _Linux = msgspec.field(default_factory=_Linux)


class Containerd:
    """Asks one containerd. The devices of a container never change, so each is inspected once."""

    def __init__(self, path: Path, timeout_s: float = 2.0) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._known: dict[tuple[str, str], Container] = {}

    def look(self) -> Mapping[str, Container]:
        """The running containers by the first digits of their ids.

        Raises CallFailed or BadMessage.
        """
        running = [
            (namespace, identity)
            for namespace in self._namespaces()
            if namespace != _KUBERNETES
            for identity in self._running(namespace)
        ][:MAX_CONTAINERS]
        # Containers that have ended are forgotten; new ones are inspected below.
        self._known = {key: self._known[key] for key in running if key in self._known}
        for key in running:
            if key not in self._known:
                self._known[key] = self._get(*key)
        return {identity[:ID_DIGITS]: container for (_, identity), container in self._known.items()}

    def _namespaces(self) -> list[str]:
        reader = Reader()
        answer = self._call("namespaces.v1.Namespaces/List")
        return [
            _field(reader, content, 1) for number, content in reader.parts(answer) if number == 1
        ]

    def _running(self, namespace: str) -> Iterator[str]:
        reader = Reader()
        for number, content in reader.parts(self._call("tasks.v1.Tasks/List", namespace=namespace)):
            fields = dict(reader.fields(content)) if number == 1 else {}
            identity = fields.get(2)
            if isinstance(identity, bytes) and fields.get(4) in _HOLDING:
                yield text(identity)

    def _get(self, namespace: str, identity: str) -> Container:
        name = identity.encode()
        # 0x0A: field 1 (the id) with its length; below 128 the length is a single byte.
        # Longer ids are not allowed.
        request = b"\x0a" + bytes([len(name)]) + name if len(name) < 128 else b""
        reader = Reader()
        answer = self._call("containers.v1.Containers/Get", request, namespace)
        container = next((content for number, content in reader.parts(answer) if number == 1), b"")
        fields: dict[int, bytes] = {}
        labels: dict[str, str] = {}
        for number, content in reader.parts(container):
            if number == 2:
                labels[_field(reader, content, 1)] = _field(reader, content, 2)
            else:
                fields[number] = content
        specification = next(
            (part for number, part in reader.parts(fields.get(5, b"")) if number == 2), b"{}"
        )
        devices = tuple(
            dict.fromkeys(specified_devices(specification, b"nvidia" in fields.get(4, b"")))
        )
        return Container(
            identity,
            labels.get("nerdctl/name", identity),
            text(fields.get(3, b"")),
            labels,
            devices,
        )

    def _call(self, method: str, request: bytes = b"", namespace: str | None = None) -> bytes:
        # containerd takes the namespace of a call from its metadata.
        metadata = {} if namespace is None else {"containerd-namespace": namespace}
        return call(
            self._path,
            f"{_SERVICES}.{method}",
            request,
            timeout_s=self._timeout_s,
            metadata=metadata,
        )


def specified_devices(content: bytes, nvidia_runtime: bool) -> Iterator[str]:
    """Names of the devices in an OCI specification (JSON). Raises BadMessage."""
    try:
        specification = msgspec.json.decode(content, type=_Specification)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadMessage(f"an OCI specification cannot be read: {error}") from error
    for hook in (*(specification.hooks.prestart or ()), *(specification.hooks.created or ())):
        words = hook.args or []
        # `--gpus` adds a hook that calls NVIDIA's program with the devices.
        if any(word.endswith("nvidia-container-cli") for word in words):
            for word in words:
                if word.startswith("--device="):
                    yield from word.removeprefix("--device=").split(",")
    paths = [device.path for device in specification.linux.devices or ()]
    # A privileged container has every device file of the machine, which says nothing about use.
    if not _EVERY_DEVICE.intersection(paths):
        yield from device_file_numbers(paths)
    if nvidia_runtime:
        yield from visible_devices(specification.process.env or ())


def _field(reader: Reader, message: bytes, wanted: int) -> str:
    return text(
        next((content for number, content in reader.parts(message) if number == wanted), b"")
    )

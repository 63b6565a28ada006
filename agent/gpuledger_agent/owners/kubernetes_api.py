"""Facts on a node's pods that pod-resources does not have, from the API server: UID, phase, labels,
annotations, the controller; labels of namespaces; claims.

`GET /api/v1/pods?fieldSelector=spec.nodeName=NODE` with a service account's token. Needs `list` on
pods, on namespaces for their labels, and, where devices are allocated by claims, `list` on
resourceslices and `get` on resourceclaims; `get` on nodes for the labels of its own.

Annotations may be 256 KiB long, so only the ones named here are decoded, and each only up to a
bound.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec

from gpuledger_agent.owners.node_labels import machine_of
from gpuledger_agent.owners.pod_jobs import Controller
from gpuledger_common.kubernetes_client import Item, KubernetesClient, NoSuchResource
from gpuledger_common.readings import Machine

NAMESPACE_PAGE = 500
"""Namespaces have no specification worth mentioning: as many take as much as a page of pods."""
MAX_ANNOTATION_CHARACTERS = 16_384
"""A longer one is left out: a part of a list of cards would name other shares than the whole."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod as the API server has it.

    `ended`: its phase is Succeeded or Failed, so it no longer holds anything.
    """

    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those that are read (`ANNOTATIONS`) and not too long."""
    controller: Controller | None = None
    scheduler: str = ""
    """Which scheduler binds it; empty: not known."""


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """A namespace as the API server has it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """As of a pod."""


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device, or a share of one, as the status of a claim (DRA) has it.

    `is_admin`: access to observe it, which does not allocate it. `consumed`: how much of the
    device's capacities, by name; empty for a whole device.
    """

    is_admin: bool = False
    consumed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device of a resource slice: its UUID where the driver published one, and its capacities."""

    uuid: str | None = None
    capacities: Mapping[str, str] = field(default_factory=dict)


DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device that a DRA driver offers."""
ShareKey = tuple[str, str, str, str]
"""The same with the id of a share, which is empty for a whole device."""


class _Annotations(
    msgspec.Struct,
    rename={
        "allowed_orgs": "gpuledger.allowed-orgs",
        "allowed_projects": "gpuledger.allowed-projects",
        "allowed_teams": "gpuledger.allowed-teams",
        "dag": "dag_id",
        "dag_run": "run_id",
        "dag_task": "task_id",
        "gpu_fraction": "gpu-fraction",
        "gpu_fraction_container_name": "gpu-fraction-container-name",
        "gpu_memory": "gpu-memory",
        "hami_devices": "hami.io/vgpu-devices-allocated",
        "jupyter_user": "hub.jupyter.org/username",
        "profile_owner": "owner",
        "slurm_account": "slurmjob.slinky.slurm.net/account",
        "slurm_allowed_accounts": "gpuledger.allowed-accounts",
        "slurm_partition": "slurmjob.slinky.slurm.net/partition",
        "slurm_wckey": "slurmjob.slinky.slurm.net/wckey",
        "volcano_devices": "volcano.sh/vgpu-ids-new",
        "volcano_queue": "scheduling.volcano.sh/queue-name",
    },
):
    """The annotations of pods and namespaces that are read; no other one is decoded."""

    allowed_orgs: str | None = None
    allowed_projects: str | None = None
    allowed_teams: str | None = None
    dag: str | None = None
    dag_run: str | None = None
    dag_task: str | None = None
    gpu_fraction: str | None = None
    gpu_fraction_container_name: str | None = None
    gpu_memory: str | None = None
    hami_devices: str | None = None
    jupyter_user: str | None = None
    profile_owner: str | None = None
    slurm_account: str | None = None
    slurm_allowed_accounts: str | None = None
    slurm_partition: str | None = None
    slurm_wckey: str | None = None
    volcano_devices: str | None = None
    volcano_queue: str | None = None


ANNOTATIONS = {entry.name: entry.encode_name for entry in msgspec.structs.fields(_Annotations)}
"""Names of the annotations that are read, by field."""


class _Owner(msgspec.Struct):
    api_version: str = msgspec.field(default="", name="apiVersion")
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: _Annotations | None = None
    owners: list[_Owner] | None = msgspec.field(default=None, name="ownerReferences")


class _Status(msgspec.Struct):
    phase: str = ""


class _Attribute(msgspec.Struct):
    text: str | None = msgspec.field(default=None, name="string")


class _Capacity(msgspec.Struct):
    value: str | int = ""


class _Attributes(msgspec.Struct):
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Capacity] | None = None


class _Device(msgspec.Struct):
    name: str = ""
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Capacity] | None = None
    basic: _Attributes | None = None

    @property
    def uuid(self) -> str | None:
        """The driver's attribute `uuid`; the v1beta1 API has the attributes one level down."""
        attributes = (
            self.attributes or (self.basic.attributes if self.basic is not None else None) or {}
        )
        return next(
            (value.text for name, value in attributes.items() if name.rpartition("/")[2] == "uuid"),
            None,
        )

    @property
    def capacities(self) -> dict[str, str]:
        """What the device has of each capacity, as a quantity."""
        capacity = self.capacity or (self.basic.capacity if self.basic is not None else None) or {}
        return {name: str(entry.value) for name, entry in capacity.items()}


class _Pool(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct):
    driver: str = ""
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[_Device] | None = None
    provider_id: str = msgspec.field(default="", name="providerID")
    scheduler: str = msgspec.field(default="", name="schedulerName")


class _Result(msgspec.Struct):
    driver: str = ""
    pool: str = ""
    device: str = ""
    share: str | None = msgspec.field(default=None, name="shareID")
    admin: bool | None = msgspec.field(default=None, name="adminAccess")
    consumed: dict[str, str | int] | None = msgspec.field(default=None, name="consumedCapacity")


class _Devices(msgspec.Struct):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _ClaimStatus(msgspec.Struct):
    allocation: _Allocation | None = None


class _Claim(msgspec.Struct):
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)


class _Item(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class ApiServer(KubernetesClient):
    """Asks for what an agent needs; `account` is a folder with `token` and `ca.crt`."""

    def __init__(self, url: str, account: Path, timeout_s: float = 2.0) -> None:
        super().__init__(url, account / "token", account / "ca.crt", timeout_s)

    def pods(self, node: str) -> dict[tuple[str, str], PodFacts]:
        """Facts by (namespace, name) of the pods bound to a node. Raises ApiFailed."""
        return self._pods("/api/v1/pods", f"spec.nodeName={node}")

    def pod(self, node: str, namespace: str, name: str) -> dict[tuple[str, str], PodFacts]:
        """The same of one pod; none where there is no such pod on the node. Raises ApiFailed.

        It is a list of one, for which the right to list is enough.
        """
        path = f"/api/v1/namespaces/{quote(namespace)}/pods"
        return self._pods(path, f"metadata.name={name},spec.nodeName={node}")

    def _pods(self, path: str, selector: str) -> dict[tuple[str, str], PodFacts]:
        return {
            (item.metadata.namespace, item.metadata.name): PodFacts(
                item.metadata.uid,
                item.metadata.labels or {},
                item.status.phase in {"Succeeded", "Failed"},
                _annotations(item.metadata),
                _controller(item.metadata),
                item.spec.scheduler,
            )
            for item in self._list(path, {"fieldSelector": selector}, _Item)
        }

    def namespaces(self, wanted: Container[str]) -> dict[str, NamespaceFacts]:
        """Facts by namespace, of these. Raises ApiFailed."""
        return self._namespaces({}, wanted)

    def namespace(self, name: str) -> dict[str, NamespaceFacts]:
        """The same of one namespace; none where there is no such. Raises ApiFailed."""
        return self._namespaces({"fieldSelector": f"metadata.name={name}"}, {name})

    def _namespaces(
        self, query: Mapping[str, str], wanted: Container[str]
    ) -> dict[str, NamespaceFacts]:
        return {
            item.metadata.name: NamespaceFacts(
                item.metadata.labels or {}, _annotations(item.metadata)
            )
            for item in self._list("/api/v1/namespaces", query, _Item, NAMESPACE_PAGE)
            if item.metadata.name in wanted
        }

    def pending(self, kind: type[Item]) -> list[Item]:
        """Every pending pod of the cluster, with the fields that `kind` reads. Raises ApiFailed."""
        return list(self._list("/api/v1/pods", {"fieldSelector": "status.phase=Pending"}, kind))

    def devices(self, node: str) -> dict[DeviceKey, OfferedDevice]:
        """The devices that DRA drivers offer on a node. Raises ApiFailed."""
        selector = {"fieldSelector": f"spec.nodeName={node}"}
        try:
            items = list(self._list("/apis/resource.k8s.io/v1/resourceslices", selector, _Item))
        except NoSuchResource:
            items = list(
                self._list("/apis/resource.k8s.io/v1beta1/resourceslices", selector, _Item)
            )
        return {
            (item.spec.driver, item.spec.pool.name, device.name): OfferedDevice(
                device.uuid, device.capacities
            )
            for item in items
            for device in item.spec.devices or ()
        }

    def node(self, name: str) -> Machine:
        """What a node is to its cloud. Raises ApiFailed."""
        until = time.monotonic() + self._timeout_s
        item = self._get(f"/api/v1/nodes/{quote(name)}", until, _Item)
        return machine_of(item.metadata.labels or {}, item.spec.provider_id)

    def claim(self, namespace: str, name: str) -> dict[ShareKey, ClaimedDevice]:
        """The devices that a claim got; none while it is not allocated. Raises ApiFailed."""
        group = "/apis/resource.k8s.io"
        own = f"namespaces/{quote(namespace)}/resourceclaims/{quote(name)}"
        until = time.monotonic() + self._timeout_s
        try:
            claim = self._get(f"{group}/v1/{own}", until, _Claim)
        except NoSuchResource:
            claim = self._get(f"{group}/v1beta1/{own}", until, _Claim)
        allocation = claim.status.allocation or _Allocation()
        return {
            (entry.driver, entry.pool, entry.device, entry.share or ""): ClaimedDevice(
                bool(entry.admin),
                {key: str(value) for key, value in (entry.consumed or {}).items()},
            )
            for entry in allocation.devices.results or ()
        }


def _annotations(metadata: _Metadata) -> dict[str, str]:
    if metadata.annotations is None:
        return {}
    return {
        name: value
        for field_name, name in ANNOTATIONS.items()
        if (value := getattr(metadata.annotations, field_name)) is not None
        and len(value) <= MAX_ANNOTATION_CHARACTERS
    }


def _controller(metadata: _Metadata) -> Controller | None:
    owner = next((owner for owner in metadata.owners or () if owner.controller), None)
    if owner is None:
        return None
    group = owner.api_version.rpartition("/")[0]  # `v1` alone: the core group
    return Controller(owner.kind, owner.name, owner.uid, group)

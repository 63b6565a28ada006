"""Owners from Kubernetes: the pods that the kubelet allocated an accelerator to, whether they use
it or not.

A device plugin may allocate one device to several pods: time-slicing and MPS replicas are called
`UUID::n`. Each replica is one weight, so that four pods with a quarter each make exactly one GPU,
and a pod with two replicas counts twice. Where only two of four replicas are allocated, these two
share the *entire* device: nobody else holds it, and the parts of a held device always add up to it.

The kubelet knows names only. UID, labels and phase come from the API server where it may be asked;
labels of the namespace are defaults for those of its pods, so that `team` on a namespace is enough.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from gpuledger_agent.owners.kubernetes_api import ApiFailed, ApiServer, PodFacts
from gpuledger_agent.owners.labels import tags_of
from gpuledger_agent.owners.podresources import AllocatedDevice, AllocatedPod
from gpuledger_agent.owners.polling import PolledValue
from gpuledger_common.readings import Accelerator, Holder, Holders, Sample, Workload

log = logging.getLogger("gpuledger_agent")

_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)$")
"""Names of MIG devices in drivers before R470: UUID of the GPU, GPU instance, compute instance."""
_GKE = re.compile(r"nvidia(\d+)(?:/gi(\d+))?$")
"""Google's device plugin: number of the device, and its GPU instance."""
_CLAIMED = re.compile(r"gpu-(\d+)(?:-mig-([a-z0-9-]+))?$")
"""NVIDIA's DRA driver: minor number of the device, and for MIG the profile (1g18gb) with profile id
and placement.
"""
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{36}")
_REPLICA = re.compile(r"(?:::\d+|/vgpu\d+)$")
API_INTERVAL_S = 30.0
MAX_LOGGED = 1000
"""Unknown devices named in the log."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The pods of this node, and what is known of them, at one instant."""

    pods: Sequence[AllocatedPod] = ()
    facts: Mapping[tuple[str, str], PodFacts] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    device_uuids: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """UUIDs of the devices that claims (DRA) allocate, by driver, pool and device."""


class ClusterView:
    """Asks the kubelet each time, and the API server when a pod is new or its cached answers are
    old.
    """

    def __init__(
        self,
        pods: Callable[[], Sequence[AllocatedPod]],
        api: ApiServer | None,
        node: str,
        pod_logs: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods, self._api, self._node, self._pod_logs, self._clock = (
            pods,
            api,
            node,
            pod_logs,
            clock,
        )
        self._facts: Mapping[tuple[str, str], PodFacts] = {}
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._device_uuids: Mapping[tuple[str, str, str], str] = {}
        self._listed: frozenset[tuple[str, str]] = frozenset()
        self._asked_at: float | None = None
        self._logged: set[str] = set()

    def look(self) -> Cluster:
        """The pods with devices and what is known of them.

        Raises what the kubelet's client raises.
        """
        pods = self._pods()
        listed = frozenset((pod.namespace, pod.name) for pod in pods)
        # A new pod is asked for at once; otherwise the API server hears from each node once per
        # API_INTERVAL_S.
        fresh = self._asked_at is not None and self._clock() - self._asked_at < API_INTERVAL_S
        if self._api is not None and not (fresh and listed <= self._listed):
            self._ask(
                self._api, any(device.claim is not None for pod in pods for device in pod.devices)
            )
        # A pod that is recreated under its name (StatefulSet) has another UID, so unlisted pods are
        # forgotten.
        gone = self._listed - listed
        self._facts = {key: facts for key, facts in self._facts.items() if key not in gone}
        self._listed = listed
        unknown = listed - self._facts.keys()
        # Without an answer of the API server, the kubelet's log folders still name the UID.
        by_logs = uids_by_logs(self._pod_logs) if unknown and self._pod_logs is not None else {}
        known = {key: PodFacts(by_logs[key]) for key in unknown if key in by_logs} | self._facts
        return Cluster(pods, known, self._namespaces, self._device_uuids)

    def _ask(self, api: ApiServer, claims: bool) -> None:
        self._asked_at = self._clock()
        questions = [("pods", self._ask_pods), ("namespaces", self._ask_namespaces)]
        if claims:
            questions.append(("resourceslices", self._ask_devices))
        for what, ask in questions:
            try:
                ask(api)
            except ApiFailed as error:
                if what not in self._logged:
                    self._logged.add(what)
                    log.warning(
                        "owners kubernetes: earlier answers on %s stay in use: %s", what, error
                    )
            else:
                self._logged.discard(what)

    def _ask_pods(self, api: ApiServer) -> None:
        # A list without a pod that the kubelet has (an API server that is just starting) must not
        # rename its workload.
        known = {key: facts for key, facts in self._facts.items() if key in self._listed}
        self._facts = {**known, **api.pods(self._node)}

    def _ask_namespaces(self, api: ApiServer) -> None:
        self._namespaces = api.namespaces()

    def _ask_devices(self, api: ApiServer) -> None:
        self._device_uuids = api.device_uuids(self._node)


def uids_by_logs(folder: Path) -> dict[tuple[str, str], str]:
    """UIDs by (namespace, name) from the kubelet's log folders NAMESPACE_NAME_UID; none for a pod
    with two folders.
    """
    uids: dict[tuple[str, str], str | None] = {}
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return {}
    for name in names:
        parts = name.split("_")  # no name in Kubernetes has an underscore
        if len(parts) == 3:
            key = (parts[0], parts[1])
            # Two folders of one name: the pod was recreated, and the older folder still exists.
            uids[key] = None if key in uids else parts[2]
    return {key: uid for key, uid in uids.items() if uid}


class KubernetesOwners:
    """The pods of this node by accelerator, from a polled view."""

    name = "kubernetes"

    def __init__(self, cluster: PolledValue[Cluster]) -> None:
        self._cluster = cluster
        self._unresolved: set[str] = set()

    def holders(self, accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The pods that each accelerator is allocated to, by their replicas.

        Raises NoRecentAnswer if unknown.
        """
        cluster = self._cluster.latest()
        holders: dict[str, list[Holder]] = {}
        for pod in cluster.pods:
            facts = cluster.facts.get((pod.namespace, pod.name))
            if facts is None or not facts.ended:
                for uuid, devices in self._allocated_devices(
                    pod, accelerators, cluster.device_uuids
                ).items():
                    workload = workload_of(
                        pod, devices.values(), facts, cluster.namespaces.get(pod.namespace, {})
                    )
                    holders.setdefault(uuid, []).append(Holder(workload, len(devices)))
        return holders

    def describe(self, workload: Workload) -> Workload:
        """A pod known by its processes, with the names and labels that the API server has for its
        UID.
        """
        cluster = self._cluster.value()
        if workload.kind != "kubernetes" or cluster is None:
            return workload
        for (namespace, name), facts in cluster.facts.items():
            if facts.uid == workload.id:
                labels = cluster.namespaces.get(namespace, {})
                tags = {**workload.tags, **_tags(namespace, name, facts, labels)}
                return replace(workload, name=f"{namespace}/{name}", tags=tags)
        return workload

    def _allocated_devices(
        self,
        pod: AllocatedPod,
        accelerators: Sequence[Accelerator],
        device_uuids: Mapping[tuple[str, str, str], str],
    ) -> dict[str, dict[str, AllocatedDevice]]:
        """Devices by accelerator and id: an id that two containers of a pod share is one device."""
        allocated: dict[str, dict[str, AllocatedDevice]] = {}
        for device in pod.devices:
            uuids = resolve(device, accelerators, device_uuids)
            for uuid in uuids:
                allocated.setdefault(uuid, {}).setdefault(device.id, device)
            is_new = device.id not in self._unresolved and len(self._unresolved) < MAX_LOGGED
            if not uuids and _is_gpu(device) and is_new:
                self._unresolved.add(device.id)
                name, owner = f"{device.resource} {device.id}", f"{pod.namespace}/{pod.name}"
                log.warning(
                    "owners kubernetes: %s of pod %s matches no accelerator of this node",
                    name,
                    owner,
                )
        return allocated


def workload_of(
    pod: AllocatedPod,
    devices: Iterable[AllocatedDevice],
    facts: PodFacts | None,
    namespace_labels: Mapping[str, str],
) -> Workload:
    """The pod as a workload, identified by its UID where it is known, else by namespace/name."""
    containers = ",".join(sorted({device.container for device in devices if device.container}))
    tags = _tags(pod.namespace, pod.name, facts, namespace_labels) | (
        {"container": containers} if containers else {}
    )
    name = f"{pod.namespace}/{pod.name}"
    return Workload(
        (facts.uid if facts is not None else "") or name, "kubernetes", name=name, tags=tags
    )


def _tags(
    namespace: str, name: str, facts: PodFacts | None, namespace_labels: Mapping[str, str]
) -> dict[str, str]:
    tags = tags_of({**namespace_labels, **(facts.labels if facts is not None else {})})
    tags |= {"namespace": namespace, "pod": name}
    return tags | {"pod_uid": facts.uid} if facts is not None and facts.uid else tags


def resolve(
    device: AllocatedDevice,
    accelerators: Sequence[Accelerator],
    device_uuids: Mapping[tuple[str, str, str], str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """The accelerators that a device's name refers to: one, all instances of a device with MIG on,
    or none.

    Forms: `GPU-…`, `MIG-…`, either with `::n`; `MIG-GPU-…/gi/ci`; `nvidia0`, `nvidia0/gi1`, with
    `/vgpuN`; `gpu-0` and `gpu-0-mig-…` of NVIDIA's DRA driver, or any UUID in the CDI names of a
    claim. Numbers are read as NVML's indices, which they are unless device files were made in
    another order; a UUID that the driver published takes precedence.
    """
    name = device_uuids.get((device.resource, device.pool, device.id)) or _REPLICA.sub(
        "", device.id
    )
    exact = _of_uuid(name, accelerators)
    if exact:
        return exact
    old, gke, claimed = _OLD_MIG.match(name), _GKE.match(name), _CLAIMED.match(name)
    if old:
        instances = _instances(
            [entry for entry in accelerators if entry.device_uuid == old[1]], old[2]
        )
        # Without compute instances of its own a GPU instance is one accelerator, whatever number
        # the name ends with.
        position = int(old[3])
        return instances[position : position + 1] if len(instances) > 1 else instances
    if gke:
        of_device = [entry for entry in accelerators if entry.index == int(gke[1])]
        return (
            tuple(entry.uuid for entry in of_device)
            if gke[2] is None
            else _instances(of_device, gke[2])
        )
    for cdi in device.cdi:
        uuid = _UUID.search(cdi.partition("=")[2])
        exact = _of_uuid(uuid[0], accelerators) if uuid else ()
        if exact:
            return exact
    return (
        _of_claim(claimed, accelerators)
        if claimed and device.resource.endswith("nvidia.com")
        else ()
    )


def _of_uuid(name: str, accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    exact = tuple(entry.uuid for entry in accelerators if entry.uuid == name)
    return exact or tuple(entry.uuid for entry in accelerators if entry.device_uuid == name)


def _instances(of_device: Iterable[Accelerator], gpu_instance: str) -> tuple[str, ...]:
    return tuple(
        entry.uuid
        for entry in of_device
        if entry.mig_instance is not None and entry.mig_instance.rpartition("/")[2] == gpu_instance
    )


def _of_claim(claimed: re.Match[str], accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    """The device of that number; of its instances the one of that profile, if only one has it."""
    of_device = [entry for entry in accelerators if entry.index == int(claimed[1])]
    if claimed[2] is None:
        return tuple(entry.uuid for entry in of_device)
    profile = claimed[2].partition("-")[0]
    uuids = tuple(
        entry.uuid
        for entry in of_device
        if entry.mig_instance is not None
        and entry.mig_instance.partition("/")[0].replace(".", "") == profile
    )
    return uuids if len(uuids) == 1 else ()


def _is_gpu(device: AllocatedDevice) -> bool:
    return "nvidia.com" in device.resource and not device.resource.startswith("compute-domain.")

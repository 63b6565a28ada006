"""Owners from Kubernetes: the pods that the kubelet gave an accelerator to, whether they run anything on it or not.

A device plugin may give one device to several pods: time-slicing and MPS replicas are called `UUID::n`. Each replica is
one weight, so that four pods with a quarter each make exactly one GPU, and a pod with two replicas counts twice. Where
only two of four replicas are taken, these two share the *whole* device: nobody else holds it, the parts of a held
device always add up to it, and whoever wants the rest charged elsewhere gives it out.

The kubelet knows names only. UID, labels and phase come from the API server where it may be asked; labels of the
namespace are defaults for those of its pods, so that `team` on a namespace is enough.
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
from gpuledger_agent.owners.podresources import GivenDevice, GivenPod
from gpuledger_agent.owners.refreshed import Refreshed
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload

log = logging.getLogger("gpuledger_agent")

_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)$")
"""What drivers before R470 call a MIG device: UUID of the GPU, GPU instance, compute instance."""
_GKE = re.compile(r"nvidia(\d+)(?:/gi(\d+))?$")
"""Google's device plugin: the device's number, and its GPU instance."""
_CLAIMED = re.compile(r"gpu-(\d+)(?:-mig-([a-z0-9-]+))?$")
"""NVIDIA's DRA driver: the device's minor number, and for MIG the profile (1g18gb) with profile id and placement."""
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{36}")
_REPLICA = re.compile(r"(?:::\d+|/vgpu\d+)$")
API_INTERVAL_S = 30.0
MOST_SAID = 1000
"""Devices that the log names as unknown."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is known of the pods of this node at one instant."""

    pods: Sequence[GivenPod] = ()
    facts: Mapping[tuple[str, str], PodFacts] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    device_uuids: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """UUIDs of what claims (DRA) give out, by driver, pool and device."""


class ClusterView:
    """Asks the kubelet each time, and the API server when a pod is new or what it said is old; keeps what it said."""

    def __init__(
        self,
        pods: Callable[[], Sequence[GivenPod]],
        api: ApiServer | None,
        node: str,
        pod_logs: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods, self._api, self._node, self._pod_logs, self._clock = pods, api, node, pod_logs, clock
        self._facts: Mapping[tuple[str, str], PodFacts] = {}
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._device_uuids: Mapping[tuple[str, str, str], str] = {}
        self._listed: frozenset[tuple[str, str]] = frozenset()
        self._asked_at: float | None = None
        self._said: set[str] = set()

    def look(self) -> Cluster:
        """Pods with devices and what is known of them. Raises what the kubelet's client raises."""
        pods = self._pods()
        listed = frozenset((pod.namespace, pod.name) for pod in pods)
        fresh = self._asked_at is not None and self._clock() - self._asked_at < API_INTERVAL_S
        if self._api is not None and not (fresh and listed <= self._listed):
            self._ask(self._api, any(device.claim is not None for pod in pods for device in pod.devices))
        # A pod that comes again under its name (StatefulSet) has another UID: what is no longer listed is forgotten.
        gone = self._listed - listed
        self._facts = {key: facts for key, facts in self._facts.items() if key not in gone}
        self._listed = listed
        unknown = listed - self._facts.keys()
        named = uids_of_logs(self._pod_logs) if unknown and self._pod_logs is not None else {}
        known = {key: PodFacts(named[key]) for key in unknown if key in named} | self._facts
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
                if what not in self._said:
                    self._said.add(what)
                    log.warning("owners kubernetes: of %s what was known before stays: %s", what, error)
            else:
                self._said.discard(what)

    def _ask_pods(self, api: ApiServer) -> None:
        # A list that lacks a pod of the kubelet's (an API server that is just starting) must not rename its workload.
        known = {key: facts for key, facts in self._facts.items() if key in self._listed}
        self._facts = {**known, **api.pods(self._node)}

    def _ask_namespaces(self, api: ApiServer) -> None:
        self._namespaces = api.namespaces()

    def _ask_devices(self, api: ApiServer) -> None:
        self._device_uuids = api.device_uuids(self._node)


def uids_of_logs(folder: Path) -> dict[tuple[str, str], str]:
    """UIDs by (namespace, name) from the kubelet's log folders NAMESPACE_NAME_UID; of two of one pod, none is told."""
    found: dict[tuple[str, str], str | None] = {}
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return {}
    for name in names:
        parts = name.split("_")  # no name in Kubernetes has an underscore
        if len(parts) == 3:
            key = (parts[0], parts[1])
            found[key] = None if key in found else parts[2]
    return {key: uid for key, uid in found.items() if uid}


class KubernetesOwners:
    """The pods of this node by accelerator, from a view that is kept fresh."""

    name = "kubernetes"

    def __init__(self, cluster: Refreshed[Cluster]) -> None:
        self._cluster = cluster
        self._unresolved: set[str] = set()

    def holders(
        self,
        accelerators: Sequence[Accelerator],
        samples: Sequence[Sample],  # noqa: ARG002
    ) -> Mapping[str, Sequence[Holder]]:
        """The pods that were given each accelerator, by their replicas of it. Raises Silent while it is not known."""
        cluster = self._cluster.known()
        found: dict[str, list[Holder]] = {}
        for pod in cluster.pods:
            facts = cluster.facts.get((pod.namespace, pod.name))
            if facts is None or not facts.ended:
                for uuid, devices in self._given(pod, accelerators, cluster.device_uuids).items():
                    workload = workload_of(pod, devices.values(), facts, cluster.namespaces.get(pod.namespace, {}))
                    found.setdefault(uuid, []).append(Holder(workload, len(devices)))
        return found

    def describe(self, workload: Workload) -> Workload:
        """A pod that was found by its processes, with the names and labels that the API server knows of its UID."""
        cluster = self._cluster.value()
        if workload.kind != "kubernetes" or cluster is None:
            return workload
        for (namespace, name), facts in cluster.facts.items():
            if facts.uid == workload.id:
                labels = cluster.namespaces.get(namespace, {})
                tags = {**workload.tags, **_tags(namespace, name, facts, labels)}
                return replace(workload, name=f"{namespace}/{name}", tags=tags)
        return workload

    def _given(
        self, pod: GivenPod, accelerators: Sequence[Accelerator], device_uuids: Mapping[tuple[str, str, str], str]
    ) -> dict[str, dict[str, GivenDevice]]:
        """Devices by their id, by accelerator: an id that two containers of a pod share is one."""
        given: dict[str, dict[str, GivenDevice]] = {}
        for device in pod.devices:
            uuids = resolve(device, accelerators, device_uuids)
            for uuid in uuids:
                given.setdefault(uuid, {}).setdefault(device.id, device)
            if (
                not uuids
                and _is_gpu(device)
                and device.id not in self._unresolved
                and len(self._unresolved) < MOST_SAID
            ):
                self._unresolved.add(device.id)
                log.warning(
                    "owners kubernetes: %s %s of pod %s/%s is none of this node's accelerators that can be told",
                    device.resource,
                    device.id,
                    pod.namespace,
                    pod.name,
                )
        return given


def workload_of(
    pod: GivenPod, devices: Iterable[GivenDevice], facts: PodFacts | None, namespace_labels: Mapping[str, str]
) -> Workload:
    """The pod as a workload: its UID where it is known, else namespace/name."""
    containers = ",".join(sorted({device.container for device in devices if device.container}))
    tags = _tags(pod.namespace, pod.name, facts, namespace_labels)
    if containers:
        tags["container"] = containers
    known = facts.uid if facts is not None else ""
    return Workload(
        known or f"{pod.namespace}/{pod.name}", "kubernetes", None, None, f"{pod.namespace}/{pod.name}", tags
    )


def _tags(namespace: str, name: str, facts: PodFacts | None, namespace_labels: Mapping[str, str]) -> dict[str, str]:
    tags = tags_of({**namespace_labels, **(facts.labels if facts is not None else {})})
    tags |= {"namespace": namespace, "pod": name}
    return tags | {"pod_uid": facts.uid} if facts is not None and facts.uid else tags


def resolve(
    device: GivenDevice,
    accelerators: Sequence[Accelerator],
    device_uuids: Mapping[tuple[str, str, str], str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """The accelerators that a device's name stands for: one, all instances of a device that has MIG on, or none.

    Forms: `GPU-…`, `MIG-…`, either with `::n`; `MIG-GPU-…/gi/ci`; `nvidia0`, `nvidia0/gi1`, with `/vgpuN`; `gpu-0` and
    `gpu-0-mig-…` of NVIDIA's DRA driver, or any UUID in the CDI names of a claim. Numbers are taken for NVML's indices,
    which they are unless device files were made in another order; the UUID that the driver published goes before them.
    """
    name = device_uuids.get((device.resource, device.pool, device.id)) or _REPLICA.sub("", device.id)
    exact = _of_uuid(name, accelerators)
    if exact:
        return exact
    old, gke, claimed = _OLD_MIG.match(name), _GKE.match(name), _CLAIMED.match(name)
    if old:
        there = _instances(accelerators, old[2], lambda one: one.device_uuid == old[1])
        position = int(old[3])
        return there[position : position + 1] if len(there) > 1 else there
    if gke:
        of_device = [one for one in accelerators if one.index == int(gke[1])]
        if gke[2] is None:
            return tuple(one.uuid for one in of_device)
        return _instances(of_device, gke[2], lambda _: True)
    for cdi in device.cdi:
        uuid = _UUID.search(cdi.partition("=")[2])
        exact = _of_uuid(uuid[0], accelerators) if uuid else ()
        if exact:
            return exact
    return _of_claim(claimed, accelerators) if claimed and device.resource.endswith("nvidia.com") else ()


def _of_uuid(name: str, accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    exact = tuple(one.uuid for one in accelerators if one.uuid == name)
    return exact or tuple(one.uuid for one in accelerators if one.device_uuid == name)


def _instances(
    accelerators: Iterable[Accelerator], gpu_instance: str, fits: Callable[[Accelerator], bool]
) -> tuple[str, ...]:
    return tuple(
        one.uuid
        for one in accelerators
        if fits(one) and one.mig_instance is not None and one.mig_instance.rpartition("/")[2] == gpu_instance
    )


def _of_claim(claimed: re.Match[str], accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    """The device of that number; of its instances the one of that profile, if only one has it."""
    of_device = [one for one in accelerators if one.index == int(claimed[1])]
    if claimed[2] is None:
        return tuple(one.uuid for one in of_device)
    profile = claimed[2].partition("-")[0]
    same = [
        one.uuid
        for one in of_device
        if one.mig_instance is not None and one.mig_instance.partition("/")[0].replace(".", "") == profile
    ]
    return tuple(same) if len(same) == 1 else ()


def _is_gpu(device: GivenDevice) -> bool:
    return "nvidia.com" in device.resource and not device.resource.startswith("compute-domain.")

"""Owners from Kubernetes: the pods that the kubelet allocated an accelerator to, whether they use it
or not.

A device plugin may allocate one device to several pods: time-slicing and MPS replicas are called
`UUID::n`. Each replica is one weight, so that four pods with a quarter each make exactly one GPU,
and a pod with two replicas counts twice. Where only two of four replicas are allocated, these two
share the *entire* device: nobody else holds it, and the parts of a held device always add up to it.
Where a scheduler or a driver states shares, those count (`pod_shares`).

The kubelet knows names only. UID, labels, annotations and phase come from the API server where it
may be asked; labels of the namespace are defaults for those of its pods, so that `team` on a
namespace is enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger_agent.owners.device_names import is_gpu, is_virtual, resolve
from gpuledger_agent.owners.kubernetes_api import (
    ApiServer,
    ClaimedDevice,
    DeviceKey,
    NamespaceFacts,
    OfferedDevice,
    PodFacts,
    ShareKey,
)
from gpuledger_agent.owners.labels import MAX_VALUE_CHARACTERS, tags_of
from gpuledger_agent.owners.machine_note import MachineNote
from gpuledger_agent.owners.pod_jobs import SLURM_TAG, job_of, people_of
from gpuledger_agent.owners.pod_owners import refused_levels
from gpuledger_agent.owners.pod_queues import name_queue, queue_of
from gpuledger_agent.owners.pod_shares import (
    ClaimKey,
    Claims,
    Part,
    PodKey,
    allocated_part,
    annotated_cards,
    annotated_parts,
    divide_reservation,
    groups_of,
    share_key,
    weigh,
)
from gpuledger_agent.owners.podresources import AllocatedDevice, AllocatedPod
from gpuledger_agent.owners.polling import PolledValue
from gpuledger_agent.owners.slinky import bridged_job_of, is_slurm_node
from gpuledger_common.kubernetes_client import ApiFailed, NoSuchResource, NotAllowed
from gpuledger_common.readings import Accelerator, Holder, Holders, Machine, Sample, Workload

if TYPE_CHECKING:
    from gpuledger_agent.owners.ray import RayOwners

log = logging.getLogger("gpuledger_agent")

API_INTERVAL_S = 30.0
FEW_PODS = 8
"""New pods up to which each is asked for alone, instead of all pods of the node."""
NODE_INTERVAL_S = 600.0
"""Labels of a node hardly ever change."""
READS = frozenset({"namespaces", "claims", "node"})
"""What the API server may be asked for besides pods."""
CLAIMS_S = 10.0
"""How long one look may ask for claims; the others are asked at the next."""
MAX_LOGGED = 1000
"""Unknown devices named in the log."""
RESERVATIONS = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of the pods with which KAI Scheduler and Run:ai reserve divided cards."""
_WITHOUT = {
    "pods": "pods are known by namespace and name, without labels",
    "namespaces": "labels of namespaces are no defaults, and pods may name any owner",
    "nodes": "the pool of this node and how it is bought stay as they were known, and where nothing"
    " was, the pool is that of the setting",
    "resourceslices": "claimed devices are known by number",
    "resourceclaims": "claims that share a device have equal parts, and those that only observe it"
    " hold it",
}
"""What follows where the account may not ask."""


_Question = tuple[str, Callable[[ApiServer], None]]
"""A resource, and what asks for it."""
_AskedClaim = tuple[frozenset[ShareKey], float, Mapping[ShareKey, ClaimedDevice] | None]
"""What its pods have of a claim, when it was asked for, and what it got (None: not known)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The pods of this node, and what is known of them, at one instant."""

    pods: Sequence[AllocatedPod] = ()
    """Those that have devices."""
    facts: Mapping[PodKey, PodFacts] = field(default_factory=dict)
    namespaces: Mapping[str, NamespaceFacts] = field(default_factory=dict)
    devices: Mapping[DeviceKey, OfferedDevice] = field(default_factory=dict)
    """Devices that claims (DRA) allocate."""
    claims: Mapping[ClaimKey, Mapping[ShareKey, ClaimedDevice]] = field(default_factory=dict)
    machine: Machine | None = None
    """What the node is to its cloud; None where that is not known."""
    present: frozenset[PodKey] | None = None
    """Every pod that the kubelet has, with devices or without; None where that is not known."""

    def sharing(self) -> dict[str, list[PodKey]]:
        """The pods that have a part of a reserved card, by group, in a fixed order."""
        users: dict[str, list[PodKey]] = {}
        for key, facts in sorted(self.facts.items(), key=lambda item: item[0]):
            is_here = self.present is None or key in self.present
            if is_here and not facts.ended and key[0] not in RESERVATIONS:
                for group in groups_of(facts.labels):
                    users.setdefault(group, []).append(key)
        return users


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
        reads: Set[str] = READS,
    ) -> None:
        self._reads = reads
        self._machine: Machine | None = None
        self._machine_at: float | None = None
        self._pods, self._api, self._node, self._pod_logs, self._clock = (
            pods,
            api,
            node,
            pod_logs,
            clock,
        )
        self._facts: Mapping[PodKey, PodFacts] = {}
        self._namespaces: Mapping[str, NamespaceFacts] = {}
        self._devices: Mapping[DeviceKey, OfferedDevice] = {}
        self._claims: dict[ClaimKey, _AskedClaim] = {}
        self._watched: frozenset[PodKey] = frozenset()
        self._asked_at: float | None = None
        self._logged: set[str] = set()

    def look(self) -> Cluster:
        """The pods with devices and what is known of them.

        Raises what the kubelet's client raises.
        """
        every = self._pods()
        pods = [pod for pod in every if pod.devices]
        present = frozenset((pod.namespace, pod.name) for pod in every)
        # Pods with a part of a reserved card have no device, so there every pod counts.
        is_divided = any(pod.namespace in RESERVATIONS for pod in pods)
        listed = frozenset((pod.namespace, pod.name) for pod in pods)
        watched = present if is_divided else listed
        # A new pod is asked for at once; otherwise the API server hears from each node once per
        # API_INTERVAL_S.
        fresh = self._asked_at is not None and self._clock() - self._asked_at < API_INTERVAL_S
        new = watched - self._watched
        if self._api is not None and (new or not fresh):
            claimed = any(device.claim is not None for pod in pods for device in pod.devices)
            if fresh and len(new) <= FEW_PODS and not claimed:
                self._ask(self._api, self._questions_on(new))
            else:
                self._ask(self._api, self._questions(present, claimed and "claims" in self._reads))
        if self._api is not None and "claims" in self._reads:
            self._look_at_claims(self._api, pods)
        # A pod that is recreated under its name (StatefulSet) has another UID, so unlisted pods are
        # forgotten.
        gone = self._watched - watched
        self._facts = {key: facts for key, facts in self._facts.items() if key not in gone}
        self._watched = watched
        unknown = listed - self._facts.keys()
        # Without an answer of the API server, the kubelet's log folders still name the UID.
        by_logs = uids_by_logs(self._pod_logs) if unknown and self._pod_logs is not None else {}
        known = {key: PodFacts(by_logs[key]) for key in unknown if key in by_logs} | self._facts
        claims = {key: found for key, (_, _, found) in self._claims.items() if found is not None}
        return Cluster(pods, known, self._namespaces, self._devices, claims, self._machine, present)

    def _questions(self, present: Iterable[PodKey], claims: bool) -> list[_Question]:
        """What is asked about the node as a whole."""
        self._asked_at = self._clock()
        questions: list[_Question] = [("pods", self._ask_pods)]
        if "namespaces" in self._reads:
            questions.append(("namespaces", partial(self._ask_namespaces, present)))
        if "node" in self._reads and (
            self._machine_at is None or self._clock() - self._machine_at >= NODE_INTERVAL_S
        ):
            questions.append(("nodes", self._ask_node))
        if claims:
            questions.append(("resourceslices", self._ask_devices))
        return questions

    def _questions_on(self, new: Set[PodKey]) -> list[_Question]:
        """What is asked about new pods alone."""
        questions: list[_Question] = [("pods", partial(self._ask_new_pods, new))]
        if "namespaces" in self._reads:
            names = {namespace for namespace, _ in new}
            questions.append(("namespaces", partial(self._ask_new_namespaces, names)))
        return questions

    def _ask(self, api: ApiServer, questions: Iterable[_Question]) -> None:
        with api.connected():
            for what, ask in questions:
                try:
                    ask(api)
                except ApiFailed as error:
                    self._say_failed(what, error)
                else:
                    self._logged.discard(what)

    def _say_failed(self, what: str, error: ApiFailed) -> None:
        """Say once why there is no answer, until there is one."""
        if what in self._logged:
            return
        self._logged.add(what)
        if isinstance(error, NotAllowed | NoSuchResource):
            verb = "may not" if isinstance(error, NotAllowed) else "cannot"
            log.warning(
                "owners kubernetes: %s ask for %s, so %s: %s", verb, what, _WITHOUT[what], error
            )
        else:
            log.warning("owners kubernetes: earlier answers on %s stay in use: %s", what, error)

    def _look_at_claims(self, api: ApiServer, pods: Sequence[AllocatedPod]) -> None:
        """Ask for the claims that are new; what a claim got does not change while a pod has it."""
        used: dict[ClaimKey, set[ShareKey]] = {}
        for pod in pods:
            for device in pod.devices:
                if device.claim is not None:
                    of_claim = device.claim_namespace, device.claim
                    used.setdefault(of_claim, set()).add(share_key(device))
        wanted = {key: frozenset(parts) for key, parts in used.items()}
        self._claims = {
            key: entry for key, entry in self._claims.items() if wanted.get(key) == entry[0]
        }
        now, until = self._clock(), time.monotonic() + CLAIMS_S
        for key, parts in wanted.items():
            known = self._claims.get(key)
            # One that could not be read is asked for again as rarely as everything else.
            if known is not None and (known[2] is not None or now - known[1] < API_INTERVAL_S):
                continue
            if time.monotonic() > until:
                return
            try:
                found = api.claim(*key)
            except ApiFailed as error:
                self._say_failed("resourceclaims", error)
                self._claims[key] = parts, now, None
            else:
                self._logged.discard("resourceclaims")
                self._claims[key] = parts, now, found

    def _ask_pods(self, api: ApiServer) -> None:
        # A list without a pod that the kubelet has (an API server that is just starting) must not
        # rename its workload.
        known = {key: facts for key, facts in self._facts.items() if key in self._watched}
        self._facts = {**known, **api.pods(self._node)}

    def _ask_new_pods(self, new: Set[PodKey], api: ApiServer) -> None:
        # What an earlier list had of them may be of other pods of the same names.
        facts = {key: entry for key, entry in self._facts.items() if key not in new}
        for namespace, name in new:
            facts |= api.pod(self._node, namespace, name)
        self._facts = facts

    def _ask_new_namespaces(self, names: Set[str], api: ApiServer) -> None:
        namespaces = {name: space for name, space in self._namespaces.items() if name not in names}
        for name in names:
            namespaces |= api.namespace(name)
        self._namespaces = namespaces

    def _ask_namespaces(self, present: Iterable[PodKey], api: ApiServer) -> None:
        # Of the hundreds that a cluster has, a node needs those of its own pods.
        own = {namespace for namespace, _ in (*present, *self._facts)}
        self._namespaces = api.namespaces(own)

    def _ask_node(self, api: ApiServer) -> None:
        try:
            self._machine = api.node(self._node)
        except (NotAllowed, NoSuchResource):
            self._machine_at = self._clock()
            raise
        self._machine_at = self._clock()

    def _ask_devices(self, api: ApiServer) -> None:
        self._devices = api.devices(self._node)


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


_NO_NAMESPACE = NamespaceFacts()
_Described = tuple[PodKey, frozenset[str]]
"""A pod, and its containers that hold something."""
_Description = tuple[PodFacts | None, NamespaceFacts, Workload]
"""The pod as a workload, and from what."""


class KubernetesOwners:
    """The pods of this node by accelerator, from a polled view."""

    name = "kubernetes"

    def __init__(
        self,
        cluster: PolledValue[Cluster],
        note: MachineNote | None = None,
        reads_slurm: bool = False,
        ray: RayOwners | None = None,
        cluster_name: str = "",
    ) -> None:
        """`note`: where the machine is kept for the next start.

        `reads_slurm`: whether another owner source knows the jobs of a slurmd on this node. `ray`
        knows the jobs inside of Ray clusters. `cluster_name` stands before the names of queues.
        """
        self._cluster, self._note, self._reads_slurm = cluster, note, reads_slurm
        self._ray, self._cluster_name = ray, cluster_name
        self._reported: set[tuple[str, ...]] = set()
        self._machine = None if note is None else note.read()
        self._described: dict[_Described, _Description] = {}

    def machine(self) -> Machine | None:
        """What the node is to its cloud: it stays so while nobody answers, also over a restart."""
        cluster = self._cluster.value()
        machine = None if cluster is None else cluster.machine
        if machine is not None and machine != self._machine:
            self._machine = machine
            if self._note is not None:
                self._note.write(machine)
        return self._machine

    def holders(self, accelerators: Sequence[Accelerator], samples: Sequence[Sample]) -> Holders:
        """The pods that each accelerator is allocated to, by their shares or their replicas, and the
        jobs inside of those of Ray clusters.

        Raises NoRecentAnswer if unknown.
        """
        cluster = self._cluster.latest()
        by_uuid = {entry.uuid: entry for entry in accelerators}
        published = {key: device.uuid for key, device in cluster.devices.items() if device.uuid}

        def uuids_of(device: AllocatedDevice) -> Sequence[str]:
            return resolve(device, accelerators, published)

        claims = Claims.of_pods(cluster.pods, cluster.claims, cluster.devices)
        parts: dict[str, list[Part]] = {}
        for pod in cluster.pods:
            facts = cluster.facts.get((pod.namespace, pod.name))
            if facts is None or not (facts.ended or self._holds_for_jobs(pod, facts)):
                for uuid, part in self._parts(pod, facts, by_uuid, uuids_of, claims).items():
                    parts.setdefault(uuid, []).append(part)
        is_divided = any(part.pod[0] in RESERVATIONS for held in parts.values() for part in held)
        users = cluster.sharing() if is_divided else {}
        before, self._described = self._described, {}
        pods = {
            uuid: self._weigh(_divide(held, cluster, users, by_uuid[uuid]), cluster, before)
            for uuid, held in parts.items()
        }
        if self._ray is None:
            return pods
        known = ((namespace, facts) for (namespace, _), facts in cluster.facts.items())
        return self._ray.divide(pods, samples, known, cluster.namespaces, _NO_NAMESPACE)

    def _holds_for_jobs(self, pod: AllocatedPod, facts: PodFacts) -> bool:
        """Whether a pod is a node of Slurm whose jobs are known, so that it holds nothing itself."""
        if not is_slurm_node(facts.controller):
            return False
        if not self._reads_slurm:
            self._report(
                ("slurmd", pod.namespace, pod.name),
                f"pod {pod.namespace}/{pod.name} is a node of Slurm, and the jobs inside are not"
                " read: it holds its cards itself (slurm_jobs_dir)",
            )
        return self._reads_slurm

    def _parts(
        self,
        pod: AllocatedPod,
        facts: PodFacts | None,
        accelerators: Mapping[str, Accelerator],
        uuids_of: Callable[[AllocatedDevice], Sequence[str]],
        claims: Claims,
    ) -> dict[str, Part]:
        """What a pod holds of each accelerator: slots of virtual devices by its annotation, all else
        by the kubelet.
        """
        key = pod.namespace, pod.name
        allocated = self._allocated_devices(pod, uuids_of, claims)
        parts = {uuid: allocated_part(key, devices, claims) for uuid, devices in allocated.items()}
        slots = [device for device in pod.devices if is_virtual(device)]
        cards = annotated_cards(facts) if slots else None
        if cards is None:
            return parts
        named = {card.uuid for card in cards}
        divided = {uuid for uuid, devices in allocated.items() if any(map(is_virtual, devices))}
        whole = {uuid: part for uuid, part in parts.items() if uuid not in divided}
        # A card that the pod has as a whole is not divided: its part would lower the bill.
        is_complete = len(cards) == len({device.id for device in slots})
        if not is_complete or not named <= accelerators.keys() - whole.keys():
            self._report(
                ("annotation", *key),
                f"the annotation of pod {pod.namespace}/{pod.name} names other cards than it was"
                " given, so the kubelet's count, in equal parts",
            )
            return parts
        if named != divided:
            self._report(
                ("card", *key, *sorted(named)),
                f"pod {pod.namespace}/{pod.name} uses {', '.join(sorted(named))} by its annotation;"
                f" the kubelet says {', '.join(sorted(divided)) or 'another'}",
            )
        containers = frozenset(device.container for device in slots if device.container)
        return whole | annotated_parts(key, cards, containers, accelerators)

    def _weigh(
        self, parts: Sequence[Part], cluster: Cluster, before: Mapping[_Described, _Description]
    ) -> list[Holder]:
        holders = []
        for part, weight in zip(parts, weigh(parts), strict=True):
            # Facts are the same objects until the API server is asked again: most pods were
            # described from them before.
            space = cluster.namespaces.get(part.pod[0], _NO_NAMESPACE)
            facts, key = cluster.facts.get(part.pod), (part.pod, part.containers)
            known = before.get(key)
            if known is None or known[0] is not facts or known[1] is not space:
                known = facts, space, self._workload_of(*part.pod, part.containers, facts, space)
            self._described[key] = known
            holders.append(Holder(known[2], weight))
        return holders

    def _workload_of(
        self,
        namespace: str,
        name: str,
        containers: Iterable[str],
        facts: PodFacts | None,
        space: NamespaceFacts,
    ) -> Workload:
        workload = workload_of(namespace, name, containers, facts, space)
        return replace(workload, queue=name_queue(self._cluster_name, workload.queue))

    def describe(self, workload: Workload) -> Workload:
        """A pod known by its processes, with the names and labels that the API server has for its
        UID.
        """
        cluster = self._cluster.value()
        if workload.kind != "kubernetes" or cluster is None:
            return workload
        for (namespace, name), facts in cluster.facts.items():
            if facts.uid == workload.id:
                space = cluster.namespaces.get(namespace, NamespaceFacts())
                pod = self._workload_of(namespace, name, (), facts, space)
                tags = {**workload.tags, **pod.tags}
                # The user of the process stays where the pod names none.
                return replace(pod, user=pod.user or workload.user, tags=tags)
        return workload

    def _allocated_devices(
        self,
        pod: AllocatedPod,
        uuids_of: Callable[[AllocatedDevice], Sequence[str]],
        claims: Claims,
    ) -> dict[str, list[AllocatedDevice]]:
        """The devices of a pod by accelerator, without those that a claim only observes."""
        allocated: dict[str, list[AllocatedDevice]] = {}
        for device in pod.devices:
            if claims.is_admin(device):
                continue
            uuids = uuids_of(device)
            for uuid in uuids:
                allocated.setdefault(uuid, []).append(device)
            if not uuids and is_gpu(device):
                self._report(
                    ("device", device.id),
                    f"{device.resource} {device.id} of pod {pod.namespace}/{pod.name} matches no"
                    " accelerator of this node",
                )
        return allocated

    def _report(self, subject: tuple[str, ...], sentence: str) -> None:
        """Log a sentence once."""
        if subject not in self._reported and len(self._reported) < MAX_LOGGED:
            self._reported.add(subject)
            log.warning("owners kubernetes: %s", sentence)


def _divide(
    parts: Sequence[Part],
    cluster: Cluster,
    users: Mapping[str, Sequence[PodKey]],
    accelerator: Accelerator,
) -> list[Part]:
    """The parts of one accelerator, a reservation replaced by the pods that it was made for."""
    divided: list[Part] = []
    for part in parts:
        facts = cluster.facts.get(part.pod)
        group = facts.labels.get("runai-gpu-group") if facts is not None else None
        if part.pod[0] in RESERVATIONS and group:
            divided += divide_reservation(
                part, cluster.facts, users.get(group, ()), accelerator.memory_bytes
            )
        else:
            divided.append(part)
    return divided


def workload_of(
    namespace: str,
    name: str,
    containers: Iterable[str],
    facts: PodFacts | None,
    space: NamespaceFacts,
) -> Workload:
    """The pod as a workload, identified by its UID where it is known, else by namespace/name."""
    title, holding = f"{namespace}/{name}", ",".join(sorted(containers))
    own = {"namespace": namespace, "pod": name} | ({"container": holding} if holding else {})
    if facts is None:
        return Workload(title, "kubernetes", name=title, tags=tags_of(space.labels) | own)
    people = people_of(facts.labels, facts.annotations, space.annotations.get("owner", ""))
    refused = refused_levels(facts.labels, space.labels, space.annotations)
    chosen = {key: value for key, value in facts.labels.items() if key not in refused}
    bridged = bridged_job_of(facts.labels, facts.annotations, space.annotations)
    defaults = {**people.defaults}
    if bridged is not None:
        defaults |= bridged.defaults
        own |= bridged.tags
        if bridged.refused is not None:
            refused = {"team": bridged.refused, **refused}
        if bridged.account and "team" not in {*space.labels, *chosen}:
            # Users write the account, so it is as little a team as a label that says so.
            said = refused_levels({"team": bridged.account}, {}, space.annotations)
            defaults = {key: value for key, value in defaults.items() if key not in said}
            refused = {**said, **refused}
    labels = {**defaults, **space.labels, **chosen, **people.tags}
    labels.pop(SLURM_TAG, None)
    job = job_of(namespace, name, facts.labels, facts.annotations, facts.controller)
    return Workload(
        facts.uid or title,
        "kubernetes",
        user=people.user,
        account=None if bridged is None else bridged.account,
        name=title,
        tags=tags_of(labels) | own | ({"pod_uid": facts.uid} if facts.uid else {}),
        job=None if job is None else job.title,
        job_uid=None if job is None else job.uid or None,
        queue=queue_of(namespace, facts.labels, facts.annotations, facts.scheduler),
        refused={level: name[:MAX_VALUE_CHARACTERS] for level, name in refused.items()},
    )

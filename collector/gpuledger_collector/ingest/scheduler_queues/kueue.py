"""Kueue: quotas of ClusterQueues and Cohorts by flavor, their use and what is borrowed, LocalQueues
and Workloads that wait, run and are evicted.

Needs `list` on clusterqueues, cohorts, resourceflavors, localqueues and workloads of
`kueue.x-k8s.io`. What it borrows Kueue says itself (`status.flavorsUsage[].borrowed`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuledger_collector.accounting.queue_quotas import (
    QueuedWorkload,
    QueueReading,
    QueueUse,
    QueueWait,
    Quota,
    QuotaPlace,
)
from gpuledger_collector.ingest.scheduler_queues.resources import (
    Lister,
    Metadata,
    PodSpec,
    Quantities,
    SchedulerReading,
    gpus_of,
    gpus_of_pod,
    instant_of,
)
from gpuledger_common.gpu_resources import gpu_micro, is_gpu
from gpuledger_common.kubernetes_client import KubernetesClient
from gpuledger_common.node_pools import pool_of

KUEUE = "kueue"
GROUP, VERSIONS = "kueue.x-k8s.io", ("v1beta2", "v1beta1")
COHORT = "cohort "
"""Stands before the name of a cohort, whose own quota is nobody's: no ClusterQueue has a blank."""
MAX_DEPTH = 32
"""Cohorts above each other."""
_PREEMPTOR = re.compile(r"\(UID: ([^,)\s]+)")
_PREEMPTOR_PATH = re.compile(r"preemptor path: ([^;\s]+)")


class _ResourceQuota(msgspec.Struct):
    name: str = ""
    nominal: str | int | None = msgspec.field(default=None, name="nominalQuota")
    borrowing: str | int | None = msgspec.field(default=None, name="borrowingLimit")
    lending: str | int | None = msgspec.field(default=None, name="lendingLimit")


class _FlavorQuotas(msgspec.Struct):
    name: str = ""
    resources: list[_ResourceQuota] | None = None


class _ResourceGroup(msgspec.Struct):
    flavors: list[_FlavorQuotas] | None = None


class _QueueSpec(msgspec.Struct):
    cohort_name: str = msgspec.field(default="", name="cohortName")
    cohort: str = ""
    """Its name in v1beta1."""
    parent: str = msgspec.field(default="", name="parentName")
    groups: list[_ResourceGroup] | None = msgspec.field(default=None, name="resourceGroups")


class _ResourceUse(msgspec.Struct):
    name: str = ""
    total: str | int | None = None
    borrowed: str | int | None = None


class _FlavorUse(msgspec.Struct):
    name: str = ""
    resources: list[_ResourceUse] | None = None


class _QueueStatus(msgspec.Struct):
    usage: list[_FlavorUse] | None = msgspec.field(default=None, name="flavorsUsage")


class _Queue(msgspec.Struct):
    """A ClusterQueue or a Cohort."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _QueueSpec = msgspec.field(default_factory=_QueueSpec)
    status: _QueueStatus = msgspec.field(default_factory=_QueueStatus)


class _FlavorSpec(msgspec.Struct):
    labels: dict[str, str] | None = msgspec.field(default=None, name="nodeLabels")


class _Flavor(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _FlavorSpec = msgspec.field(default_factory=_FlavorSpec)


class _LocalSpec(msgspec.Struct):
    queue: str = msgspec.field(default="", name="clusterQueue")


class _LocalQueue(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _LocalSpec = msgspec.field(default_factory=_LocalSpec)


class _Template(msgspec.Struct):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


class _PodSet(msgspec.Struct):
    count: int = 1
    template: _Template = msgspec.field(default_factory=_Template)


class _WorkloadSpec(msgspec.Struct):
    queue: str = msgspec.field(default="", name="queueName")
    active: bool = True
    pod_sets: list[_PodSet] | None = msgspec.field(default=None, name="podSets")


class _Assignment(msgspec.Struct):
    usage: Quantities | None = msgspec.field(default=None, name="resourceUsage")


class _Admission(msgspec.Struct):
    queue: str = msgspec.field(default="", name="clusterQueue")
    pod_sets: list[_Assignment] | None = msgspec.field(default=None, name="podSetAssignments")


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    since: str = msgspec.field(default="", name="lastTransitionTime")


class _WorkloadStatus(msgspec.Struct):
    admission: _Admission | None = None
    conditions: list[_Condition] | None = None


class _Workload(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)
    status: _WorkloadStatus = msgspec.field(default_factory=_WorkloadStatus)

    def condition(self, kind: str) -> _Condition | None:
        """The condition of a type, where it holds."""
        return next(
            (
                entry
                for entry in self.status.conditions or ()
                if entry.type == kind and entry.status == "True"
            ),
            None,
        )


def read_kueue(client: KubernetesClient, at_ms: int) -> SchedulerReading:
    """Everything that Kueue says at an instant."""
    lister = Lister(client)
    queues = lister.list_all(GROUP, VERSIONS, "clusterqueues", _Queue)
    if queues is None:
        return SchedulerReading(KUEUE, None, problems=tuple(lister.problems))
    cohorts = lister.list_all(GROUP, VERSIONS, "cohorts", _Queue)
    flavors = lister.list_all(GROUP, VERSIONS, "resourceflavors", _Flavor)
    locals_ = lister.list_all(GROUP, VERSIONS, "localqueues", _LocalQueue)
    workloads = lister.list_all(GROUP, VERSIONS, "workloads", _Workload)
    pools = {flavor.metadata.name: pool_of(flavor.spec.labels or {}) for flavor in flavors or ()}
    tenants = None
    if locals_ is not None:
        tenants = {
            f"{local.metadata.namespace}/{local.metadata.name}": local.spec.queue
            for local in locals_
        }
    waits = None
    if workloads is not None and tenants is not None:
        waits = _waits(workloads, tenants, queues)
    trees = _trees(cohorts or ())
    uses = [use for queue in queues for use in _uses(queue)]
    quotas = [quota for queue in queues for quota in _quotas(queue, trees, pools)]
    for cohort in cohorts or ():
        own = _quotas(cohort, trees, pools, COHORT)
        quotas += own
        # What lies in a cohort itself is used by borrowing alone.
        uses += [QueueUse(quota.place, 0, 0) for quota in own]
    return SchedulerReading(
        KUEUE,
        QueueReading(at_ms, tuple(quotas), tuple(uses), waits),
        tenants,
        None if workloads is None else tuple(map(_queued, workloads)),
        tuple(lister.problems),
    )


def _trees(cohorts: Iterable[_Queue]) -> dict[str, str]:
    """The root above each cohort."""
    parents = {cohort.metadata.name: cohort.spec.parent for cohort in cohorts}
    roots = {}
    for name in parents:
        root = name
        for _ in range(MAX_DEPTH):
            above = parents.get(root, "")
            if not above:
                break
            root = above
        roots[name] = root
    return roots


def _quotas(
    queue: _Queue, trees: Mapping[str, str], pools: Mapping[str, str], prefix: str = ""
) -> list[Quota]:
    name = prefix + queue.metadata.name
    parent = queue.spec.cohort_name or queue.spec.cohort or queue.spec.parent
    # A queue in no cohort lends to nobody, and a cohort is its own tree.
    own = trees.get(queue.metadata.name, queue.metadata.name) if prefix else ""
    root = own or (trees.get(parent, parent) if parent else "")
    return [
        Quota(
            QuotaPlace(KUEUE, name, flavor.name, resource.name),
            tree=f"{COHORT}{root}" if root else name,
            parent=f"{COHORT}{parent}" if parent else "",
            pool=pools.get(flavor.name, ""),
            quota_micro=gpu_micro(resource.name, resource.nominal),
            borrowing_micro=gpu_micro(resource.name, resource.borrowing),
            lending_micro=gpu_micro(resource.name, resource.lending),
        )
        for group in queue.spec.groups or ()
        for flavor in group.flavors or ()
        for resource in flavor.resources or ()
        if is_gpu(resource.name)
    ]


def _uses(queue: _Queue) -> Iterable[QueueUse]:
    for flavor in queue.status.usage or ():
        for resource in flavor.resources or ():
            used = gpu_micro(resource.name, resource.total)
            borrowed = gpu_micro(resource.name, resource.borrowed or 0)
            if is_gpu(resource.name) and used is not None and borrowed is not None:
                place = QuotaPlace(KUEUE, queue.metadata.name, flavor.name, resource.name)
                yield QueueUse(place, used, borrowed)


def _requests(workload: _Workload) -> dict[str, int]:
    """GPUs that a workload asks for, by resource."""
    asked: dict[str, int] = defaultdict(int)
    for pods in workload.spec.pod_sets or ():
        for name, micro in gpus_of_pod(pods.template.spec).items():
            asked[name] += micro * pods.count
    return dict(asked)


def _waits(
    workloads: Sequence[_Workload], tenants: Mapping[str, str], queues: Sequence[_Queue]
) -> tuple[QueueWait, ...]:
    """GPUs of workloads without quota, by queue; 0 where a queue has quota and nothing waits."""
    waiting = {
        (queue.metadata.name, resource.name): 0
        for queue in queues
        for group in queue.spec.groups or ()
        for flavor in group.flavors or ()
        for resource in flavor.resources or ()
        if is_gpu(resource.name)
    }
    for workload in workloads:
        local = f"{workload.metadata.namespace}/{workload.spec.queue}"
        queue = tenants.get(local, "")
        is_waiting = workload.spec.active and not any(
            workload.condition(kind) for kind in ("QuotaReserved", "Finished")
        )
        if is_waiting and queue:
            for resource, micro in _requests(workload).items():
                waiting[queue, resource] = waiting.get((queue, resource), 0) + micro
    return tuple(
        QueueWait(KUEUE, queue, resource, micro)
        for (queue, resource), micro in sorted(waiting.items())
    )


def _queued(workload: _Workload) -> QueuedWorkload:
    admission = workload.status.admission
    admitted = workload.condition("Admitted")
    evicted = workload.condition("Evicted")
    is_finished = workload.condition("Finished") is not None
    if admission is not None:
        gpus: dict[str, int] = defaultdict(int)
        for assignment in admission.pod_sets or ():
            for name, micro in gpus_of(assignment.usage).items():
                gpus[name] += micro
    else:
        gpus = defaultdict(int, _requests(workload))
    preempted = workload.condition("Preempted") if evicted is not None else None
    message = preempted.message if preempted is not None else ""
    uid, path = _PREEMPTOR.search(message), _PREEMPTOR_PATH.search(message)
    return QueuedWorkload(
        workload.metadata.uid,
        f"{workload.metadata.namespace}/{workload.metadata.name}",
        "" if admission is None else admission.queue,
        sum(gpus.values()),
        admitted_ms=None
        if admitted is None or admission is None or is_finished
        else instant_of(admitted.since),
        evicted_ms=None if evicted is None else instant_of(evicted.since),
        reason="" if evicted is None else evicted.reason,
        preemptor_uid="" if uid is None or uid[1] == "UNKNOWN" else uid[1],
        preempting_queue="" if path is None else path[1].rpartition("/")[2],
    )

"""Volcano: `deserved` of a queue is its quota, `capability` its limit, `guarantee` what it lends to
nobody. Needs `list` on queues of `scheduling.volcano.sh`.

A queue without `deserved` has a weight and no quota in GPUs. Volcano counts waiting pod groups, not
their GPUs: what waits is not known.
"""

from __future__ import annotations

import msgspec

from gpuledger_collector.accounting.queue_quotas import QueueReading, QueueUse, Quota, QuotaPlace
from gpuledger_collector.ingest.scheduler_queues.resources import (
    Lister,
    Metadata,
    Quantities,
    SchedulerReading,
    gpus_of,
)
from gpuledger_common.kubernetes_client import KubernetesClient

VOLCANO = "volcano"
GROUP, VERSIONS = "scheduling.volcano.sh", ("v1beta1",)
ROOT = "root"
"""The queue above all that name no parent."""


class _Guarantee(msgspec.Struct):
    resource: Quantities | None = None


class _Spec(msgspec.Struct):
    parent: str = ""
    deserved: Quantities | None = None
    capability: Quantities | None = None
    guarantee: _Guarantee = msgspec.field(default_factory=_Guarantee)


class _Status(msgspec.Struct):
    allocated: Quantities | None = None


class _Queue(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def read_volcano(client: KubernetesClient, at_ms: int) -> SchedulerReading:
    """Every queue of Volcano at an instant."""
    lister = Lister(client)
    queues = lister.list_all(GROUP, VERSIONS, "queues", _Queue)
    if queues is None:
        return SchedulerReading(VOLCANO, None, problems=tuple(lister.problems))
    parents = {queue.spec.parent or ROOT for queue in queues if queue.metadata.name != ROOT}
    quotas, uses = [], []
    for queue in queues:
        name = queue.metadata.name
        deserved, capability, guarantee, allocated = (
            gpus_of(part)
            for part in (
                queue.spec.deserved,
                queue.spec.capability,
                queue.spec.guarantee.resource,
                queue.status.allocated,
            )
        )
        is_known = queue.status.allocated is not None
        for resource in sorted({*deserved, *capability, *guarantee, *allocated}):
            place = QuotaPlace(VOLCANO, name, "", resource)
            quota, limit = deserved.get(resource), capability.get(resource)
            quotas.append(
                Quota(
                    place,
                    tree=ROOT,
                    parent="" if name == ROOT else queue.spec.parent or ROOT,
                    has_children=name in parents,
                    quota_micro=quota,
                    borrowing_micro=None
                    if quota is None or limit is None
                    else max(0, limit - quota),
                    lending_micro=None
                    if quota is None or resource not in guarantee
                    else max(0, quota - guarantee[resource]),
                )
            )
            if is_known:
                used = allocated.get(resource, 0)
                borrowed = 0 if quota is None else max(0, used - quota)
                uses.append(QueueUse(place, used, borrowed))
    names = {queue.metadata.name: queue.metadata.name for queue in queues}
    reading = QueueReading(at_ms, tuple(quotas), tuple(uses))
    return SchedulerReading(VOLCANO, reading, names, problems=tuple(lister.problems))

"""KAI Scheduler and Run:ai: `quota` of a queue, `limit`, what it has allocated and what its jobs
request, waiting ones included. Needs `list` on queues of `scheduling.run.ai`.

-1 is no bound. A queue above others has the sums of those below.
"""

from __future__ import annotations

import msgspec

from gpuledger_collector.accounting.queue_quotas import (
    QueueReading,
    QueueUse,
    QueueWait,
    Quota,
    QuotaPlace,
)
from gpuledger_collector.ingest.scheduler_queues.resources import (
    Lister,
    Metadata,
    Quantities,
    SchedulerReading,
    gpus_of,
)
from gpuledger_common.gpu_resources import gpu_micro
from gpuledger_common.kubernetes_client import KubernetesClient

KAI = "kai"
GROUP, VERSIONS = "scheduling.run.ai", ("v2",)
RESOURCE = "nvidia.com/gpu"
"""What `resources.gpu` of a queue counts."""
MAX_DEPTH = 32


class _Gpu(msgspec.Struct):
    quota: float | None = None
    limit: float | None = None


class _QueueResources(msgspec.Struct):
    gpu: _Gpu | None = None


class _Spec(msgspec.Struct):
    parent: str = msgspec.field(default="", name="parentQueue")
    resources: _QueueResources | None = None


class _Status(msgspec.Struct):
    allocated: Quantities | None = None
    requested: Quantities | None = None


class _Queue(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def read_kai(client: KubernetesClient, at_ms: int) -> SchedulerReading:
    """Every queue of KAI Scheduler at an instant."""
    lister = Lister(client)
    queues = lister.list_all(GROUP, VERSIONS, "queues", _Queue)
    if queues is None:
        return SchedulerReading(KAI, None, problems=tuple(lister.problems))
    parents = {queue.metadata.name: queue.spec.parent for queue in queues}
    above = {name for name in parents.values() if name}
    quotas, uses, waits = [], [], []
    for queue in queues:
        name = queue.metadata.name
        place = QuotaPlace(KAI, name, "", RESOURCE)
        resources = queue.spec.resources
        gpu = resources.gpu if resources is not None and resources.gpu is not None else _Gpu()
        quota, limit = _bound(gpu.quota), _bound(gpu.limit)
        quotas.append(
            Quota(
                place,
                tree=_root(name, parents),
                parent=queue.spec.parent,
                has_children=name in above,
                quota_micro=quota,
                borrowing_micro=None if quota is None or limit is None else max(0, limit - quota),
            )
        )
        if queue.status.allocated is None or name in above:
            continue
        used = gpus_of(queue.status.allocated).get(RESOURCE, 0)
        uses.append(QueueUse(place, used, 0 if quota is None else max(0, used - quota)))
        if queue.status.requested is not None:
            requested = gpus_of(queue.status.requested).get(RESOURCE, 0)
            waits.append(QueueWait(KAI, name, RESOURCE, max(0, requested - used)))
    names = {name: name for name in parents}
    reading = QueueReading(at_ms, tuple(quotas), tuple(uses), tuple(waits))
    return SchedulerReading(KAI, reading, names, problems=tuple(lister.problems))


def _bound(gpus: float | None) -> int | None:
    """A bound of a queue; negative, or absent: none."""
    return None if gpus is None or gpus < 0 else gpu_micro(RESOURCE, gpus)


def _root(name: str, parents: dict[str, str]) -> str:
    for _ in range(MAX_DEPTH):
        above = parents.get(name, "")
        if not above:
            break
        name = above
    return name

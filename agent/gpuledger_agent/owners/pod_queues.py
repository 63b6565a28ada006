"""The queue of a scheduler in which a pod stands: Kueue, KAI Scheduler and Run:ai, Volcano.

A LocalQueue of Kueue belongs to the namespace of its pods and is called NAMESPACE/NAME. Queues of the
others belong to the whole cluster, and whoever may create pods writes their labels: these count
only on a pod that another scheduler than Kubernetes' own binds.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_agent.owners.labels import MAX_VALUE_CHARACTERS, UNSTORABLE

LOCAL_QUEUES = ("kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/queue-name")
"""Labels of Kueue: what it writes when it starts a pod, and what a template may say."""
CLUSTER_QUEUES = ("kai.scheduler/queue", "runai/queue", "volcano.sh/queue-name")
"""Labels of the schedulers whose queues belong to the whole cluster."""
ANNOTATED = "scheduling.volcano.sh/queue-name"
"""Where Volcano has the queue of pods that are in no job of its own."""
DEFAULT_SCHEDULER = "default-scheduler"


def queue_of(
    namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str], scheduler: str
) -> str | None:
    """The queue of a pod; None where it stands in none that is known."""
    local = next((labels[name] for name in LOCAL_QUEUES if labels.get(name)), "")
    if local:
        queue = f"{namespace}/{local}"
    elif scheduler == DEFAULT_SCHEDULER:
        queue = ""
    else:
        named = (labels[name] for name in CLUSTER_QUEUES if labels.get(name))
        queue = next(named, "") or annotations.get(ANNOTATED, "")
    if not queue or UNSTORABLE.search(queue):
        return None
    return queue[:MAX_VALUE_CHARACTERS]


def name_queue(cluster: str, queue: str | None) -> str | None:
    """The name of a queue among those of several clusters; `cluster` empty: there is one."""
    if queue is None or not cluster:
        return queue
    return f"{cluster}/{queue}"[:MAX_VALUE_CHARACTERS]

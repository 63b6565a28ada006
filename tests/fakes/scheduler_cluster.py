"""A cluster with queues of Kueue, Volcano and KAI Scheduler, in the words of their objects.

Two ClusterQueues share a cohort: vision has 64 GPUs and uses 16, speech has 32, uses 48 and so
borrows 16; a job of nlp waits for 8. Each object is given to the fake API server as a list answers
it, or to a real one, with the status that its scheduler would write.
"""

import copy

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"
KAI = "/apis/scheduling.run.ai/v2"
GPU = "nvidia.com/gpu"
KINDS = {
    "clusterqueues": "ClusterQueue",
    "cohorts": "Cohort",
    "localqueues": "LocalQueue",
    "queues": "Queue",
    "resourceflavors": "ResourceFlavor",
    "workloads": "Workload",
}


def cluster_queue(name, quota, used, borrowed, **limits):
    resource = {"name": GPU, "nominalQuota": str(quota), **limits}
    use = {"name": GPU, "total": str(used), "borrowed": str(borrowed)}
    flavor = {"flavors": [{"name": "h100", "resources": [resource]}], "coveredResources": [GPU]}
    status = {
        "flavorsUsage": [{"name": "h100", "resources": [use]}],
        "flavorsReservation": [{"name": "h100", "resources": [use]}],
    }
    spec = {"cohortName": "gpus", "namespaceSelector": {}, "resourceGroups": [flavor]}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def local_queue(namespace, name, queue):
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterQueue": queue}}


def workload(namespace, name, queue, gpus, *conditions, admitted_by=""):
    """A workload; each condition is (type, reason, since, message), and holds."""
    template = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "example.com/train",
                    "resources": {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}},
                }
            ],
        }
    }
    pods = [{"name": "main", "count": 1, "template": template}]
    status = {
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "lastTransitionTime": since,
                "message": message,
            }
            for kind, reason, since, message in conditions
        ]
    }
    if admitted_by:
        assignment = {"name": "main", "flavors": {GPU: "h100"}, "resourceUsage": {GPU: str(gpus)}}
        status["admission"] = {
            "clusterQueue": admitted_by,
            "podSetAssignments": [{**assignment, "count": 1}],
        }
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}"}
    return {
        "metadata": metadata,
        "spec": {"queueName": queue, "active": True, "podSets": pods},
        "status": status,
    }


def admitted(since):
    """The conditions of a workload that runs."""
    return (
        ("QuotaReserved", "QuotaReserved", since, ""),
        ("Admitted", "Admitted", since, ""),
    )


class SchedulerCluster:
    """The objects of the three schedulers, by the address of their list."""

    def __init__(self):
        self.objects = {
            f"{KUEUE}/clusterqueues": [
                cluster_queue("vision-cq", 64, 16, 0, lendingLimit="40"),
                cluster_queue("speech-cq", 32, 48, 16, borrowingLimit="32"),
            ],
            f"{KUEUE}/cohorts": [{"metadata": {"name": "gpus"}, "spec": {}}],
            f"{KUEUE}/resourceflavors": [
                {
                    "metadata": {"name": "h100"},
                    "spec": {"nodeLabels": {"karpenter.sh/nodepool": "train"}},
                }
            ],
            f"{KUEUE}/localqueues": [
                local_queue("vision", "train", "vision-cq"),
                local_queue("speech", "asr", "speech-cq"),
            ],
            f"{KUEUE}/workloads": [
                workload("speech", "waiting", "asr", 8),
            ],
            f"{VOLCANO}/queues": [
                {
                    "metadata": {"name": "root"},
                    "spec": {"weight": 1},
                    "status": {"state": "Open", "allocated": {GPU: "10"}},
                },
                {
                    "metadata": {"name": "batch"},
                    "spec": {
                        "weight": 1,
                        "deserved": {GPU: "8"},
                        "capability": {GPU: "12"},
                        "guarantee": {"resource": {GPU: "2"}},
                    },
                    "status": {"state": "Open", "allocated": {GPU: "10"}},
                },
            ],
            f"{KAI}/queues": [
                {
                    "metadata": {"name": "research"},
                    "spec": {"resources": {"gpu": {"quota": 8, "limit": -1}}},
                    "status": {"allocated": {GPU: "2500m"}, "requested": {GPU: "4500m"}},
                },
                {
                    "metadata": {"name": "nlp"},
                    "spec": {
                        "parentQueue": "research",
                        "resources": {"gpu": {"quota": 2, "limit": 6}},
                    },
                    "status": {"allocated": {GPU: "2500m"}, "requested": {GPU: "4500m"}},
                },
            ],
        }

    def serve(self, api):
        """Have a fake API server answer these lists."""
        api.lists = self.objects

    def queue(self, name):
        """A ClusterQueue by its name."""
        return next(
            entry
            for entry in self.objects[f"{KUEUE}/clusterqueues"]
            if entry["metadata"]["name"] == name
        )

    def set_quota(self, name, gpus):
        """Edit the quota of a ClusterQueue."""
        (group,) = self.queue(name)["spec"]["resourceGroups"]
        group["flavors"][0]["resources"][0]["nominalQuota"] = str(gpus)

    def set_use(self, name, used, borrowed):
        """Have Kueue say what a ClusterQueue uses."""
        use = {"name": GPU, "total": str(used), "borrowed": str(borrowed)}
        self.queue(name)["status"]["flavorsUsage"][0]["resources"] = [use]

    def set_workloads(self, *workloads):
        """Have Kueue know these workloads."""
        self.objects[f"{KUEUE}/workloads"] = list(workloads)

    def create(self, plane):
        """Create the objects at a real control plane, then say their status in the controllers'
        place.
        """
        for listed, objects in self.objects.items():
            base, plural = listed.rsplit("/", 1)
            for entry in copy.deepcopy(objects):
                status = entry.pop("status", None)
                metadata = entry["metadata"]
                metadata.pop("uid", None)
                namespace = metadata.get("namespace")
                path = f"{base}/namespaces/{namespace}/{plural}" if namespace else listed
                entry["kind"] = KINDS[plural]
                entry["apiVersion"] = base.removeprefix("/apis/")
                plane.request("POST", path, entry)
                if status:
                    plane.request(
                        "PATCH",
                        f"{path}/{metadata['name']}/status",
                        {"status": status},
                        "application/merge-patch+json",
                    )

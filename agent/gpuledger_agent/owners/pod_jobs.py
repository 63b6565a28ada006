"""The job that a pod belongs to, and for whom it runs, as the systems that create pods write it.

A job of 64 pods is one piece of work, and so are the pods of its restarts. Which one it is stands in
labels that each system copies to its pods, else in the pod's controller; the outermost system wins,
since a TrainJob is made of a JobSet, which is made of Jobs. A job is named `KIND NAMESPACE/NAME`: a
label cannot join the job of another namespace. Users, runs and experiments stand where each system
keeps them: the real name of a JupyterHub user only in an annotation, for example, because a label
allows few characters.

Labels and meanings: docs/guides/kubernetes.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuledger_agent.owners.labels import MAX_VALUE_CHARACTERS, UNSTORABLE

SLURM_JOB = "scheduler.slinky.slurm.net/slurm-jobid"
"""Label of the pods that slurm-bridge scheduled: the job of Slurm that stands for them."""
SLURM_TAG = "slurm_job_id"
"""Tag of that job: by it a pod takes the place of what Slurm's accounting says, so neither a label
nor metadata may be called so.
"""
_HASH = re.compile(r"-[a-z0-9]{1,10}$")
"""The end of a ReplicaSet's name: its pod-template-hash."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The object that created a pod, by its ownerReference."""

    kind: str
    name: str
    uid: str
    group: str = ""
    """Its API group; empty for those of Kubernetes' core."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a pod: `KIND NAMESPACE/NAME`, and the UID of the object where that is known."""

    title: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class People:
    """For whom a pod runs: its user, and tags that say which experiment and run it belongs to.

    `tags` replace labels of the same name, which are cut to 63 characters; `defaults` do not.
    """

    user: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


_Text = Mapping[str, str]
_Named = tuple[str, str, str]
"""Kind, name and UID of a job."""
_System = Callable[[_Text, Controller | None], _Named | None]
"""Reads the job of a pod from its labels and its controller; None where they name none."""


def _by_label(kind: str, label: str, uid: str = "") -> _System:
    """A job that one label names, with its UID in another; else its controller's, if it is of that
    kind.
    """

    def read(labels: _Text, controller: Controller | None) -> _Named | None:
        name = labels.get(label)
        if not name:
            return None
        own = controller.uid if controller is not None and controller.kind == kind else ""
        return kind, name, labels.get(uid, "") or own

    return read


def _ray_job(labels: _Text, _: Controller | None) -> _Named | None:
    kind, name = (labels.get(f"ray.io/originated-from-{part}") for part in ("crd", "cr-name"))
    return (kind, name, "") if kind and name else None


def _train_job(labels: _Text, _: Controller | None) -> _Named | None:
    name = labels.get("jobset.sigs.k8s.io/jobset-name")
    if not name or "trainer.kubeflow.org/trainjob-ancestor-step" not in labels:
        return None
    # The TrainJob and its JobSet have one name and one life.
    return "TrainJob", name, labels.get("jobset.sigs.k8s.io/jobset-uid", "")


def _training_operator(labels: _Text, controller: Controller | None) -> _Named | None:
    name = labels.get("training.kubeflow.org/job-name")
    if not name:
        return None
    kind = controller.kind if controller is not None and controller.kind.endswith("Job") else ""
    return kind or "TrainingJob", name, controller.uid if controller is not None and kind else ""


_SYSTEMS: tuple[_System, ...] = (
    _ray_job,
    _train_job,
    _training_operator,
    _by_label("Workflow", "workflows.argoproj.io/workflow"),
    _by_label("InferenceService", "serving.kserve.io/inferenceservice"),
    _by_label("LeaderWorkerSet", "leaderworkerset.sigs.k8s.io/name"),
    _by_label("RayCluster", "ray.io/cluster"),
    _by_label("JobSet", "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"),
    _by_label("VolcanoJob", "volcano.sh/job-name"),
    _by_label("SkyPilot", "skypilot-cluster-name"),
    _by_label("Notebook", "notebook-name"),
    _by_label("Job", "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"),
    _by_label("Job", "job-name", "controller-uid"),
)
"""From the outermost to the innermost: the first that knows the pod names its job."""


def job_of(
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    controller: Controller | None,
) -> Job | None:
    """The job of a pod; None for one of which nothing says that it belongs to any."""
    named = next(
        (named for system in _SYSTEMS if (named := system(labels, controller)) is not None), None
    )
    if named is None:
        named = _airflow_run(labels, annotations) or _notebook(name, labels)
    if named is None and labels.get(SLURM_JOB):
        named = "SlurmJob", labels[SLURM_JOB], ""
    if named is None and controller is not None and controller.kind not in {"", "Node"}:
        named = _of_controller(controller)
    if named is None:
        return None
    kind, job_name, uid = named
    title = f"{kind} {namespace}/{job_name}"
    if UNSTORABLE.search(title + uid):
        return None
    return Job(title[:MAX_VALUE_CHARACTERS], uid[:MAX_VALUE_CHARACTERS])


def _airflow_ids(labels: _Text, annotations: _Text) -> tuple[str, str] | None:
    """The ids of the DAG and of its run, of a pod of Airflow."""
    if "dag_id" not in labels or "airflow_version" not in labels:
        return None
    # Above 63 characters a label is cut and hashed, and the annotation is whole.
    dag, run = (annotations.get(key) or labels.get(key, "") for key in ("dag_id", "run_id"))
    return dag, run


def _airflow_run(labels: _Text, annotations: _Text) -> _Named | None:
    ids = _airflow_ids(labels, annotations)
    if ids is None:
        return None
    dag, run = ids
    return "AirflowRun", f"{dag}/{run}" if run else dag, ""


def _notebook(name: str, labels: _Text) -> _Named | None:
    # A server's pod has one name whenever it is started again.
    return ("Notebook", name, "") if labels.get("component") == "singleuser-server" else None


def _of_controller(controller: Controller) -> _Named:
    if controller.kind == "ReplicaSet":
        # A new ReplicaSet for each version of one Deployment.
        return "Deployment", _HASH.sub("", controller.name), ""
    return controller.kind, controller.name, controller.uid


def people_of(
    labels: Mapping[str, str], annotations: Mapping[str, str], profile_owner: str = ""
) -> People:
    """For whom a pod runs; `profile_owner` is whose Kubeflow profile its namespace is."""
    user = (
        annotations.get("hub.jupyter.org/username")
        or labels.get("skypilot-user")
        or next((labels[name] for name in _CREATORS if labels.get(name)), "")
        or (profile_owner if "notebook-name" in labels else "")
    )
    tags = {}
    defaults = {}
    airflow = _airflow_ids(labels, annotations)
    if airflow is not None:
        tags = {
            key: annotations[key] for key in ("dag_id", "task_id", "run_id") if key in annotations
        }
        defaults = dict(zip(("experiment", "run"), airflow, strict=True))
    elif labels.get("pipeline/runid"):
        defaults = {"run": labels["pipeline/runid"]}
    user = "" if UNSTORABLE.search(user) else user[:MAX_VALUE_CHARACTERS]
    return People(
        user or None,
        {key: value[:MAX_VALUE_CHARACTERS] for key, value in tags.items()},
        {key: value[:MAX_VALUE_CHARACTERS] for key, value in defaults.items() if value},
    )


_CREATORS = (
    "workflows.argoproj.io/creator-preferred-username",
    "workflows.argoproj.io/creator-email",
    "workflows.argoproj.io/creator",
)
"""Argo's labels of who submitted a workflow, on pods whose template has them."""

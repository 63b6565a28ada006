"""Jobs inside a shared Ray cluster: whose processes are on a card that a pod of the cluster holds.

To Kubernetes a RayCluster is one owner, however many people submit jobs to it. Ray starts the
workers of each job with the job's number in their environment (`RAY_JOB_ID`), and what a job starts
itself inherits its submission (`RAY_JOB_CONFIG_JSON_ENV_VAR`). So a card that a pod of the cluster
holds is held by the jobs that are alive on it, in equal parts, since Ray enforces no fractions;
where none is, by the pod: that is the cluster's own idle time.

Whose job it is stands in the metadata that it was submitted with, which Ray's job API has
(`GET /api/jobs/ID`). The address of that API is a setting, never taken from a process. A job is
submitted by a user, so its metadata choose only between owners that the namespace allows.

Only clusters that the setting names are looked into: the environment of a process may hold secrets.
Of it, these two variables are kept.

Numbers of jobs begin again when a cluster's head restarts, so an answer is used for RECHECK_S only.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from gpuledger_agent.owners.labels import MAX_VALUE_CHARACTERS, tags_of
from gpuledger_agent.owners.pod_jobs import SLURM_TAG
from gpuledger_agent.owners.pod_owners import refused_levels
from gpuledger_agent.owners.processes import read_start_time, workload_of_cgroup
from gpuledger_agent.settings import is_web_address
from gpuledger_common.http_exchange import BoundedConnection
from gpuledger_common.readings import AgentError, Holder, Holders, Process, Sample, Workload

if TYPE_CHECKING:
    from gpuledger_agent.owners.kubernetes_api import NamespaceFacts, PodFacts

log = logging.getLogger("gpuledger_agent")

MAX_CLUSTERS = 64
MAX_JOBS = 1_000
"""Jobs whose metadata are known at a time."""
MAX_PROCESSES = 4_096
MAX_ANSWER_BYTES = 256 * 1024
MAX_ENVIRONMENT_BYTES = 1024 * 1024
READ_S, MAX_HANGING = 0.5, 4
"""How long a sample waits for an environment, and how many may hang before no further one is read."""
TIMEOUT_S = 2.0
ASK_S = 10.0
"""How long one round of questions may take; the other jobs are asked for at the next."""
RECHECK_S, RETRY_S = 600.0, 60.0
"""After which an answer is asked for again, and a failed question."""
UNUSED_S = 60.0
"""How long a job without a process is remembered."""
CLUSTER = "ray.io/cluster"
"""Label of the pods of a cluster."""
_NAME = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9.-]{1,253}")
_NUMBER = re.compile(r"[0-9a-f]{8}")
_SUBMISSION = re.compile(r"[\w.-]{1,200}", re.ASCII)
_NOBODY = "ffffffff"
"""The number of workers that Ray started before it had a job for them."""
_ID, _CONFIG = b"RAY_JOB_ID", b"RAY_JOB_CONFIG_JSON_ENV_VAR"
_LEVELS = ("org", "team", "project", "experiment", "run")
_OWN = ("namespace", "pod", "pod_uid", "container", SLURM_TAG)
"""Tags of a pod that no metadata replaces."""


class RayFailed(AgentError):
    """A job API gave no usable answer; the message says why."""


@dataclass(frozen=True, slots=True)
class RayJob:
    """A job as the job API of its cluster has it."""

    number: str
    submission: str
    metadata: Mapping[str, str]


def ray_clusters(text: str) -> dict[str, str]:
    """Addresses of job APIs by NAMESPACE/CLUSTER, empty where none is given. Raises ValueError."""
    clusters = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, mark, url = (part.strip() for part in entry.partition("="))
        shown = entry.rpartition("@")[2]  # without a password
        if not _NAME.fullmatch(name) or (mark and not is_web_address(url)):
            raise ValueError(f"{shown!r} is not NAMESPACE/CLUSTER[=http://HOST[:PORT]]")
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ValueError(f"{shown!r} must not hold a user name, a password or a query")
        clusters[name] = url.rstrip("/")
    if len(clusters) > MAX_CLUSTERS:
        raise ValueError(f"has {len(clusters)} clusters, {MAX_CLUSTERS} are allowed")
    return clusters


def ask_job(url: str, name: str) -> RayJob | None:
    """A job by its number or its submission; None where the cluster has none. Raises RayFailed."""
    connection = BoundedConnection(url, timeout_s=TIMEOUT_S, max_bytes=MAX_ANSWER_BYTES)
    target = f"{urlsplit(url).path}/api/jobs/{quote(name, safe='')}"
    try:
        answer = connection.exchange("GET", target, headers={"Accept": "application/json"})
    except (OSError, http.client.HTTPException) as error:
        raise RayFailed(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if answer.status == http.client.NOT_FOUND:
        return None
    if answer.status != http.client.OK:
        raise RayFailed(f"HTTP status {answer.status}")
    try:
        content = json.loads(answer.body)
        number, submission = content["job_id"] or "", content["submission_id"] or ""
        metadata = {key: value for key, value in (content["metadata"] or {}).items() if value}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RayFailed("the answer is no job") from error
    if not all(isinstance(text, str) for text in (number, submission, *metadata.values())):
        raise RayFailed("the answer is no job")
    # Whoever submits jobs runs code beside this API, so an answer is as little to be trusted as an
    # environment: what a workload is known by must be what Ray itself writes.
    if number and not _NUMBER.fullmatch(number):
        raise RayFailed("the number of the job is none")
    return RayJob(
        number, submission if _SUBMISSION.fullmatch(submission) else "", tags_of(metadata)
    )


def job_of_environment(environment: bytes) -> str | None:
    """The number or the submission of a process's job: a number of nobody where Ray started it
    before it had a job; None outside of one.
    """
    named = dict(
        entry.split(b"=", 1)
        for entry in environment.split(b"\0")
        if entry.startswith((_ID + b"=", _CONFIG + b"="))
    )
    # A driver inherits the number of the job that started it, and its own submission.
    if _CONFIG in named:
        try:
            submission = json.loads(named[_CONFIG])["metadata"]["job_submission_id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            submission = None
        if isinstance(submission, str) and _SUBMISSION.fullmatch(submission):
            return submission
    number = named.get(_ID, b"").decode("ascii", errors="replace")
    return number if _NUMBER.fullmatch(number) else None


class RayProcesses:
    """The jobs of processes, each read once: no process changes its own afterwards.

    To read an environment takes a lock on the memory of its process, which one that hangs in a
    driver never gives back. So each is read by a thread of its own.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[tuple[int, str, str], str | None] = {}
        self._is_denied = False
        self._hanging: list[threading.Thread] = []

    def job_of(self, pid: int, pod_uid: str) -> str | None:
        """The job of a process of this pod; None for one of another pod or of no job."""
        started = read_start_time(self._proc, pid)
        if started is None:
            return None
        key = pid, started, pod_uid
        if key not in self._known:
            self._hanging = [thread for thread in self._hanging if thread.is_alive()]
            if len(self._hanging) >= MAX_HANGING:
                return None
            while len(self._known) >= MAX_PROCESSES:
                self._known.pop(next(iter(self._known)))
            self._known[key] = self._read(self._proc / str(pid), pod_uid)
        return self._known[key]

    def _read(self, folder: Path, pod_uid: str) -> str | None:
        try:
            cgroup = (folder / "cgroup").read_bytes().decode(errors="replace")
            # A process of another pod may call itself a worker of this cluster.
            if workload_of_cgroup(cgroup) != ("kubernetes", pod_uid):
                return None
            return job_of_environment(self._environment(folder / "environ"))
        except PermissionError:
            if not self._is_denied:
                self._is_denied = True
                log.warning(
                    "owners ray: jobs inside clusters are unknown: environments of processes may not"
                    " be read (CAP_SYS_PTRACE)"
                )
        except OSError:  # the process has ended
            pass
        return None

    def _environment(self, path: Path) -> bytes:
        """What a process was started with; nothing of one that hangs. Raises OSError."""
        answers: list[bytes | OSError] = []

        def read() -> None:
            try:
                with path.open("rb") as file:
                    answers.append(file.read(MAX_ENVIRONMENT_BYTES))
            except OSError as error:
                answers.append(error)

        thread = threading.Thread(target=read, name="ray environment", daemon=True)
        thread.start()
        thread.join(READ_S)
        if not answers:
            log.warning("owners ray: process %s hangs: its job is unknown", path.parent.name)
            self._hanging.append(thread)
            return b""
        (answer,) = answers
        if isinstance(answer, OSError):
            raise answer
        return answer


@dataclass(slots=True)
class _Entry:
    job: RayJob | None = None
    asked_s: float | None = None
    used_s: float = 0.0


_JobKey = tuple[str, str]
"""Cluster as NAMESPACE/NAME, and number or submission."""


@dataclass(slots=True)
class RayOwners:
    """Divides cards of pods of Ray clusters among the jobs alive on them.

    `ask` is called by a thread of its own, so that no sample waits for a job API.
    """

    clusters: Mapping[str, str]
    processes: RayProcesses = field(default_factory=RayProcesses)
    clock: Callable[[], float] = time.monotonic
    _jobs: dict[_JobKey, _Entry] = field(default_factory=dict, init=False)
    _workloads: dict[tuple[str, str], tuple[Workload, RayJob | None, NamespaceFacts, Workload]] = (
        field(default_factory=dict, init=False)
    )
    """Workloads by pod and job, with what they were made of."""
    _said: set[tuple[str, str]] = field(default_factory=set, init=False)

    def divide(
        self,
        held: Holders,
        samples: Sequence[Sample],
        pods: Iterable[tuple[str, PodFacts]],
        namespaces: Mapping[str, NamespaceFacts],
        no_namespace: NamespaceFacts,
    ) -> Holders:
        """These holders with pods of clusters replaced by the jobs that run in them.

        `pods` are namespaces and facts of the node's pods.
        """
        clusters = {}
        for namespace, facts in pods:
            cluster = f"{namespace}/{facts.labels.get(CLUSTER, '')}"
            if cluster in self.clusters:
                clusters[facts.uid] = cluster
        if not clusters:
            return held
        processes = {sample.uuid: sample.processes for sample in samples}
        before, self._workloads = self._workloads, {}
        divided = dict(held)
        for uuid, holders in held.items():
            parts: list[tuple[Holder, list[Workload]]] = []
            for holder in holders:
                pod = holder.workload
                cluster = clusters.get(pod.id, "")
                jobs = self._alive(cluster, pod, processes.get(uuid, ())) if cluster else {}
                space = namespaces.get(cluster.partition("/")[0], no_namespace)
                own = [
                    self._workload(pod, cluster, name, job, space, before)
                    for name, job in sorted(jobs.items())
                ]
                parts.append((holder, own))
            if any(own for _, own in parts):
                divided[uuid] = _weigh(parts)
        return divided

    def ask(self) -> int:
        """Ask for the jobs that are new or old; how many were asked for."""
        now, until, asked = self.clock(), time.monotonic() + ASK_S, 0
        silent: set[str] = set()
        for key, entry in list(self._jobs.items()):
            if now - entry.used_s > UNUSED_S:
                self._jobs.pop(key, None)
                continue
            wait_s = RETRY_S if entry.job is None else RECHECK_S
            if entry.asked_s is not None and now - entry.asked_s < wait_s:
                continue
            if time.monotonic() > until:
                break
            cluster, name = key
            if cluster in silent:  # the jobs of others must not wait for it
                continue
            asked += 1
            try:
                entry.job = ask_job(self.clusters[cluster], name)
            except RayFailed as error:
                silent.add(cluster)
                self._say("api", cluster, f"teams and users of its jobs are unknown: {error}")
            else:
                self._said.discard(("api", cluster))
            entry.asked_s = now
        return asked

    def _alive(
        self, cluster: str, pod: Workload, processes: Iterable[Process]
    ) -> dict[str, RayJob | None]:
        """The jobs of a pod's processes by number, or by submission while that is not known."""
        jobs: dict[str, RayJob | None] = {}
        for process in processes:
            name = self.processes.job_of(process.pid, pod.id)
            if name == _NOBODY:
                self._say(
                    "prestart",
                    cluster,
                    "workers that Ray started before their job count as the cluster's: set"
                    " RAY_prestart_worker_first_driver=0 in its pods",
                )
            elif name is not None:
                job = self._find(cluster, name)
                jobs[name if job is None else job.number or name] = job
        return jobs

    def _find(self, cluster: str, name: str) -> RayJob | None:
        if not self.clusters[cluster]:
            return None
        entry = self._jobs.get((cluster, name))
        if entry is None:
            if len(self._jobs) >= MAX_JOBS:
                return None
            entry = self._jobs[cluster, name] = _Entry()
        entry.used_s = self.clock()
        return entry.job

    def _workload(
        self,
        pod: Workload,
        cluster: str,
        name: str,
        job: RayJob | None,
        space: NamespaceFacts,
        before: Mapping[tuple[str, str], tuple[Workload, RayJob | None, NamespaceFacts, Workload]],
    ) -> Workload:
        known = before.get((pod.id, name))
        # What a workload is made of are the same objects until somebody is asked again.
        if known is None or known[0] is not pod or known[1] is not job or known[2] is not space:
            known = pod, job, space, workload_of_job(pod, cluster, name, job, space)
        self._workloads[pod.id, name] = known
        return known[3]

    def _say(self, kind: str, cluster: str, sentence: str) -> None:
        if (kind, cluster) not in self._said:
            self._said.add((kind, cluster))
            log.warning("owners ray: cluster %s: %s", cluster, sentence)


def workload_of_job(
    pod: Workload, cluster: str, name: str, job: RayJob | None, space: NamespaceFacts
) -> Workload:
    """A job in a pod of its cluster as a workload.

    Its metadata go before the labels of the pod. Where they name an owner, what the pod says of
    levels below is about the cluster, not about the job.
    """
    metadata = {} if job is None else job.metadata
    refused = refused_levels(metadata, space.labels, space.annotations)
    taken = refused.keys() | {SLURM_TAG}
    said = tags_of({key: value for key, value in metadata.items() if key not in taken})
    highest = next((at for at, level in enumerate(_LEVELS) if level in said), len(_LEVELS))
    tags = {
        key: value for key, value in pod.tags.items() if key not in _LEVELS[highest + 1 :]
    } | said
    tags |= {key: pod.tags[key] for key in _OWN if key in pod.tags}
    called = name if job is None else job.submission or name
    return replace(
        pod,
        id=f"{pod.id}/{name}",
        user=said.get("user") or pod.user,
        name=f"{pod.name} {called}"[:MAX_VALUE_CHARACTERS],
        tags=tags | {"ray_cluster": cluster, "ray_job_id": name},
        job=f"RayJob {cluster}/{called}"[:MAX_VALUE_CHARACTERS],
        job_uid=f"{pod.job_uid}/{name}"[:MAX_VALUE_CHARACTERS] if pod.job_uid else None,
        refused={level: owner[:MAX_VALUE_CHARACTERS] for level, owner in refused.items()},
    )


def _weigh(parts: Sequence[tuple[Holder, Sequence[Workload]]]) -> list[Holder]:
    """Holders of one card: the part of a pod goes to its jobs equally, the others stay."""
    scale = math.lcm(*(len(own) or 1 for _, own in parts))
    holders = []
    for holder, own in parts:
        weight = holder.weight * scale
        holders += [Holder(workload, weight // len(own)) for workload in own] or [
            replace(holder, weight=weight)
        ]
    return holders

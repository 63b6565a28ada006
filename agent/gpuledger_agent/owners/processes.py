"""Owners from processes: who runs on an accelerator, by cgroup (Slurm job, pod, container) and by
unix user.

A process is identified by (pid, start time), because pids are reused. /proc/PID/cgroup is readable
by all; the environment of a process, which may hold secrets, is not read here (`ray` reads it for
clusters that a setting names). This source sees use
without an allocation; allocation without use is seen by the sources of the schedulers.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuledger_common.readings import Accelerator, Holder, Holders, Sample, Workload

_SLURM = re.compile(
    r"^\d+:[^:]*:/(?:.*?/)?(?:slurm[^/]*/uid_\d+|(?:[^/]*_)?slurmstepd\.scope)/job_(\d+)(?:/|$)",
    re.MULTILINE,
)
"""v1 `/slurm[_NODE]/uid_U/job_N/step_S`, v2 `/system.slice/[NODE_]slurmstepd.scope/job_N/step_S`,
even inside a pod.
"""
_POD = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
)
"""A pod's UID; a static pod has a hash of 32 digits."""
_CONTAINER = re.compile(r"/(?:[a-z-]+[-:])?([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
"""The name of a container's cgroup in docker, podman, containerd and CRI-O: its id, or
PREFIX-ID.scope.
"""
_USERS_OWN = re.compile(r"/user\.slice(?:/user-(\d+)\.slice)?(?:/.*)?$", re.MULTILINE)
"""Below here users name cgroups themselves (`systemd-run --user --unit docker-ID`): such names are
never trusted, or a user could run at another's expense.
"""
MAX_KNOWN = 4096


def workload_of_cgroup(text: str) -> tuple[str, str] | None:
    """Kind and id of the workload in a /proc/PID/cgroup: of the innermost scheduler; None without
    one.

    A container of a user's own engine (rootless) gets the user into its id, `user-1000/ID`, so that
    no other container can have that id.
    """
    # Remove the part that users name themselves before anything is recognized in the rest.
    own = _USERS_OWN.search(text)
    text = _USERS_OWN.sub("/", text)
    # Slurm before pods before containers: a job may run in a pod, and a pod's processes are in
    # containers.
    job = _SLURM.search(text)
    if job:
        return "slurm", job[1]
    pod = _POD.search(text)
    if pod:
        return "kubernetes", pod[1].replace("_", "-")
    container = _CONTAINER.search(text)
    if container:
        return "container", container[1][:12]
    rootless = _CONTAINER.search(own[0]) if own else None
    if own and own[1] and rootless:
        return "container", f"user-{own[1]}/{rootless[1][:12]}"
    return None


def user_name(uid: int) -> str:
    """The unix user of an id; the number itself when the node does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name.encode(errors="replace").decode()
    except (KeyError, OverflowError):
        return str(uid)


def read_start_time(proc: Path, pid: int) -> str | None:
    """Field 22 of /proc/PID/stat (proc(5)), counted from the last bracket, because the command may
    contain some; None for a process that has ended.
    """
    try:
        return _text(proc / str(pid) / "stat").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _text(path: Path) -> str:
    """A file of /proc.

    A process may name itself any bytes (prctl(2)); none of them may hide it or its neighbors.
    """
    return path.read_bytes().decode(errors="replace")


class ProcessOwners:
    """Looks processes up in /proc and caches them by (pid, start time).

    `describers` add what other owner sources know of a workload: a container gets its name and
    labels.
    """

    name = "processes"

    def __init__(
        self,
        proc: Path = Path("/proc"),
        names: Callable[[int], str] = user_name,
        describers: Sequence[Callable[[Workload], Workload]] = (),
    ) -> None:
        self._proc, self._names, self._describers = proc, names, describers
        self._known: dict[tuple[int, str], Workload] = {}

    def holders(self, _accelerators: Sequence[Accelerator], samples: Sequence[Sample]) -> Holders:
        """The workloads of the processes on each accelerator; a workload with several processes
        there counts once.
        """
        holders: dict[str, Sequence[Holder]] = {}
        for sample in samples:
            workloads: dict[tuple[str, str], Workload] = {}
            for process in sample.processes:
                workload = self.workload(process.pid)
                if workload is not None:
                    workloads.setdefault((workload.kind, workload.id), workload)
            if workloads:
                holders[sample.uuid] = [
                    Holder(self._describe_workload(workload)) for workload in workloads.values()
                ]
        return holders

    def _describe_workload(self, workload: Workload) -> Workload:
        for describe in self._describers:
            workload = describe(workload)
        return workload

    def workload(self, pid: int) -> Workload | None:
        """The workload of a process; None when it has ended or is not visible."""
        started = read_start_time(self._proc, pid)
        if started is None:
            return None
        # Process ids are reused: with its start time a process is unique since the boot.
        key = (pid, started)
        workload = self._known.get(key)
        if workload is None:
            workload = self._read_workload(pid, started)
            if workload is not None:
                # Dictionaries keep their order: the oldest entry goes first.
                while len(self._known) >= MAX_KNOWN:
                    self._known.pop(next(iter(self._known)))
                self._known[key] = workload
        return workload

    def _read_workload(self, pid: int, started: str) -> Workload | None:
        folder = self._proc / str(pid)
        try:
            status, cgroup = _text(folder / "status"), _text(folder / "cgroup")
            command = _text(folder / "comm").strip()
        except OSError:
            return None
        uid = next(
            (line.split()[1] for line in status.splitlines() if line.startswith("Uid:")), None
        )
        user = None if uid is None else self._names(int(uid))
        owned = workload_of_cgroup(cgroup)
        if owned is None:
            return Workload(
                f"{user or 'unknown'}:{command}:{pid}:{started}", "process", user, None, command
            )
        kind, identity = owned
        if kind == "slurm":
            return Workload(identity, "slurm", user, None, f"job {identity}")
        if kind == "kubernetes":
            return Workload(
                identity, "kubernetes", user, None, f"pod {identity}", {"pod_uid": identity}
            )
        return Workload(identity, "container", user, None, f"container {identity}")

"""Whether a Slurm job that a file names still has the node: a job whose epilog never ran must not
be billed forever.

Signs of life are the steps that slurmstepd keeps for a job: its cgroups (v1
`CONTROLLER/slurm[_NODE]/uid_U/job_N`, v2 `system.slice/[NODE_]slurmstepd.scope/job_N`; the
`SlurmdCgroupRoot` of cgroup.conf(5)), and its processes, which are called `slurmstepd: [JOB.STEP]`
where cgroups are not used. A job without a step may still hold its GPUs (an allocation of salloc
between two sruns), so their absence alone ends a job only if it had an *extern* step, which lives
as long as the job does (slurm.conf(5), PrologFlags=Contain).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 15.0
"""Seconds between two scans of cgroups and processes."""
GRACE_S = 60.0
"""Seconds that a job may lack a sign of life: prologs run before the first step starts."""
OVERTIME_S = 600.0
"""Seconds after a job's time limit until it counts as ended (KillWait, a slow epilog)."""
FORGOTTEN_S = 86_400.0
"""Seconds after which a file without a time limit, of a job without a sign of life, counts as left
behind.
"""

_STEPS = ("system.slice/*slurmstepd.scope/job_*/step_*", "*/slurm*/uid_*/job_*/step_*")
_STEP = re.compile(r"/job_(\d+)/step_(\w+)")
_TITLE = re.compile(rb"slurmstepd: \[(\d+)\.(\w+)")


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """When a file was written: unix seconds, the boot and the end of the job's time limit where
    they are known.
    """

    at_s: float
    boot_id: str | None = None
    until_s: float | None = None


class JobLiveness:
    """Signs of life of the node's jobs, scanned at most every LOOK_S."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._cgroups, self._wall_s, self._monotonic_s = (
            proc,
            cgroups,
            wall_s,
            monotonic_s,
        )
        self._scanned_s: float | None = None
        self._alive: frozenset[str] = frozenset()
        self._extern: set[str] = set()
        self._missing_since: dict[str, float] = {}

    def why_ended(self, job: str, written: WriteRecord) -> str | None:
        """Why a job no longer holds the GPUs in its file, as the end of a sentence; None while it
        holds them.
        """
        self._scan()
        if job in self._alive:
            return None
        if self._before_boot(written):
            return "was written before this boot"
        # The first scan without a sign of life starts the grace period.
        missing_s = self._monotonic_s() - self._missing_since.setdefault(job, self._monotonic_s())
        if missing_s < GRACE_S:
            return None
        # The extern step lasts as long as the job, so one that was seen and is gone proves the end.
        # Without it (no PrologFlags=contain) a job may rightly have no step, and only the time
        # limit or a day decides.
        if job in self._extern:
            return "is of a job whose extern step has ended"
        now_s = self._wall_s()
        if written.until_s is not None:
            late = now_s > written.until_s + OVERTIME_S
            return "is of a job without a step whose time limit has passed" if late else None
        return (
            "has been there for a day without a step of its job"
            if now_s > written.at_s + FORGOTTEN_S
            else None
        )

    def keep(self, jobs: set[str]) -> None:
        """Forget every job but these."""
        self._extern &= jobs
        self._missing_since = {
            job: since for job, since in self._missing_since.items() if job in jobs
        }

    def _scan(self) -> None:
        now_s = self._monotonic_s()
        if self._scanned_s is not None and now_s - self._scanned_s < LOOK_S:
            return
        self._scanned_s = now_s
        steps = set(self._cgroup_steps()) | set(self._process_steps())
        self._alive = frozenset(job for job, _ in steps)
        self._extern |= {job for job, step in steps if step == "extern"}
        for job in self._alive:
            self._missing_since.pop(job, None)

    def _cgroup_steps(self) -> Iterator[tuple[str, str]]:
        for pattern in _STEPS:
            for path in self._cgroups.glob(pattern):
                match = _STEP.search(str(path))
                if match:
                    yield match[1], match[2]

    def _process_steps(self) -> Iterator[tuple[str, str]]:
        try:
            processes = [path for path in self._proc.iterdir() if path.name.isdecimal()]
        except OSError:
            return
        for process in processes:
            try:
                match = _TITLE.match((process / "cmdline").read_bytes())
            except OSError:
                continue
            if match:
                yield match[1].decode(), match[2].decode()

    def _before_boot(self, written: WriteRecord) -> bool:
        # The boot id is exact. The boot time is a fallback: it moves with the wall clock.
        if written.boot_id:
            try:
                return (
                    self._proc / "sys/kernel/random/boot_id"
                ).read_text().strip() != written.boot_id
            except OSError:
                return False
        try:
            lines = (self._proc / "stat").read_text().splitlines()
            booted_s = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        except (OSError, StopIteration, ValueError, IndexError):
            return False
        return written.at_s < booted_s

"""Owners from Slurm: the jobs that *hold* each accelerator, running or not, from files that a
prolog wrote.

One or two folders are read; a job in both counts once.

`jobs_dir`: our own prolog's (deploy/slurm), a file per job, named by its id, of lines `name=value`:
job_id, cluster, account, user, partition, job_name, comment, wckey, gpus (indices), uuids, shards,
boot_id, until (unix seconds).

`mapping_dir`: other programs', a file per accelerator, named by its index, `index.gi` (a GPU
instance's id) or UUID. A line is a job id (dcgm-exporter's --hpc-job-mapping-dir; the index is
NVML's) or `jobid uid` (jobstats' /run/gpustat; the index is the device's minor number).

Jobs on one accelerator share it equally, or by their shards where the files of all of them have
shards.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger_agent.owners.processes import user_name
from gpuledger_agent.owners.slurm_liveness import JobLiveness, WriteRecord
from gpuledger_agent.settings import Settings
from gpuledger_common.readings import Accelerator, Holder, Holders, Sample, Workload

log = logging.getLogger(__name__)

SIGNS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
"""Files of which every node of a Slurm cluster has one."""
FACTS = frozenset({"kind", "user", "account", "name", "pool", "node"})
"""Names that attribution rules match as facts; a tag of such a name would let a comment change the
account.
"""
MAX_FILE_BYTES = 64 * 1024
MAX_FILES = 4096
MAX_TAGS = 32
MAX_TEXT = 250
_PAIR = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*=\s*([^;,]*)")
_JOB = re.compile(r"[0-9]{1,18}")
_MAPPED_JOB = re.compile(r"([0-9]{1,18})(?:_[0-9]+)?")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/\d+")
"""Names of MIG instances in drivers before R470: device, GPU instance, compute instance."""


class BadJobFile(Exception):
    """A file that cannot be used, with the reason."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the node.

    `gpu_names` are UUIDs and numbers as written; `minor`: numbers are minors, not indices.
    """

    workload: Workload
    written: WriteRecord
    gpu_names: tuple[str, ...]
    minor: bool = True
    shards: int | None = None


@dataclass(frozen=True, slots=True)
class _CachedFile:
    """The jobs of a file; `version` (inode, mtime, size) changes when the file does."""

    version: tuple[int, int, int]
    jobs: tuple[Job, ...]


@dataclass
class SlurmOwners:
    """The jobs in the folders' files; a file is read again when it changes, and a missing folder
    has no jobs.
    """

    jobs_dir: Path | None
    mapping_dir: Path | None = None
    liveness: JobLiveness = field(default_factory=JobLiveness)
    names: Callable[[int], str] = user_name
    drivers: Path = Path("/proc/driver/nvidia/gpus")
    name: str = field(default="slurm", init=False)
    _cache: dict[Path, _CachedFile] = field(default_factory=dict, init=False)
    _logged: set[tuple[Path, str]] = field(default_factory=set, init=False)
    _accelerators: Sequence[Accelerator] | None = field(default=None, init=False)
    _gpus: _GpuNames = field(init=False)

    def holders(self, accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The jobs that hold each accelerator now; never raises, whatever a folder contains."""
        # The sampler passes the same object until the inventory changes.
        if accelerators is not self._accelerators:
            self._accelerators, self._gpus = (
                accelerators,
                _GpuNames(accelerators, minors(self.drivers)),
            )
        by_uuid: dict[str, dict[str, Job]] = {}
        problems: set[tuple[Path, str]] = set()
        jobs = [(path, job) for path in self._files(problems) for job in self._cache[path].jobs]
        for path, job in jobs:
            ended = self.liveness.why_ended(job.workload.id, job.written)
            if ended:
                self._log_once(path, f"{ended}; it no longer holds anything", problems)
                continue
            for name in job.gpu_names:
                uuids = self._gpus.uuids(name, job.minor)
                if not uuids:
                    self._log_once(
                        path, f"names the GPU {name!a}, which this node does not have", problems
                    )
                for uuid in uuids:
                    by_uuid.setdefault(uuid, {}).setdefault(job.workload.id, job)
        self.liveness.keep({job.workload.id for _, job in jobs})
        self._logged = problems
        return {uuid: _holders(list(by_id.values())) for uuid, by_id in by_uuid.items()}

    def _files(self, problems: set[tuple[Path, str]]) -> list[Path]:
        """The usable files, our own first; `problems` collects the reasons against the others."""
        cache: dict[Path, _CachedFile] = {}
        for folder, mapping in ((self.jobs_dir, False), (self.mapping_dir, True)):
            if folder is None:
                continue
            try:
                with os.scandir(folder) as entries:
                    names = sorted(
                        entry.name for entry in entries if not entry.name.startswith(".")
                    )
            except FileNotFoundError:
                continue
            except OSError as error:
                self._log_once(folder, f"cannot be read ({error.strerror})", problems)
                continue
            for name in names[:MAX_FILES]:
                path = folder / name
                try:
                    cache[path] = self._read(path, mapping)
                except FileNotFoundError:  # its job ended in the meantime
                    continue
                except OSError as error:
                    self._log_once(path, f"cannot be read ({error.strerror})", problems)
                except BadJobFile as error:
                    self._log_once(path, str(error), problems)
        self._cache = cache
        return list(cache)

    def _log_once(self, path: Path, reason: str, problems: set[tuple[Path, str]]) -> None:
        """Log a problem, once for as long as it lasts."""
        if (path, reason) not in self._logged | problems:
            log.warning("%s %s", path, reason)
        problems.add((path, reason))

    def _read(self, path: Path, mapping: bool) -> _CachedFile:
        """The file, from the cache while it is unchanged. Raises OSError and BadJobFile."""
        # Not stat: a link is refused when the file is opened (O_NOFOLLOW), and its target says
        # nothing about it.
        status = path.lstat()
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._cache.get(path)
        if known is not None and known.version == version:
            return known
        text, written_s = _text(path), status.st_mtime
        if mapping:
            return _CachedFile(version, mapped_jobs(path.name, text, written_s, self.names))
        return _CachedFile(version, (prolog_job(path.name, text, written_s),))


def slurm_owners(settings: Settings) -> SlurmOwners | None:
    """Owners from this node's Slurm; None where neither a folder nor a configuration of Slurm
    exists.

    The folder of our prolog is created by the first job, so a configuration alone is enough.
    """
    jobs, mapping = settings.slurm_jobs_dir, settings.slurm_mapping_dir
    if mapping is not None or (
        jobs is not None and (jobs.is_dir() or any(path.exists() for path in SIGNS))
    ):
        return SlurmOwners(jobs, mapping)
    return None


def _text(path: Path) -> str:
    """A regular file's text; invalid UTF-8 becomes U+FFFD, so that a job with an odd name is still
    billed.
    """
    # Never block on a fifo.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadJobFile("is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise BadJobFile(f"is larger than {MAX_FILE_BYTES} bytes")
    return content.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def prolog_job(name: str, text: str, written_s: float) -> Job:
    """The job in a file of our prolog. Raises BadJobFile."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            values.setdefault(key.strip(), value.strip()[: 4 * MAX_TEXT])
    # The name is checked against the content, so that a file that was copied or renamed bills
    # nobody.
    if not _JOB.fullmatch(name) or values.get("job_id") != name:
        raise BadJobFile(f"has the job id {values.get('job_id', '')!a}, which is not its name")
    gpu_names = _list_indices(values.get("uuids", "")) or _numbers(values.get("gpus", ""))
    if not gpu_names:
        raise BadJobFile("names no GPU in uuids= or gpus=")
    workload = Workload(
        name,
        "slurm",
        _short(values, "user"),
        _short(values, "account"),
        _short(values, "job_name"),
        tags_of(values),
    )
    until = values.get("until", "")
    shards = values.get("shards", "")
    written = WriteRecord(
        written_s, values.get("boot_id") or None, float(until) if _JOB.fullmatch(until) else None
    )
    return Job(
        workload, written, gpu_names, shards=int(shards) or None if _JOB.fullmatch(shards) else None
    )


def mapped_jobs(
    name: str, text: str, written_s: float, names: Callable[[int], str] = user_name
) -> tuple[Job, ...]:
    """The jobs in a file of dcgm-exporter or jobstats about one accelerator. Raises BadJobFile."""
    if not (_NUMBER.fullmatch(name) or name.startswith(("GPU-", "MIG-"))):
        raise BadJobFile("is named neither by a GPU's index nor by a UUID")
    jobs = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        job = _MAPPED_JOB.fullmatch(words[0])
        uid = words[1] if len(words) > 1 else None
        if (
            not job
            or len(words) > 2
            or (uid is not None and not (uid.isascii() and uid.isdecimal() and len(uid) < 11))
        ):
            raise BadJobFile(
                f"line {number}: {line[:60]!a} is neither a job id nor a job id and a user id"
            )
        user = None if uid is None else names(int(uid))
        workload = Workload(job[0], "slurm", user, None, f"job {job[0]}")
        jobs.append(Job(workload, WriteRecord(written_s), (name,), minor=uid is not None))
    return tuple(jobs)


def tags_of(values: Mapping[str, str]) -> dict[str, str]:
    """Tags of a job, as in the import of sacct: the pairs in its comment and wckey, partition and
    cluster, and its account as the team where no pair names one. A pair never replaces a fact that
    Slurm itself gives.
    """
    tags: dict[str, str] = {}
    for text in (values.get("comment", ""), values.get("wckey", "")):
        for key, value in _PAIR.findall(text):
            if value.strip() and key not in FACTS and len(tags) < MAX_TAGS:
                tags.setdefault(key[:MAX_TEXT], value.strip()[:MAX_TEXT])
    wckey = values.get("wckey", "").lstrip("*")
    if wckey and "=" not in wckey:
        tags.setdefault("wckey", wckey[:MAX_TEXT])
    if values.get("account"):
        tags.setdefault("team", values["account"][:MAX_TEXT])
    return tags | {
        key: values[key][:MAX_TEXT] for key in ("partition", "cluster") if values.get(key)
    }


def _short(values: Mapping[str, str], key: str) -> str | None:
    return values.get(key, "")[:MAX_TEXT] or None


def _list_indices(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(text: str) -> tuple[str, ...]:
    """Indices such as `0,2-3`. Raises BadJobFile for anything else."""
    numbers: list[str] = []
    for part in _list_indices(text):
        first, dash, last = part.partition("-")
        if not (
            _NUMBER.fullmatch(first)
            and (not dash or (first.isdecimal() and re.fullmatch(r"[0-9]{1,4}", last)))
        ):
            raise BadJobFile(f"gpus: {part[:60]!a} is neither an index nor a range of indices")
        numbers += [str(number) for number in range(int(first), int(last) + 1)] if dash else [first]
    return tuple(dict.fromkeys(numbers))


def minors(drivers: Path) -> dict[str, str]:
    """The minor number (of /dev/nvidiaN) of each device by UUID, from the driver's proc files."""
    numbers = {}
    for path in sorted(drivers.glob("*/information")):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        entries = {
            key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
        }
        if entries.get("GPU UUID") and entries.get("Device Minor", "").isdecimal():
            numbers[entries["GPU UUID"]] = entries["Device Minor"]
    return numbers


class _GpuNames:
    """Accelerators by their names in files. The name of a device includes all its MIG instances."""

    def __init__(self, accelerators: Sequence[Accelerator], minor_of: Mapping[str, str]) -> None:
        self._by_uuid: dict[str, list[str]] = {}
        self._by_index: dict[str, list[str]] = {}
        self._by_minor: dict[str, list[str]] = {}
        for entry in accelerators:
            for key in {entry.uuid, entry.device_uuid}:
                self._by_uuid.setdefault(key, []).append(entry.uuid)
            index = str(entry.index)
            # Without the driver's proc files, indices are the best guess for minor numbers.
            minor = minor_of.get(entry.device_uuid, "") if minor_of else index
            instance = (entry.mig_instance or "").rpartition("/")[2]
            self._by_index.setdefault(index, []).append(entry.uuid)
            self._by_minor.setdefault(minor, []).append(entry.uuid)
            if instance:
                self._by_index.setdefault(f"{index}.{instance}", []).append(entry.uuid)
                self._by_minor.setdefault(f"{minor}.{instance}", []).append(entry.uuid)
                self._by_uuid.setdefault(f"{entry.device_uuid}/{instance}", []).append(entry.uuid)

    def uuids(self, name: str, minor: bool) -> Sequence[str]:
        """UUIDs of the accelerators with this name; empty when the node does not have it."""
        if _NUMBER.fullmatch(name):
            return (self._by_minor if minor else self._by_index).get(name, ())
        old = _OLD_MIG.fullmatch(name)
        return self._by_uuid.get(f"{old[1]}/{old[2]}" if old else name, ())


def _holders(jobs: list[Job]) -> tuple[Holder, ...]:
    """The holders of one accelerator: weights are shards where every job has them, else equal."""
    by_shards = all(job.shards is not None for job in jobs)
    # Job ids as numbers: shorter ones first, then by digits.
    ordered = sorted(jobs, key=lambda job: (len(job.workload.id), job.workload.id))
    return tuple(Holder(job.workload, job.shards or 1 if by_shards else 1) for job in ordered)

"""Owners from Slurm: which jobs *hold* each accelerator, running or not, from files that a prolog wrote.

Two folders are read, each by itself or both together; a job that both name counts once.

`jobs_dir`: our own prolog's (deploy/slurm), a file per job, named by its id, of lines `name=value`: job_id, cluster,
account, user, partition, job_name, comment, wckey, gpus (indices), uuids, shards, boot_id, until (unix seconds).

`mapping_dir`: those of others, a file per accelerator, named by its index, `index.gi` (a GPU instance's id) or UUID.
A line is a job id (dcgm-exporter's --hpc-job-mapping-dir, its index is NVML's) or `jobid uid` (jobstats' /run/gpustat,
its index is the device's minor number).

Jobs on one accelerator share it equally, or by their shards where the files of all of them tell shards.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger_agent.owners.places import Places
from gpuledger_agent.owners.processes import user_name
from gpuledger_agent.owners.slurm_alive import JobsAlive, Written
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload

log = logging.getLogger(__name__)

SIGNS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
"""What a node of a Slurm cluster has, one or the other of them."""
FACTS = frozenset({"kind", "user", "account", "name", "pool", "node"})
"""What rules match as facts; a tag of such a name would win over the fact, so that a comment could change accounts."""
MAX_FILE_BYTES = 64 * 1024
MAX_FILES = 4096
MAX_TAGS = 32
MAX_TEXT = 250
_PAIR = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*=\s*([^;,]*)")
_JOB = re.compile(r"[0-9]{1,18}")
_MAPPED_JOB = re.compile(r"([0-9]{1,18})(?:_[0-9]+)?")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/\d+")
"""What drivers before R470 call a MIG instance: device, GPU instance, compute instance."""


class BadFile(Exception):
    """A file that cannot be used, with the reason."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the node. `places` are UUIDs and numbers as written; `minor`: numbers are minors rather than indices."""

    workload: Workload
    written: Written
    places: tuple[str, ...]
    minor: bool = True
    shards: int | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was read last: what tells it from a changed one, and what it says."""

    version: tuple[int, int, int]
    jobs: tuple[Job, ...]


@dataclass
class SlurmOwners:
    """The folders' jobs, each file read again when it changes; a folder that is not there has no jobs."""

    jobs_dir: Path | None
    mapping_dir: Path | None = None
    alive: JobsAlive = field(default_factory=JobsAlive)
    names: Callable[[int], str] = user_name
    drivers: Path = Path("/proc/driver/nvidia/gpus")
    name: str = field(default="slurm", init=False)
    _seen: dict[Path, _Seen] = field(default_factory=dict, init=False)
    _told: set[tuple[Path, str]] = field(default_factory=set, init=False)
    _shown: Sequence[Accelerator] | None = field(default=None, init=False)
    _gpus: _Gpus = field(init=False)

    def holders(
        self,
        accelerators: Sequence[Accelerator],
        samples: Sequence[Sample],  # noqa: ARG002 - who holds is not inferred from who runs
    ) -> Mapping[str, Sequence[Holder]]:
        """The jobs that hold each accelerator now; never raises for what a folder holds."""
        if accelerators is not self._shown:
            self._shown, self._gpus = accelerators, _Gpus(accelerators, minors(self.drivers))
        found: dict[str, dict[str, Job]] = {}
        told: set[tuple[Path, str]] = set()
        jobs = [(path, job) for path in self._files(told) for job in self._seen[path].jobs]
        for path, job in jobs:
            ended = self.alive.why_ended(job.workload.id, job.written)
            if ended:
                self._tell(path, f"{ended}; it holds nothing any more", told)
                continue
            for place in job.places:
                uuids = self._gpus.uuids(place, job.minor)
                if not uuids:
                    self._tell(path, f"names the GPU {place!a}, which this node does not show", told)
                for uuid in uuids:
                    found.setdefault(uuid, {}).setdefault(job.workload.id, job)
        self.alive.keep({job.workload.id for _, job in jobs})
        self._told = told
        return {uuid: _shared(list(by_id.values())) for uuid, by_id in found.items()}

    def _files(self, told: set[tuple[Path, str]]) -> list[Path]:
        """The usable files, our own first; `told` collects what is wrong with the others."""
        present: dict[Path, None] = {}
        for folder, mapping in ((self.jobs_dir, False), (self.mapping_dir, True)):
            if folder is None:
                continue
            try:
                with os.scandir(folder) as entries:
                    names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._tell(folder, f"cannot be read ({error.strerror})", told)
                continue
            for name in names[:MAX_FILES]:
                path = folder / name
                try:
                    self._seen[path] = self._read(path, mapping)
                    present[path] = None
                except FileNotFoundError:  # its job ended while we looked
                    continue
                except OSError as error:
                    self._tell(path, f"cannot be read ({error.strerror})", told)
                except BadFile as error:
                    self._tell(path, str(error), told)
        self._seen = {path: self._seen[path] for path in present}
        return list(present)

    def _tell(self, path: Path, reason: str, told: set[tuple[Path, str]]) -> None:
        """Logs a sentence, once for as long as it stays true."""
        if (path, reason) not in self._told | told:
            log.warning("%s %s", path, reason)
        told.add((path, reason))

    def _read(self, path: Path, mapping: bool) -> _Seen:
        """The file, from memory while it is unchanged. Raises OSError and BadFile."""
        status = path.lstat()
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._seen.get(path)
        if known is not None and known.version == version:
            return known
        text = _text(path)
        written_s = status.st_mtime
        if mapping:
            return _Seen(version, mapped_jobs(path.name, text, written_s, self.names))
        return _Seen(version, (prolog_job(path.name, text, written_s),))


def slurm_owners(places: Places) -> SlurmOwners | None:
    """Owners from this node's Slurm; None where neither a folder nor a slurmd says that there is one.

    The folder of our prolog is made by the first job, so Slurm itself counts as a sign too.
    """
    jobs, mapping = places.slurm_jobs_dir, places.slurm_mapping_dir
    if mapping is not None or (jobs is not None and (jobs.is_dir() or any(path.exists() for path in SIGNS))):
        return SlurmOwners(jobs, mapping)
    return None


def _text(path: Path) -> str:
    """A regular file's text; what is no UTF-8 becomes U+FFFD, so that a job's odd name does not unbill the job."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)  # a fifo must not block us
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadFile("is no regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise BadFile(f"is larger than {MAX_FILE_BYTES} bytes")
    return content.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def prolog_job(name: str, text: str, written_s: float) -> Job:
    """What our prolog wrote. Raises BadFile."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            values.setdefault(key.strip(), value.strip()[: 4 * MAX_TEXT])
    if not _JOB.fullmatch(name) or values.get("job_id") != name:
        raise BadFile(f"has the job id {values.get('job_id', '')!a}, which is not its name")
    places = _listed(values.get("uuids", "")) or _numbers(values.get("gpus", ""))
    if not places:
        raise BadFile("names no GPU in uuids= or gpus=")
    workload = Workload(
        name, "slurm", _short(values, "user"), _short(values, "account"), _short(values, "job_name"), tags_of(values)
    )
    until = values.get("until", "")
    shards = values.get("shards", "")
    return Job(
        workload,
        Written(written_s, values.get("boot_id") or None, float(until) if _JOB.fullmatch(until) else None),
        places,
        shards=int(shards) if _JOB.fullmatch(shards) and int(shards) else None,
    )


def mapped_jobs(name: str, text: str, written_s: float, names: Callable[[int], str] = user_name) -> tuple[Job, ...]:
    """What dcgm-exporter's or jobstats' prolog wrote about one accelerator. Raises BadFile."""
    if not (_NUMBER.fullmatch(name) or name.startswith(("GPU-", "MIG-"))):
        raise BadFile("is named neither by a GPU's index nor by a UUID")
    jobs = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        job = _MAPPED_JOB.fullmatch(words[0])
        uid = words[1] if len(words) > 1 else None
        if not job or len(words) > 2 or (uid is not None and not (uid.isascii() and uid.isdecimal() and len(uid) < 11)):
            raise BadFile(f"line {number}: {line[:60]!a} is neither a job id nor a job id and a user id")
        user = None if uid is None else names(int(uid))
        workload = Workload(job[0], "slurm", user, None, f"job {job[0]}")
        jobs.append(Job(workload, Written(written_s), (name,), minor=uid is not None))
    return tuple(jobs)


def tags_of(values: Mapping[str, str]) -> dict[str, str]:
    """Tags of a job, as the import of sacct makes them: the pairs of its comment and wckey, and its account as the
    team where neither names one; partition and cluster besides. No pair stands in for what Slurm itself says.
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
    return tags | {key: values[key][:MAX_TEXT] for key in ("partition", "cluster") if values.get(key)}


def _short(values: Mapping[str, str], key: str) -> str | None:
    return values.get(key, "")[:MAX_TEXT] or None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(text: str) -> tuple[str, ...]:
    """Indices such as `0,2-3`. Raises BadFile for what is none."""
    numbers: list[str] = []
    for part in _listed(text):
        first, dash, last = part.partition("-")
        if not (_NUMBER.fullmatch(first) and (not dash or (first.isdecimal() and re.fullmatch(r"[0-9]{1,4}", last)))):
            raise BadFile(f"gpus: {part[:60]!a} is no index and no range of indices")
        numbers += [str(number) for number in range(int(first), int(last) + 1)] if dash else [first]
    return tuple(dict.fromkeys(numbers))


def minors(drivers: Path) -> dict[str, str]:
    """The minor number (of /dev/nvidiaN) of each device by UUID, as the driver's proc files tell it."""
    found = {}
    for path in sorted(drivers.glob("*/information")):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if told.get("GPU UUID") and told.get("Device Minor", "").isdecimal():
            found[told["GPU UUID"]] = told["Device Minor"]
    return found


class _Gpus:
    """Accelerators by what files call them. A device stands for all its MIG instances."""

    def __init__(self, accelerators: Sequence[Accelerator], minor_of: Mapping[str, str]) -> None:
        self._by_uuid: dict[str, list[str]] = {}
        self._by_index: dict[str, list[str]] = {}
        self._by_minor: dict[str, list[str]] = {}
        for entry in accelerators:
            for key in {entry.uuid, entry.device_uuid}:
                self._by_uuid.setdefault(key, []).append(entry.uuid)
            index = str(entry.index)
            minor = minor_of.get(entry.device_uuid, "") if minor_of else index
            instance = (entry.mig_instance or "").rpartition("/")[2]
            self._by_index.setdefault(index, []).append(entry.uuid)
            self._by_minor.setdefault(minor, []).append(entry.uuid)
            if instance:
                self._by_index.setdefault(f"{index}.{instance}", []).append(entry.uuid)
                self._by_minor.setdefault(f"{minor}.{instance}", []).append(entry.uuid)
                self._by_uuid.setdefault(f"{entry.device_uuid}/{instance}", []).append(entry.uuid)

    def uuids(self, place: str, minor: bool) -> Sequence[str]:
        """UUIDs of the accelerators that a name in a file means; none when the node shows no such one."""
        if _NUMBER.fullmatch(place):
            return (self._by_minor if minor else self._by_index).get(place, ())
        old = _OLD_MIG.fullmatch(place)
        return self._by_uuid.get(f"{old[1]}/{old[2]}" if old else place, ())


def _shared(jobs: list[Job]) -> tuple[Holder, ...]:
    """The holders of one accelerator: weights are shards where every job tells them, else equal."""
    told = all(job.shards is not None for job in jobs)
    ordered = sorted(jobs, key=lambda job: (len(job.workload.id), job.workload.id))
    return tuple(Holder(job.workload, job.shards or 1 if told else 1) for job in ordered)

"""Pending jobs of Slurm with the GPUs that they ask for, by `squeue`.

What a pending job asks for stands in TRES where the cluster counts `gres/gpu` (AccountingStorageTRES), else in the
options that it was submitted with: per job, per node, per task. Shards and MIG profiles are no whole GPUs and are left
out unless TRES tells GPUs.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from gpuledger_agent.owners.slurm import tags_of
from gpuledger_agent.queue import QueueUnread, Waiting

FIELDS = (
    ("JobArrayID", 40),
    ("Partition", 200),
    ("Account", 200),
    ("UserName", 200),
    ("Reason", 80),
    ("SubmitTime", 40),
    ("NumNodes", 20),
    ("NumTasks", 20),
    ("tres-alloc", 1000),
    ("tres-per-job", 400),
    ("tres-per-node", 400),
    ("tres-per-task", 400),
    ("Comment", 500),
)
COMMAND = (
    "squeue",
    "--noheader",
    "--all",
    "--array",
    "--states=PENDING",
    "--Format=" + ",".join(f"{name}:{width}|" for name, width in FIELDS),
)
TIMEOUT_S = 60
MOST_BYTES = 256 * 1024 * 1024
NOT_FOR_GPUS = frozenset(
    {
        "JobHeldUser",
        "JobHeldAdmin",
        "Dependency",
        "DependencyNeverSatisfied",
        "BeginTime",
        "JobArrayTaskLimit",
        "InvalidAccount",
        "InvalidQOS",
        "BadConstraints",
        "PartitionDown",
        "PartitionInactive",
        "Licenses",
    }
)
"""Reasons that no further GPU cures; limits of accounts and QOS begin with these words besides."""
LIMITS = ("Assoc", "QOS", "MaxJobs", "PartitionNodeLimit", "PartitionTimeLimit", "NodeDown")
_TRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_NUMBER = re.compile(r"(\d+)(K?)")
_GRES = re.compile(r"(?:gres[:/])?gpu(?::([A-Za-z_][^:,=(]*))?(?:[:=](\d+))?(?:\(.*\))?")


def pending(environment: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND) -> list[Waiting]:
    """The jobs that wait for GPUs. Raises QueueUnread when squeue does not answer."""
    told = {**(os.environ if environment is None else environment), "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            command, env=told, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise QueueUnread(f"{command[0]} is not installed here: run this on a node of the cluster") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueUnread(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word of why"])[-1]
        raise QueueUnread(f"{command[0]} ended with {done.returncode}: {last}")
    return waiting_of(done.stdout[:MOST_BYTES])


def waiting_of(text: str) -> list[Waiting]:
    """What squeue printed, as waits; a line of a comment that went over several is none."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", len(FIELDS) - 1)]
        if len(cells) < len(FIELDS):
            continue
        told = dict(zip((name for name, _ in FIELDS), cells, strict=True))
        gpus, model = gpus_of(told)
        if gpus and waits_for_gpus(told["Reason"]):
            tags = tags_of({"comment": told["Comment"].rstrip("|"), "account": told["Account"]})
            found.append(
                Waiting(
                    workload_id=told["JobArrayID"],
                    gpus=float(gpus),
                    pool=told["Partition"].partition(",")[0],
                    gpu_model=model,
                    team=tags.get("team", ""),
                    user=told["UserName"],
                    account=told["Account"],
                    submitted=_seconds(told["SubmitTime"]),
                )
            )
    return found


def waits_for_gpus(reason: str) -> bool:
    """Whether a job with this reason could begin if there were more GPUs."""
    return reason not in NOT_FOR_GPUS and not reason.startswith(LIMITS)


def gpus_of(told: Mapping[str, str]) -> tuple[int, str]:
    """GPUs that a pending job asks for and their type where it names one, from squeue's fields."""
    tres = _TRES.findall(told["tres-alloc"])
    typed = [(kind, int(count)) for kind, count in tres if kind]
    whole = [int(count) for kind, count in tres if not kind]
    if tres:
        return (whole[0] if whole else sum(count for _, count in typed)), typed[0][0] if len(typed) == 1 else ""
    for name, times in (
        ("tres-per-job", "1"),
        ("tres-per-node", told["NumNodes"]),
        ("tres-per-task", told["NumTasks"]),
    ):
        count, model = _asked(told[name])
        if count:
            return count * _times(times), model
    return 0, ""


def _times(text: str) -> int:
    """How many nodes or tasks, at the least: `2-4` is two, and squeue writes 1,024 nodes as `1K`."""
    found = _NUMBER.match(text)
    return max(1, int(found[1]) * (1024 if found[2] else 1)) if found else 1


def _asked(text: str) -> tuple[int, str]:
    """GPUs of `gres:gpu:h100:2` and its likes, several by comma; a bare `gpu` is one."""
    parts = [_GRES.fullmatch(part.strip()) for part in text.split(",")]
    found = [(part[1] or "", int(part[2] or 1)) for part in parts if part]
    models = {kind for kind, _ in found if kind}
    return sum(count for _, count in found), models.pop() if len(models) == 1 else ""


def _seconds(text: str) -> float | None:
    """Unix seconds of a number or of Slurm's own form in UTC; None for what is neither."""
    if text.isdecimal():
        return float(text)
    try:
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None

"""Pending jobs of Slurm with the GPUs that they request, by `squeue`.

A pending job's request is in TRES where the cluster counts `gres/gpu` (AccountingStorageTRES), else
in the options that it was submitted with: per job, per node, per task. Shards and MIG profiles are
not GPUs and are left out unless TRES contains GPUs.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from gpuledger_agent.owners.slurm import tags_of
from gpuledger_agent.queue import QueuedWorkload, QueueFailed

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
MAX_OUTPUT_BYTES = 256 * 1024 * 1024
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
"""Reasons for waiting that another GPU would not remove."""
LIMITS = ("Assoc", "QOS", "MaxJobs", "PartitionNodeLimit", "PartitionTimeLimit", "NodeDown")
"""Beginnings of the reasons that name limits of accounts, QOS and partitions."""
_TRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_NUMBER = re.compile(r"(\d+)(K?)")
_GRES = re.compile(r"(?:gres[:/])?gpu(?::([A-Za-z_][^:,=(]*))?(?:[:=](\d+))?(?:\(.*\))?")


def pending(pool: str = "", command: Sequence[str] = COMMAND) -> list[QueuedWorkload]:
    """The jobs that wait for GPUs, in `pool`, else in that of their partition.

    Raises QueueFailed if squeue fails.
    """
    variables = {**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise QueueFailed(
            f"{command[0]} is not installed here: run this on a node of the cluster"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueFailed(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise QueueFailed(f"{command[0]} ended with {done.returncode}: {last}")
    return parse_squeue(done.stdout[:MAX_OUTPUT_BYTES], pool)


def parse_squeue(text: str, pool: str = "") -> list[QueuedWorkload]:
    """The waiting workloads in squeue's output; further lines of a multi-line comment are ignored."""
    waiting = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", len(FIELDS) - 1)]
        if len(cells) < len(FIELDS):
            continue
        job = dict(zip((name for name, _ in FIELDS), cells, strict=True))
        gpus, model = gpus_of(job)
        if gpus and waits_for_gpus(job["Reason"]):
            tags = tags_of({"comment": job["Comment"].rstrip("|"), "account": job["Account"]})
            waiting.append(
                QueuedWorkload(
                    workload_id=job["JobArrayID"],
                    gpus=float(gpus),
                    pool=pool or job["Partition"].partition(",")[0],
                    gpu_model=model,
                    team=tags.get("team", ""),
                    user=job["UserName"],
                    account=job["Account"],
                    submitted=_seconds(job["SubmitTime"]),
                )
            )
    return waiting


def waits_for_gpus(reason: str) -> bool:
    """Whether a job with this reason could start if there were more GPUs."""
    return reason not in NOT_FOR_GPUS and not reason.startswith(LIMITS)


def gpus_of(job: Mapping[str, str]) -> tuple[int, str]:
    """GPUs that a pending job requests, and their model if it names one, from squeue's fields."""
    tres = _TRES.findall(job["tres-alloc"])
    typed = [(model, int(count)) for model, count in tres if model]
    untyped = [int(count) for model, count in tres if not model]
    if tres:  # the untyped entry is the total of the typed ones
        return (untyped[0] if untyped else sum(count for _, count in typed)), (
            typed[0][0] if len(typed) == 1 else ""
        )
    multiples = {
        "tres-per-job": "1",
        "tres-per-node": job["NumNodes"],
        "tres-per-task": job["NumTasks"],
    }
    for name, multiple in multiples.items():
        count, model = _parse_gres(job[name])
        if count:
            return count * _lower_bound(multiple), model
    return 0, ""


def _lower_bound(text: str) -> int:
    """The least number of nodes or tasks: `2-4` is two, and squeue writes 1,024 nodes as `1K`."""
    match = _NUMBER.match(text)
    return max(1, int(match[1]) * (1024 if match[2] else 1)) if match else 1


def _parse_gres(text: str) -> tuple[int, str]:
    """Count and model of entries such as `gres:gpu:h100:2`, separated by commas; a bare `gpu` is
    one.
    """
    matches = [_GRES.fullmatch(part.strip()) for part in text.split(",")]
    entries = [(match[1] or "", int(match[2] or 1)) for match in matches if match]
    models = {model for model, _ in entries if model}
    return sum(count for _, count in entries), models.pop() if len(models) == 1 else ""


def _seconds(text: str) -> float | None:
    """Unix seconds of a number or of Slurm's time format in UTC; None for anything else."""
    if text.isdecimal():
        return float(text)
    try:
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None

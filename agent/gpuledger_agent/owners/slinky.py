"""Slurm on Kubernetes (Slinky): pods that are Slurm's nodes, and pods that Slurm schedules.

The kubelet allocates every card of a node to the pod of its slurmd, which outlives all of its jobs.
So that pod holds nothing itself where the jobs inside are read: they hold the cards, and between
jobs nobody does. Whoever creates pods may call them slurmd, so only the controller counts: a
garbage collector removes what claims one that does not exist.

slurm-bridge lets Slurm choose nodes for pods, which then are what holds. It writes the id of the
job that stands for them into a label, and admission keeps others from writing it. What Slurm is to
know of the job, its account among it, are annotations that users write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger_agent.owners.labels import MAX_VALUE_CHARACTERS, UNSTORABLE
from gpuledger_agent.owners.pod_jobs import SLURM_JOB, SLURM_TAG, Controller

GROUP, NODE_SET = "slinky.slurm.net", "NodeSet"
"""API group and kind of the object that creates the pods of slurmd."""
ALLOWED = "gpuledger.allowed-accounts"
"""Annotation of a namespace: accounts that its pods may name, separated by commas; `*`: any."""
ANNOTATIONS = {
    "account": "slurmjob.slinky.slurm.net/account",
    "partition": "slurmjob.slinky.slurm.net/partition",
    "wckey": "slurmjob.slinky.slurm.net/wckey",
}


@dataclass(frozen=True, slots=True)
class BridgedJob:
    """The job of Slurm that stands for a pod, as its label and annotations have it."""

    id: str
    account: str | None = None
    refused: str | None = None
    """The account that it names and that its namespace does not allow."""
    partition: str = ""
    wckey: str = ""

    @property
    def defaults(self) -> dict[str, str]:
        """Tags that labels replace: as of every job of Slurm, the account is the team."""
        texts = {"team": self.account or "", "partition": self.partition, "wckey": self.wckey}
        return {name: text for name, text in texts.items() if text}

    @property
    def tags(self) -> dict[str, str]:
        """Tags that no label replaces."""
        return {SLURM_TAG: self.id}


def is_slurm_node(controller: Controller | None) -> bool:
    """Whether this is the controller of a pod that runs a slurmd."""
    return controller is not None and controller.kind == NODE_SET and controller.group == GROUP


def bridged_job_of(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    namespace_annotations: Mapping[str, str],
) -> BridgedJob | None:
    """The job of Slurm that stands for a pod; None for one that slurm-bridge did not schedule."""
    number = labels.get(SLURM_JOB, "")
    if not (number.isascii() and number.isdecimal()):
        return None
    account, partition, wckey = (_text(annotations, name) for name in ANNOTATIONS.values())
    listed = namespace_annotations.get(ALLOWED)
    allowed = {"*"} if listed is None else {name.strip() for name in listed.split(",")}
    is_allowed = bool(allowed & {account, "*"})
    return BridgedJob(
        number,
        account=account if account and is_allowed else None,
        refused=account if account and not is_allowed else None,
        partition=partition,
        wckey=wckey.lstrip("*"),
    )


def _text(annotations: Mapping[str, str], name: str) -> str:
    text = annotations.get(name, "").strip()[:MAX_VALUE_CHARACTERS]
    return "" if UNSTORABLE.search(text) else text

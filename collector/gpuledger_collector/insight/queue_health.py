"""What is wrong with reading the queues of schedulers, and with their quotas."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpuledger_collector.accounting.quantity import GPU_MICRO

STALE_MS = 600_000
"""After this time without a reading the reader has stopped."""


class Trouble(enum.StrEnum):
    """Why a list of an API server has no answer."""

    FORBIDDEN = "forbidden"
    MISSING = "missing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, order=True)
class ListProblem:
    """A list that was not answered."""

    resource: str
    """As `kubectl auth can-i list` names it: `clusterqueues.kueue.x-k8s.io`."""
    trouble: Trouble
    detail: str = ""

    def sentence(self) -> str:
        """What it means."""
        match self.trouble:
            case Trouble.FORBIDDEN:
                return f"the collector may not list {self.resource}"
            case Trouble.MISSING:
                return f"the cluster has no {self.resource}"
            case Trouble.FAILED:
                return f"{self.resource} could not be read: {self.detail}"

    def remedy(self) -> str:
        """What to do."""
        match self.trouble:
            case Trouble.FORBIDDEN:
                return (
                    f"let its account list {self.resource} (docs/guides/kubernetes.md#queues), or"
                    " take the scheduler out of kubernetes_queues"
                )
            case Trouble.MISSING:
                return "take the scheduler out of kubernetes_queues, or install it"
            case Trouble.FAILED:
                return "see the collector's log; the next reading tries again"


@dataclass(frozen=True, slots=True)
class OverQuota:
    """Quotas of a pool that add up to more GPUs than it has."""

    pool: str
    """Empty: flavors of which no pool is known, compared with the whole fleet."""
    quota_micro: int
    capacity_micro: int

    def sentence(self) -> str:
        """What it means."""
        where = f"pool {self.pool}" if self.pool else "the fleet"
        return (
            f"queues have quotas of {_gpus(self.quota_micro)} GPUs in {where}, which has"
            f" {_gpus(self.capacity_micro)}; quotas are not billed"
        )


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """What a look at the queues finds that somebody may have to repair."""

    problems: tuple[ListProblem, ...] = ()
    silent: tuple[str, ...] = ()
    """Clusters that were not read for STALE_MS."""
    over: tuple[OverQuota, ...] = ()
    without_team: tuple[str, ...] = ()
    """Queues of which held time has no team."""
    is_read: bool = False
    """Whether any cluster was ever read."""
    queues: int = 0
    """Queues with a quota now."""


def _gpus(micro: int) -> str:
    text = f"{micro / GPU_MICRO:,.2f}"
    return text.rstrip("0").rstrip(".")

"""Allocation and use of the accelerators, as the owner sources report them; neither is inferred
from the other.

A scheduler (or a rule) says who was *allocated* an accelerator; the processes say who *uses* it.
Where both are known, the allocation is billed, and a difference is reported: the worst waste has no
process, and use without an allocation is in no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuledger_common.readings import Accelerator, Holder, Holders, OwnerSource, Sample, Workload

Disagreement = Literal["", "allocated without a process", "used without an allocation"]
PROCESSES = "processes"
"""The owner source that sees use; every other one sees allocations."""
_ANY_PROCESS = frozenset({"static", "dcgm", "simulated"})
"""Kinds of workloads that do not tell which processes are theirs: any process may be."""


@dataclass(frozen=True, slots=True)
class HolderObservations:
    """The answers of the owner sources at one instant, by accelerator uuid."""

    holders: Holders = field(default_factory=dict)
    """Who is billed: the holders named by an allocation source, else those whose processes run."""
    allocated: frozenset[str] = frozenset()
    """Accelerators whose holders an allocation source named."""
    users: Holders = field(default_factory=dict)
    """Workloads of the processes on each accelerator, whoever holds it."""
    has_allocations: bool = False
    """Whether any source of allocations is configured besides the processes."""
    complete: bool = True
    """Whether every owner source answered; else a holder may be missing."""

    def disagreement(self, uuid: str, processes: float | None) -> Disagreement:
        """How allocation and use of an accelerator differ, empty if they do not.

        `processes` is the number that the driver lists (None: unknown, so no process is missed).
        Without any source of allocations (a plain machine) use is not a disagreement.
        """
        allocated = self.holders.get(uuid, ()) if uuid in self.allocated else ()
        if self.has_allocations and any(
            not any(is_same_workload(user.workload, holder.workload) for holder in allocated)
            for user in self.users.get(uuid, ())
        ):
            return "used without an allocation"
        return "allocated without a process" if allocated and processes == 0 else ""


def observe_holders(
    owners: Sequence[OwnerSource],
    accelerators: Sequence[Accelerator],
    samples: Sequence[Sample],
    failed: Callable[[OwnerSource, Exception], None],
) -> HolderObservations:
    """Ask every owner source; the first allocation source that knows an accelerator's holders
    decides.

    `failed` is called for a source that raises; the other sources are asked all the same.
    """
    holders: dict[str, Sequence[Holder]] = {}
    allocated: set[str] = set()
    users: dict[str, Sequence[Holder]] = {}
    complete = True
    for owner in owners:
        try:
            known = owner.holders(accelerators, samples)
        except Exception as error:
            failed(owner, error)
            complete = False
            continue
        for uuid, entries in known.items():
            if entries and owner.name == PROCESSES:
                users[uuid] = tuple(entries)
            # Sources are in the order of the settings: the first that knows the holders of an
            # accelerator decides.
            elif entries and uuid not in holders:
                allocated.add(uuid)
                holders[uuid] = tuple(entries)
    # Use decides only where no allocation is known.
    for uuid, entries in users.items():
        holders.setdefault(uuid, entries)
    has_allocations = any(owner.name != PROCESSES for owner in owners)
    return HolderObservations(holders, frozenset(allocated), users, has_allocations, complete)


def is_same_workload(user: Workload, holder: Workload) -> bool:
    """Whether a process's workload is the one that holds the accelerator."""
    if holder.kind in _ANY_PROCESS:
        return True
    if user.kind != holder.kind:
        return False
    return user.id == holder.id or user.tags.get("pod_uid", user.id) == holder.tags.get(
        "pod_uid", ""
    )

"""Allocation and use side by side: two witnesses that are joined and never inferred from each other.

A scheduler (or a rule) says who was *given* an accelerator; the processes say who *uses* it. Where both speak the first
is billed, and where they differ a person should see it: the worst waste has no process, and what runs without having
been allocated is in nobody's plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuledger_common.readings import Accelerator, Holder, OwnerSource, Sample, Workload

Disagreement = Literal["", "allocated without a process", "used without an allocation"]
PROCESSES = "processes"
"""The owner source that sees use; every other one sees allocations."""
_NAMELESS = frozenset({"static", "dcgm", "simulated"})
"""Kinds of workloads that say nothing of which processes are theirs: any process may be."""


@dataclass(frozen=True, slots=True)
class HolderObservations:
    """What the owner sources say at one instant, by accelerator uuid."""

    holders: Mapping[str, Sequence[Holder]] = field(default_factory=dict)
    """Whom the time is billed to: those whom an allocation source names, else those whose processes run."""
    allocated: frozenset[str] = frozenset()
    """Accelerators whose holders an allocation source named."""
    users: Mapping[str, Sequence[Holder]] = field(default_factory=dict)
    """Workloads of the processes on each accelerator, whoever holds it."""
    allocators: bool = False
    """Whether there is any source of allocations besides the processes."""
    told: bool = True
    """Whether every owner source gave its word; else a holder may be missing."""

    def disagreement(self, uuid: str, processes: float | None) -> Disagreement:
        """What the two witnesses of an accelerator differ in, empty for nothing.

        `processes` is how many the driver lists (None: it does not tell, and nothing is said of a missing process).
        Without any source of allocations (a plain machine) use is no disagreement.
        """
        given = self.holders.get(uuid, ()) if uuid in self.allocated else ()
        if self.allocators and any(
            not any(same(user.workload, holder.workload) for holder in given) for user in self.users.get(uuid, ())
        ):
            return "used without an allocation"
        return "allocated without a process" if given and processes == 0 else ""


def ask(
    owners: Sequence[OwnerSource],
    accelerators: Sequence[Accelerator],
    samples: Sequence[Sample],
    failed: Callable[[OwnerSource, Exception], None],
) -> HolderObservations:
    """Asks every owner source; of the allocations the first that knows a holder of an accelerator has the word on it.

    A source that raises is told to `failed`, and the others have their word all the same.
    """
    holders: dict[str, Sequence[Holder]] = {}
    allocated: set[str] = set()
    users: dict[str, Sequence[Holder]] = {}
    told = True
    for owner in owners:
        try:
            known = owner.holders(accelerators, samples)
        except Exception as error:  # its word is missing; the other owner sources have theirs
            failed(owner, error)
            told = False
            continue
        for uuid, found in known.items():
            if not found:
                continue
            if owner.name == PROCESSES:
                users[uuid] = tuple(found)
            elif uuid not in holders:
                allocated.add(uuid)
                holders[uuid] = tuple(found)
    for uuid, found in users.items():
        holders.setdefault(uuid, found)
    allocators = any(owner.name != PROCESSES for owner in owners)
    return HolderObservations(holders, frozenset(allocated), users, allocators, told)


def same(user: Workload, holder: Workload) -> bool:
    """Whether a process's workload is the one that was given the accelerator."""
    if holder.kind in _NAMELESS:
        return True
    if user.kind != holder.kind:
        return False
    return user.id == holder.id or user.tags.get("pod_uid", user.id) == holder.tags.get("pod_uid", "")

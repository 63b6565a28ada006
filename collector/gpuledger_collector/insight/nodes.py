"""How the nodes of a fleet are, and when one counts as silent: one answer for pages, commands,
boards and alerts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuledger_common.health import next_step
from gpuledger_common.instants import to_ms

RETIRED = "retired"
"""Status of a node from its retirement until it reports again."""
UNINSTALLED = "uninstalled"
"""Status of a node whose agent said in its last heartbeat that it is being uninstalled; its
capacity goes on.
"""
INVENTORY = "inventory"
"""Status of a node that the inventory names and no agent has reported."""
UNEXPECTED = (RETIRED, UNINSTALLED, INVENTORY)
"""Statuses of nodes of which nobody expects a sign of life: they are never silent."""
SILENT_MS = 10 * 60_000
"""Time without a sign of life after which a node is silent (docs/runbooks/node-silent.md)."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: its last sign of life, its newest reading, its retirement, and how many accelerators
    are there now.

    `stated` of them are placed by the inventory, which says itself (`out_at`) when they leave.
    """

    name: str
    seen_ms: int
    status: str
    detail: str
    agent_version: str
    read_ms: int | None
    retired_ms: int | None
    accelerators: int
    stated: int
    machine: Mapping[str, str] = field(default_factory=dict)
    """What it is to its cloud, as its agent reads it: pool, purchase, instance_type, region, zone,
    provider_id; what is not known is not there.
    """

    def state(self, now_ms: int) -> str:
        """How it is: its status (uninstalled: its agent said goodbye), `silent`, or `back again`
        after a retirement.
        """
        if is_silent(self.status, self.seen_ms, now_ms):
            return "silent"
        is_back = self.retired_ms is not None and self.status == "ok"
        return "back again" if is_back else self.status


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node, and how it is now."""

    node: NodeRow
    state: str


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """A node with the last heartbeat of its agent."""

    name: str
    first_seen_at: dt.datetime
    last_seen_at: dt.datetime
    status: str
    status_detail: str
    agent_version: str
    source: str
    driver: str

    def as_seen(self, now_ms: int) -> NodeHeartbeat:
        """The heartbeat with the status that the node has now: one that is overdue says nothing."""
        seen_ms = to_ms(self.last_seen_at)
        return replace(self, status="silent") if is_silent(self.status, seen_ms, now_ms) else self


@dataclass(frozen=True, slots=True)
class Ailing:
    """An accelerator that is not well, why, and who holds it now."""

    node: str
    uuid: str
    gpu_index: int | None
    mig_instance: str | None
    model: str
    cause: str
    health_since_ms: int | None
    """Since when its reports say so; None: not known."""
    state: str | None
    """Held, unallocated, ...; None: no reading says it."""
    job: str
    job_key: str
    user: str

    @property
    def next_step(self) -> str:
        """What to do about it; empty: its cause says it, or nothing is known."""
        return next_step(self.cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """How many nodes there are now."""

    nodes: int
    silent: int
    not_expected: int
    """Nodes of which nobody expects a sign of life; they are not silent."""

    @property
    def reports(self) -> bool:
        """Whether any node is heard of now; otherwise nothing that is so now is known."""
        return self.nodes > self.silent + self.not_expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(NodeCounts):
    """The fleet now: its nodes, whole devices, the same by state of health, and the first
    accelerators that ail.
    """

    gpus: int
    """Whole devices, a divided one once."""
    slices: int
    """How many accelerators are a part of a device (MIG)."""
    healths: Sequence[tuple[str, int]]
    """Whole devices: a divided one is what the worst of its parts is."""
    causes: Sequence[Ailing]


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node, when its agent was last seen, and the GPUs on it: whole devices, a divided one once."""

    name: str
    seen_ms: int
    status: str
    detail: str
    gpus: int
    slices: int
    """How many of its accelerators are a part of a device (MIG)."""
    healths: Sequence[str] = ()
    """What its accelerators that are not well are (degraded, say), as its agent said last."""

    def state(self, now_ms: int) -> str:
        """Its status, or `silent` where a sign of life was expected."""
        return "silent" if is_silent(self.status, self.seen_ms, now_ms) else self.status


def is_silent(status: str, seen_ms: int, now_ms: int) -> bool:
    """Whether a node of this status that gave its last sign of life at `seen_ms` is silent."""
    return status not in UNEXPECTED and now_ms - seen_ms > SILENT_MS

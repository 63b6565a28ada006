"""What changed on a fleet between two looks at it, for pages that stay open: accelerators that
changed holder or state, nodes that fell silent or came back, findings that appeared or ended.

A look is compared with the one before it, whoever looks on. What a reader may see of the changes is
chosen afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from gpuledger_collector.accounting.usage import UNALLOCATED
from gpuledger_collector.insight.fleet_map import HELD_STATES, state_now
from gpuledger_collector.insight.nodes import UNEXPECTED, is_silent


@dataclass(slots=True)
class LiveAccelerator:
    """An accelerator that is there now, with its latest reading; None: there is none.

    Not frozen: a look makes tens of thousands, and frozen ones take three times as long to make.
    """

    id: int
    pool: str
    node: str
    is_slice: bool
    health: str
    state: str | None
    workload_id: int | None
    read_ms: int | None
    activity: float | None


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node and its last sign of life."""

    id: int
    name: str
    status: str
    seen_ms: int


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """A finding that has not ended, in whose part of the ledger it is (`is_free`: in nobody's), and
    where; None: it has no place, as what an owner spends.
    """

    id: int
    kind: str
    team: str
    owner: Mapping[str, str]
    is_free: bool
    pool: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class PresentAccelerator:
    """Where an accelerator is, its state now, and the workload that holds it (None: nobody known)."""

    pool: str
    node: str
    is_slice: bool
    state: str
    workload_id: int | None

    @property
    def is_holder_known(self) -> bool:
        """Whether it is known who holds it, or that nobody does."""
        return self.state in HELD_STATES or self.state == UNALLOCATED

    @property
    def holder(self) -> tuple[bool, int | None]:
        """Whether it is held, and by which workload."""
        is_held = self.state in HELD_STATES
        return is_held, self.workload_id if is_held else None


@dataclass(frozen=True, slots=True)
class LiveState:
    """The fleet at one look, by ids. `newest_ms`: the newest sign of life; None: there is none."""

    taken_ms: int
    accelerators: Mapping[int, PresentAccelerator]
    silent: Mapping[int, bool]
    """Whether a node is silent; nodes of which nobody expects a sign of life are left out."""
    node_names: Mapping[int, str]
    findings: Mapping[int, LiveFinding]
    newest_ms: int | None


def live_state(
    accelerators: Iterable[LiveAccelerator],
    nodes: Iterable[LiveNode],
    findings: Iterable[LiveFinding],
    now_ms: int,
) -> LiveState:
    """The fleet as these rows describe it, by the rules of the map and of the list of nodes."""
    expected = [node for node in nodes if node.status not in UNEXPECTED]
    return LiveState(
        taken_ms=now_ms,
        accelerators={
            row.id: PresentAccelerator(
                row.pool,
                row.node,
                row.is_slice,
                state_now(row.health, row.state, row.read_ms, row.activity, now_ms),
                row.workload_id,
            )
            for row in accelerators
        },
        silent={node.id: is_silent(node.status, node.seen_ms, now_ms) for node in expected},
        node_names={node.id: node.name for node in expected},
        findings={finding.id: finding for finding in findings},
        newest_ms=max((node.seen_ms for node in expected), default=None),
    )


@dataclass(frozen=True, slots=True)
class LiveChanges:
    """What changed between two looks; false where nothing did.

    An accelerator is in one of `changed_holder`, `changed_state`, `added` and `removed`. Who holds
    it is not known while nobody observes it: that changes its state, and not its holder.
    """

    changed_holder: tuple[PresentAccelerator, ...] = ()
    changed_state: tuple[PresentAccelerator, ...] = ()
    added: tuple[PresentAccelerator, ...] = ()
    removed: tuple[PresentAccelerator, ...] = ()
    fell_silent: tuple[str, ...] = ()
    came_back: tuple[str, ...] = ()
    new_nodes: tuple[str, ...] = ()
    appeared: tuple[LiveFinding, ...] = ()
    ended: tuple[LiveFinding, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)


def changes_between(before: LiveState, after: LiveState) -> LiveChanges:
    """Compare two looks."""
    changed_holder: list[PresentAccelerator] = []
    changed_state: list[PresentAccelerator] = []
    added: list[PresentAccelerator] = []
    for number, item in after.accelerators.items():
        past = before.accelerators.get(number)
        if past is None:
            added.append(item)
        elif past != item:
            is_moved = past.holder != item.holder and past.is_holder_known and item.is_holder_known
            if is_moved:
                changed_holder.append(item)
            elif past.state != item.state:
                changed_state.append(item)
    return LiveChanges(
        changed_holder=tuple(changed_holder),
        changed_state=tuple(changed_state),
        added=tuple(added),
        removed=tuple(
            past for number, past in before.accelerators.items() if number not in after.accelerators
        ),
        fell_silent=_nodes_that(after, before.silent, was=False, is_now=True),
        came_back=_nodes_that(after, before.silent, was=True, is_now=False),
        new_nodes=tuple(
            sorted(after.node_names[number] for number in after.silent.keys() - before.silent)
        ),
        appeared=_findings_of(after.findings, after.findings.keys() - before.findings.keys()),
        ended=_findings_of(before.findings, before.findings.keys() - after.findings.keys()),
    )


def _nodes_that(
    after: LiveState, before: Mapping[int, bool], *, was: bool, is_now: bool
) -> tuple[str, ...]:
    return tuple(
        sorted(
            after.node_names[number]
            for number, silent in after.silent.items()
            if silent is is_now and before.get(number, is_now) is was
        )
    )


def _findings_of(findings: Mapping[int, LiveFinding], numbers: Set[int]) -> tuple[LiveFinding, ...]:
    return tuple(findings[number] for number in sorted(numbers))

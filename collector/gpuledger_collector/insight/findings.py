"""Findings, and the usage that the searches for them read: plain values, shared by jobs and
storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.reserved_names import UNNAMED

AT_LISTED_RATES = (
    "of GPU-time at the rates of the price book, without node costs, commitments and adjustments"
)
"""What amounts of unusual spending are: it is found before its hours are rated."""
WORKLOADS = "workload_ids"
"""Evidence key of unusual spending: ids of the latest runs that its cause is about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should see.

    `resolved_ms` None: ongoing; amounts are micro-units, None: unpriced.
    """

    key: str
    kind: str
    state: str
    subject: str
    accelerator_id: int | None
    workload_id: int | None
    team: str
    owner: Mapping[str, str]
    since_ms: int
    opened_ms: int
    until_ms: int
    resolved_ms: int | None
    confidence: float
    currency: str | None
    cost_micro: int | None
    per_day_micro: int | None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacedAccelerator:
    """An accelerator and its place: node, pool and index."""

    accelerator_id: int
    uuid: str
    model: str
    gpu_micro: int
    memory_bytes: int | None
    node: str
    pool: str
    gpu_index: int | None


@dataclass(frozen=True, slots=True)
class WorkloadUsage:
    """Usage of one kind of accelerator on one node by a workload in the rating interval that begins
    then.

    `longest_ms` is the longest that one accelerator was held in it, `gpu_micro` the sum of the
    accelerators held.
    """

    rating_interval_ms: int
    workload_id: int
    pool: str
    gpu_model: str
    node: str
    gpu_ns: int
    longest_ms: int = 0
    gpu_micro: int = 0
    busy_ms: int = 0
    idle_ms: int = 0


@dataclass(frozen=True, slots=True)
class RecentHolding:
    """Time that a workload held an accelerator in each of several consecutive windows, ms by
    window.

    `since_ms` is the begin of the earliest evidence of it that touches the windows.
    """

    accelerator_id: int
    workload_id: int
    pool: str
    gpu_model: str
    node: str
    gpu_micro: int
    since_ms: int
    held_ms: tuple[int, ...]


UNALLOCATED = "unallocated"
FREE_MINUTES = 15
"""For how long nobody must have held a GPU before it is found: one between two jobs is not."""
OUT_OF_ORDER = ("degraded", "failed")
"""Health in which an accelerator is not offered to anybody."""


@dataclass(frozen=True, slots=True)
class NamedFinding(Finding):
    """A finding with the names that people know its accelerator and its workload by; None: it has
    none.
    """

    model: str | None = None
    gpu_index: int | None = None
    gpu_micro: int | None = None
    workload: str | None = None
    workload_name: str | None = None
    workload_key: str | None = None
    user_name: str | None = None
    health: str | None = None
    """The latest health of its accelerator, whenever the finding was."""
    health_cause: str | None = None

    @property
    def is_ongoing(self) -> bool:
        """Whether it has not ended."""
        return self.resolved_ms is None

    @property
    def is_free(self) -> bool:
        """Whether nobody holds what it is about: then it is in no owner's part, and not usage of
        one unknown.
        """
        return self.state == UNALLOCATED and not self.team

    @property
    def is_out_of_order(self) -> bool:
        """Whether its accelerator is not well now; of a finding that has ended nothing is said."""
        return self.is_ongoing and self.health in OUT_OF_ORDER

    @property
    def is_slice(self) -> bool:
        """Whether it is about a MIG instance."""
        return self.gpu_micro is not None and self.gpu_micro < GPU_MICRO

    @property
    def node(self) -> str:
        """Where its accelerator was; empty for one that was never placed."""
        return str(self.evidence.get("node", ""))

    @property
    def pool(self) -> str:
        """The pool of its accelerator; empty: not known."""
        return str(self.evidence.get("pool", ""))

    @property
    def pool_choice(self) -> str:
        """How a filter asks for its pool, one without a name as UNNAMED; empty: not known."""
        return self.pool or (UNNAMED if "pool" in self.evidence else "")

    @property
    def job(self) -> str:
        """Its workload as people call it; empty: nobody's, or of a team."""
        return self.workload_name or self.workload or ""

    @property
    def cost(self) -> Money | None:
        """What it cost so far; None: unpriced."""
        return self._money(self.cost_micro)

    @property
    def per_day(self) -> Money | None:
        """What each further day costs; None: unpriced, or it has ended."""
        return self._money(self.per_day_micro) if self.is_ongoing else None

    def _money(self, micro: int | None) -> Money | None:
        return None if micro is None or not self.currency else Money(micro, self.currency)


@dataclass(frozen=True, slots=True)
class IdleRemedy:
    """What gives an idle accelerator back: the command that ends its workload, empty where none
    does; `is_partly_busy`: other accelerators of the workload still work.
    """

    command: str = ""
    is_partly_busy: bool = False


NO_REMEDY = IdleRemedy()
IdleRemedies = Mapping[str, IdleRemedy]
"""By the key of the finding; of what no holder could give back there is none."""


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings of one state, team or day in one currency."""

    name: str
    currency: str
    findings: int
    ongoing: int
    total_ms: int
    cost: Money | None
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindingFilter:
    """What findings are narrowed to; empty: to nothing.

    `words`: a part of the name of the team, job, user, node or model, or of the UUID. `user`: the
    whole name.
    """

    node: str = ""
    pool: str = ""
    model: str = ""
    state: str = ""
    words: str = ""
    user: str = ""

    def admits(self, item: NamedFinding) -> bool:
        """Whether a finding meets all of it."""
        cells = (
            (self.node, item.node),
            (self.pool, item.pool_choice),
            (self.model, item.model or ""),
            (self.state, item.state),
            (self.user, item.user_name or ""),
        )
        if any(wanted and wanted != value for wanted, value in cells):
            return False
        names = (item.team, item.job, item.user_name, item.node, item.model, item.subject)
        return self.words.casefold() in "\n".join(filter(None, names)).casefold()


@dataclass(frozen=True, slots=True)
class FreeGroup:
    """Accelerators of one model or node that nobody holds, in one currency (empty: unpriced)."""

    name: str
    items: Sequence[NamedFinding]
    per_day: Money | None

    @property
    def usable(self) -> Sequence[NamedFinding]:
        """Those that somebody could use."""
        return [item for item in self.items if not item.is_out_of_order]

    @property
    def out_of_order(self) -> Sequence[NamedFinding]:
        """Those that are not well now."""
        return [item for item in self.items if item.is_out_of_order]

    @property
    def since_ms(self) -> int:
        """From when on one of them has been free."""
        return min(item.since_ms for item in self.items)

    @property
    def places(self) -> Sequence[str]:
        """Their nodes, by name."""
        return sorted({item.node for item in self.items if item.node})

    @property
    def models(self) -> Sequence[str]:
        """Their models, by name."""
        return sorted({item.model for item in self.items if item.model})

"""What runs were charged in a period, as lists and reports show them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.accounting.unit_cost import UnitCost, cost_per

PAID_DIGITS = 4
"""Decimal places of what a GPU-hour cost: charges are rounded to millionths, which more would show."""


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    """A workload by the names that people know it by."""

    id: int
    key: str
    name: str | None
    user: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedAmounts(Measures):
    """What was charged in a period, in one currency (None: unpriced).

    Its measures have no defaults: a query that forgets one of them fails. What the time would have
    cost without a discount or a commitment is not read.
    """

    gpu_ns: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    currency: str | None
    cost_micro: int | None
    idle_cost_micro: int | None
    energy_mj: int | None

    @property
    def cost(self) -> Money | None:
        """What it was charged for its GPU-time; None: unpriced."""
        return self._money(self.cost_micro)

    @property
    def idle_cost(self) -> Money | None:
        """How much of that was for idle time; None: unpriced."""
        return self._money(self.idle_cost_micro)

    @property
    def cost_per_gpu_hour(self) -> Decimal | None:
        """What it was charged for a GPU-hour that it held; None: unpriced, or corrections took back
        what it held.
        """
        if self.cost_micro is None or not self.currency or self.gpu_ns <= 0:
            return None
        return cost_per(self.cost_micro, self.gpu_ns, GPU_NS_PER_HOUR, PAID_DIGITS)

    def _money(self, micro: int | None) -> Money | None:
        return None if micro is None or not self.currency else Money(micro, self.currency)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSums(ChargedAmounts):
    """What a workload was charged in a period, as far as lists order, group and add it up."""

    workload_id: int
    key: str
    kind: str
    external_id: str
    name: str | None
    user: str | None
    start_ms: int
    end_ms: int
    part: str = ""
    """Of a workload that is split by its team or its model: which one; else empty."""

    @property
    def display_name(self) -> str:
        """The display name."""
        return self.name or self.external_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedRun(RunSums):
    """A workload that was charged in a period, with what it held."""

    team: str
    gpu_model: str
    accelerators: int


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a list of runs is narrowed to, besides its owner; empty: to nothing.

    Of a run on several pools, models or nodes only the part on the named one is listed. `words`: a
    part of its name, its id or its user. `state`: one of `RunList.states`. `user`: the whole name.
    """

    pool: str = ""
    model: str = ""
    node: str = ""
    words: str = ""
    state: str = ""
    user: str = ""


EVERY_RUN = RunFilter()
RUNNING, ENDED = "running", "ended"
"""States of a run of which no scheduler says how it ended."""


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """How a run ended and when, as a record of its scheduler says (None: it had not ended)."""

    state: str
    end_ms: int | None


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that have something in common, in one currency (None: unpriced).

    `idle_ns` None: of none of their time it is known whether it was used.
    """

    name: str
    currency: str | None
    workloads: int
    gpu_ns: int
    idle_ns: int | None
    cost: Money | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedJob(ChargedAmounts):
    """A job of several workloads that was charged in a period, or a workload that belongs to none."""

    job: str
    uid: str
    """Which job of that name; empty: not known, or no job."""
    workloads: tuple[str, ...]
    """Keys of its pods."""
    user: str
    team: str
    gpu_model: str
    accelerators: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run of a list, and the cost of a unit of its output; None: it counted nothing."""

    run: ChargedRun
    unit: UnitCost | None

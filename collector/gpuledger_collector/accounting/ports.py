"""What jobs and reports ask of the place where evidence is kept, in accounting's own words.

A `Unit` is one transaction over one snapshot: what it reads is one consistent state, and what it writes is seen
whole or not at all. Marks (dirty hours, dirty days) that the snapshot does not show are left for the next run, so
evidence that arrives while a job works is never forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.ledger import DayLine, Proof
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.tags import OwnerPath


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of an imported usage file; `end_ms` None means still running. `line` is where it stands in the file."""

    line: int
    workload_id: str
    start_ms: int
    end_ms: int | None
    gpu_micro: int
    gpu_model: str = ""
    pool: str = "imported"
    node: str = ""
    user: str | None = None
    account: str | None = None
    job_name: str | None = None
    submitted_ms: int | None = None
    state: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """A row of an inventory file: an accelerator, where it stands, and from when to when (`out_ms` None: still)."""

    line: int
    node: str
    uuid: str
    gpu_model: str
    pool: str
    in_ms: int
    out_ms: int | None


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One imported sample: readings by catalogue name of one accelerator at one instant, as checked decimal text."""

    line: int
    uuid: str
    at_ms: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """How many rows of a file did what; `days_to_recompute` is the number of UTC days to be rated again."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    days_to_recompute: int = 0


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """When an accelerator was there to be held, where and in which pool."""

    accelerator_id: int
    gpu_micro: int
    gpu_model: str
    pool: str
    node: str
    in_ms: int
    out_ms: int | None
    source: str
    uuid: str = ""
    device: str = ""
    """UUID of its board."""


@dataclass(frozen=True, slots=True)
class RecomputeRequest:
    """A request to recompute an hour of an accelerator, for which evidence arrived."""

    id: int
    accelerator_id: int
    hour_ms: int


@dataclass(frozen=True, slots=True)
class RatedDay:
    """What a rated day becomes in the ledger."""

    charges: Sequence[Charge]
    lines: Sequence[DayLine]
    proof: Proof


@dataclass(frozen=True, slots=True)
class ChargedLine:
    """Charges added up as a report asked for them: `keys` in the order of its dimensions.

    Amounts are micro-units, None where unpriced; `gpu_ns` and the activities are GPU-nanoseconds.
    """

    keys: tuple[str, ...]
    state: str
    currency: str | None
    gpu_ns: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    cost_micro: int | None
    idle_cost_micro: int | None
    energy_mj: int | None
    list_cost_micro: int | None = None
    contracted_cost_micro: int | None = None
    correction_of: str = ""
    """The closed month that it amends, where a report keeps corrections apart."""


@dataclass(frozen=True, slots=True)
class ChargedState:
    """The charges of a day in one state and currency, those of accelerators apart from those of imported counts."""

    day_ms: int
    state: str
    imported: bool
    currency: str | None
    gpu_ns: int
    cost_micro: int | None


@dataclass(frozen=True, slots=True)
class HeldBy:
    """What one workload held on one day in one place, in one currency."""

    day_ms: int
    workload_id: int
    pool: str
    node: str
    currency: str | None
    gpu_ns: int
    cost_micro: int | None


@dataclass(frozen=True, slots=True)
class ExportedCharge:
    """One charge with the names that an export writes: the workload's, the accelerator's, the price it was rated by."""

    charge: Charge
    accelerator_uuid: str | None
    workload_key: str | None
    workload_name: str | None
    user: str | None
    tags: Mapping[str, str]
    booked_day_ms: int | None = None
    """For a correction the day of an open period in which it is booked; the charge's own day is the one it amends."""
    device_uuid: str | None = None
    """The device of a MIG instance; of a whole device its own UUID."""


@dataclass(frozen=True, slots=True)
class ClosedPeriod:
    """A month that was closed: its charges do not change any more."""

    name: str
    period: Period
    closed_ms: int
    closed_by: str
    lines: int
    seal: str
    """Hexadecimal root over its lines (accounting.seal)."""


@dataclass(frozen=True, slots=True)
class Invoice:
    """What one owner is billed for a closed month: the exact amount and the minor units that were booked.

    Both hold the direct cost and the shares of common costs; `shared_micro` and `shared_minor` say how much of them
    are shares.
    """

    currency: str
    owner: str
    micro: int
    minor: int
    shared_micro: int = 0
    shared_minor: int = 0


OwnerOf = Callable[[int, int, int | None], OwnerPath]
"""Who pays for a workload at an instant (unix ms)."""

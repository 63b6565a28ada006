"""What jobs and reports ask of the place where evidence is kept, in accounting's own words.

A `Unit` is one transaction over one snapshot: what it reads is one consistent state, and what it writes is seen
whole or not at all. Marks (dirty hours, dirty days) that the snapshot does not show are left for the next run, so
evidence that arrives while a job works is never forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger_collector.accounting.attribution import Rule, WorkloadFacts
from gpuledger_collector.accounting.chargeback import SharedPart
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.ledger import DayLine, Proof
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.placement import RefusedClaim
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.accounting.rating import Charge, ImportedUsage
from gpuledger_collector.accounting.reattribution import Reattribution
from gpuledger_collector.accounting.tags import OwnerPath
from gpuledger_collector.accounting.usage import Contradiction, HourlyUsage, UsageInterval


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
class Mark:
    """An accelerator-hour with new evidence."""

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


class Unit(Protocol):
    """One transaction over one snapshot."""

    def calendar(self) -> Calendar:
        """The days and months of the bill, in the billing zone."""

    def prices(self) -> Sequence[Price]:
        """The price book in force, superseded versions left out."""

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""

    def commitments(self) -> Sequence[Commitment]:
        """The commitments of the book, whatever their terms, superseded versions left out."""

    def rules(self) -> Sequence[Rule]:
        """The attribution rules in force, by position."""

    def reattributions(self, period: Period) -> Sequence[Reattribution]:
        """What decided disputes say of time in the period, against the rules."""

    def marks(self, period: Period, limit: int | None = None) -> Sequence[Mark]:
        """Dirty hours of the period, by hour; at most `limit`, whole hours first."""

    def drop_marks(self, ids: Iterable[int]) -> None:
        """Remove exactly these marks: those that were seen."""

    def capacity(self, period: Period) -> Sequence[CapacityRow]:
        """Capacity that overlaps the period, as recorded, with an open `out_ms` as None."""

    def usage_intervals(self, accelerator_ids: Sequence[int], period: Period) -> Iterable[UsageInterval]:
        """Evidence of these accelerators that overlaps the period, in any order."""

    def latest_evidence_ms(self, since_ms: int) -> int | None:
        """Where the newest evidence that begins at or after an instant ends; None when there is none."""

    def replace_usage(self, hours: Sequence[tuple[int, int]], pieces: Sequence[HourlyUsage]) -> None:
        """The hourly ledger of these (accelerator, hour) pairs becomes these pieces."""

    def roll_up_minutes(self, hours: Sequence[tuple[int, int]]) -> None:
        """The minute rollup of these (accelerator, hour) pairs is made again from the samples."""

    def sampled_hours(self, period: Period) -> Sequence[tuple[int, int]]:
        """The (accelerator, hour) pairs of the period that have samples."""

    def mark_days(self, days_ms: Iterable[int]) -> None:
        """Add a mark to each of these days."""

    def days_to_rate(self, period: Period, now_ms: int) -> Sequence[int]:
        """Days of the period with a mark, or with capacity or imported usage and no proof up to their end or now."""

    def pieces(self, day: Period) -> Sequence[HourlyUsage]:
        """The hourly ledger of a day; a piece begins where its rating interval does and is said to end with its
        hour.
        """

    def imported(self, day: Period) -> Sequence[ImportedUsage]:
        """Imported usage that overlaps the day."""

    def workloads(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """What was reported last of these workloads, pool and node left empty."""

    def workload_attributes(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """What was reported of workloads, by the number of the report."""

    def keep_contradictions(self, found: Sequence[Contradiction]) -> None:
        """Keep that a node reported held time for other holders as well."""

    def undecided_claims(self, period: Period) -> Sequence[RefusedClaim]:
        """Claims of time in the period that were refused, and of which no inventory says who is right."""

    def proofs(self, period: Period) -> Sequence[Proof]:
        """The proofs of the period's days, by day."""

    def charged_states(self, period: Period) -> Sequence[ChargedState]:
        """The charges of the period's days, added up by day, state and currency."""

    def replace_day(self, day_ms: int, rated: RatedDay, now_ms: int) -> None:
        """The day's charges, ledger lines and proof become these; the marks of the day that were seen are removed."""

    def lacks_month(self, now_ms: int) -> bool:
        """Whether a month that is over and has rated days is not added up."""

    def add_up_month(self, now_ms: int) -> bool:
        """Add up the latest of those months; whether there was one.

        The first question of its unit.
        """

    def untrue_months(self, period: Period) -> Sequence[Period]:
        """Months that overlap the period, are added up and are not the sum of their days: there ought to be none."""

    def closed_periods(self) -> Sequence[ClosedPeriod]:
        """Every closed period, by time."""

    def marked_closed_periods(self) -> Sequence[Period]:
        """Closed periods with a mark on an hour or a day, by time."""

    def billed(self, day_ms: int) -> Sequence[Charge]:
        """What a day has been charged so far: its closed lines and every correction of it."""

    def correct_day(self, rated: RatedDay, lines: Sequence[Charge], booked_day_ms: int, now_ms: int) -> None:
        """Book these corrections of a closed day, keep the new proof beside the sealed one, drop the day's marks."""

    def exported(self, period: Period) -> Iterable[ExportedCharge]:
        """The lines that a period bills: its days' charges and the corrections booked in it, in a fixed order."""

    def shares(self, period: Period, level: str, at_ms: int) -> Sequence[SharedPart]:
        """What each owner of a level bears of shared costs in a period, as they were in force at an instant."""

    def close(
        self, closed: ClosedPeriod, invoices: Sequence[Invoice], level: str, receipt: Mapping[str, object]
    ) -> None:
        """The period is closed from now on; the names that its lines show are kept as they are."""


class Store(Protocol):
    """Where the ledger is kept."""

    def unit(self) -> AbstractContextManager[Unit]:
        """A transaction, alone in writing the ledger; committed at the end of the block, undone by an exception."""

    def ensure_partitions(self, days_ms: Sequence[int]) -> int:
        """Make the partitions of these days that are missing; how many were made."""


OwnerOf = Callable[[int, int, int | None], OwnerPath]
"""Who pays for a workload at an instant (unix ms)."""

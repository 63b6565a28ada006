"""What a reconciliation finds: owners + unallocated + unavailable + unobserved + stranded against
capacity x rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpuledger_collector.accounting.identities import (
    ADJUSTMENTS,
    CAPACITY,
    MONTHS,
    Identity,
    Mismatch,
)
from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, Period
from gpuledger_collector.accounting.placement import RefusedClaim
from gpuledger_collector.accounting.quantity import hours_decimal, percent_text

PARTS = ("owners", "unallocated", "unavailable", "unobserved", "stranded")
"""Where the time of the capacity went.

What commitments left unused is nobody's time, and only has a cost.
"""


@dataclass(frozen=True, slots=True)
class ChargedState(Measures):
    """The charges of a day in one state and currency, those of accelerators apart from those of
    imported counts.
    """

    day_ms: int
    state: str
    imported: bool
    currency: str | None


@dataclass
class Sums:
    """GPU-nanoseconds and, by currency, micro-units."""

    gpu_ns: int = 0
    cost: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, gpu_ns: int, cost: Mapping[str, int]) -> None:
        """Add a quantity and its costs."""
        self.gpu_ns += gpu_ns
        for currency, micro in cost.items():
            self.cost[currency] += micro


@dataclass(frozen=True)
class DayCheck:
    """One rated day: whether its three sums agree, and how much of its capacity was observed.

    `imported_ns` is usage without inventory: outside of the capacity.
    """

    day_ms: int
    until_ms: int
    capacity_ns: int
    observed_ns: int
    imported_ns: int
    holds: bool


@dataclass(frozen=True, slots=True)
class DatedCheck:
    """A day's check with its date in the zone of the bill."""

    date: str
    check: DayCheck

    @property
    def hours(self) -> tuple[Decimal | None, Decimal | None]:
        """GPU-hours of the capacity, and those that were observed; None on a day of which there is
        no inventory, as where usage is imported.
        """
        if not self.check.capacity_ns:
            return None, None
        capacity, observed = hours_decimal([self.check.capacity_ns, self.check.observed_ns], 6)
        return capacity, observed

    @property
    def imported_hours(self) -> Decimal:
        """GPU-hours of imported usage without inventory, which are in no capacity."""
        (imported,) = hours_decimal([self.check.imported_ns], 6)
        return imported

    @property
    def observed_percent(self) -> str | None:
        """The part that was observed, in percent with two places, cut off; None: no capacity."""
        check = self.check
        return percent_text(check.observed_ns, check.capacity_ns) if check.capacity_ns else None


@dataclass(frozen=True)
class Reconciliation:
    """The proof of a period, `parts` by the names of PARTS.

    `imported` is usage without inventory: outside of it.
    """

    period: Period
    parts: Mapping[str, Sums]
    capacity: Sums
    imported: Sums
    unpriced_ns: int
    days: Sequence[DayCheck]
    unused: Sums = field(default_factory=Sums)
    """Commitments' unused part: GPU-nanoseconds beyond the capacity, and their cost, which is part
    of the whole.
    """
    calendar: Calendar = UTC_DAYS
    untrue_months: Sequence[Period] = ()
    """Months of the ledger that are not the sum of its days."""
    adjusted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Adjustments of its days beside capacity x rate: micro-units by name and currency."""
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node costs, which are part of the whole: micro-units by name and currency."""
    mismatches: Sequence[Mismatch] = ()
    """Where an identity of the ledger does not hold, with both amounts; days and months stand in
    their own fields.
    """
    compared: Sequence[Identity] = ()
    """The identities that were asked."""
    claims: Sequence[RefusedClaim] = ()
    """Claims of the period that were refused and that nobody has decided."""
    uncovered: Mapping[str, int] = field(default_factory=dict)
    """Declared rows, by table, that are older than the audit log, or of which it does not have all.
    """

    @property
    def dated_days(self) -> Sequence[DatedCheck]:
        """Its days with their dates."""
        dates = (self.calendar.date_of(day.day_ms).isoformat() for day in self.days)
        return [DatedCheck(date, day) for date, day in zip(dates, self.days, strict=True)]

    @property
    def equation(self) -> str:
        """What the charges must add up to, in words."""
        commitments = [] if self.charged_parts is self.parts else ["commitments"]
        return " + ".join(
            ["capacity x rate", *commitments, *(["node costs"] if self.nodes else [])]
        )

    @property
    def charged_parts(self) -> Mapping[str, Sums]:
        """What was charged, by name: `parts`, and what commitments left unused where there are any."""
        return (
            {**self.parts, "commitment_unused": self.unused} if self.unused.gpu_ns else self.parts
        )

    @property
    def holds(self) -> bool:
        """Whether every identity holds that was asked: no report may call a ledger right that this
        calls wrong.
        """
        return (
            all(day.holds for day in self.days) and not self.untrue_months and not self.mismatches
        )

    def identity_holds(self, identity: Identity) -> bool | None:
        """Whether one identity holds; None when it was not asked."""
        if identity not in self.compared:
            return None
        if identity is CAPACITY:
            return all(day.holds for day in self.days)
        if identity is MONTHS:
            return not self.untrue_months
        return all(mismatch.identity is not identity for mismatch in self.mismatches)

    @property
    def misadjusted_days(self) -> list[int]:
        """Days (unix ms) whose adjustments are not what policies and entries make of what was held."""
        dates = {
            mismatch.place["day"]
            for mismatch in self.mismatches
            if mismatch.identity is ADJUSTMENTS
        }
        return [
            day.day_ms
            for day in self.days
            if self.calendar.date_of(day.day_ms).isoformat() in dates
        ]

    @property
    def currencies(self) -> list[str]:
        """Every currency that appears."""
        return sorted(
            {
                currency
                for sums in [*self.parts.values(), self.unused, self.capacity]
                for currency in sums.cost
            }
        )

    @property
    def coverage(self) -> Decimal | None:
        """Percent of the capacity that was observed (to two places, cut off), None without
        capacity.
        """
        capacity = sum(day.capacity_ns for day in self.days)
        if not capacity:
            return None
        observed = sum(day.observed_ns for day in self.days)
        return Decimal(observed * 10_000 // capacity).scaleb(-2)

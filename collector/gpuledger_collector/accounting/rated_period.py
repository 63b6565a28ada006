"""What the ledger knows of a period: which days are rated and up to when, what the proof said of
them, and what is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.month_proof import PeriodProof
from gpuledger_collector.accounting.period import Calendar, Period


@dataclass(frozen=True, slots=True)
class RatedPeriod:
    """A period with the checks of its rated days, the proof of its months, and every closed month
    of the ledger.
    """

    period: Period
    calendar: Calendar
    checks: Sequence[ConservationCheck]
    proof: PeriodProof
    closed_months: Sequence[ClosedPeriod]

    @property
    def rated_ms(self) -> int | None:
        """Up to when it is rated; None: no day of it is."""
        return max((check.until_ms for check in self.checks), default=None)

    @property
    def capacity_ns(self) -> int:
        """Time of the fleet on its rated days."""
        return sum(check.capacity_ns for check in self.checks)

    @property
    def observed_ns(self) -> int:
        """What of that was observed."""
        return self.capacity_ns - sum(check.unobserved_ns for check in self.checks)

    @property
    def months_touched(self) -> Sequence[ClosedPeriod]:
        """The closed months that it touches."""
        return [month for month in self.closed_months if month.period.clip(self.period)]

    @property
    def is_sealed(self) -> bool:
        """Whether all of it lies in closed months."""
        parts = (month.period.clip(self.period) for month in self.closed_months)
        return sum(part.ms for part in parts if part is not None) == self.period.ms

    @property
    def days_holding(self) -> int | None:
        """On how many of its rated days the proof held; None: not all of it was asked."""
        if self.proof.asked_ms is None:
            return None
        first = str(self.calendar.date_of(self.period.start_ms))
        last = str(self.calendar.date_of(self.period.end_ms))
        return len(self.checks) - sum(first <= day < last for day in self.proof.wrong_days)

    def days_until(self, now_ms: int) -> int:
        """How many of its days have begun."""
        begun = self.period.clip(Period(min(self.period.start_ms, now_ms), now_ms))
        return 0 if begun is None else len(self.calendar.days(begun))

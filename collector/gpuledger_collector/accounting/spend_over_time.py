"""Spend over time as a page shows it: of a range, and in it of each currency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.budget_status import Status
from gpuledger_collector.accounting.budgets import DIRECT
from gpuledger_collector.accounting.cost_flow import CostFlow
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.spend_series import (
    CORRECTION,
    Series,
    SpendRow,
    StepSpend,
    sum_rows,
)


@dataclass(frozen=True, slots=True)
class CurrencySpend:
    """The spend of one currency: the rows of the chargeback, the series of its chart, and where its
    capacity went.

    `standing` says what is spent of the range's own time and where it ends, as a budget of the same
    owner would; `budgets` are those of this owner whose period touches the range.
    """

    currency: str
    rows: Sequence[SpendRow]
    series: Sequence[Series]
    steps: Sequence[StepSpend]
    """What each bucket cost."""
    standing: Status
    budgets: Sequence[Status]
    flow: CostFlow | None

    @property
    def total(self) -> SpendRow:
        """The total of the rows as printed."""
        return sum_rows(self.rows, self.currency)

    @property
    def limits(self) -> Sequence[Status]:
        """The budgets of exactly what the running total adds up."""
        return [
            status
            for status in self.budgets
            if status.period == self.standing.period and status.budget.measure == DIRECT
        ]


@dataclass(frozen=True, slots=True)
class SpendOverTime:
    """The spend of a range by one dimension.

    `is_known` says of which buckets some day is rated; `rated_ms` up to when (None: no day is).
    """

    period: Period
    by: str
    step: str
    calendar: Calendar
    buckets: Sequence[Period]
    is_known: Sequence[bool]
    rated_ms: int | None
    currencies: Sequence[CurrencySpend]
    unpriced_ns: int
    has_inventory: bool
    notes: Sequence[str]
    team_numbers: Mapping[str, int]
    """Number of each team of the ledger, by when it came; its color follows from it."""

    def amount_at(self, spend: CurrencySpend, at: int) -> Money:
        """What a bucket cost."""
        return Money(sum(each.micros[at] or 0 for each in spend.series), spend.currency)

    def running_total(self, spend: CurrencySpend) -> list[tuple[int, int]]:
        """What was spent up to the end of each bucket, from the first to the last that is rated:
        instants and micro-units; without corrections, as budgets count it.
        """
        known_ms, micro = spend.standing.known_ms, 0
        points: list[tuple[int, int]] = []
        for at, bucket in enumerate(self.buckets):
            if bucket.start_ms >= known_ms:
                break
            # Of the time before the ledger began nothing is known: no line of zeros.
            if not points and not self.is_known[at]:
                continue
            points = points or [(bucket.start_ms, 0)]
            own = (each.micros[at] or 0 for each in spend.series if each.kind != CORRECTION)
            micro += sum(own)
            points.append((min(bucket.end_ms, known_ms), micro))
        return points

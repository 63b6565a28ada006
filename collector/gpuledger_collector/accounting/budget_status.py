"""The status of a budget, and what a message about it reports."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger_collector.accounting.budgets import Alert, Budget, Driver, percent_of
from gpuledger_collector.accounting.period import Period


@dataclass(frozen=True, slots=True)
class Spend:
    """What counts against a budget in a range of days: micro-units of its unit, GPU-nanoseconds.

    `micro` None: not known, since nothing of the period is rated, or shares of common costs are not
    computed yet; `shared_micro` is their part of it. `other_gpu_ns` is time charged in another
    currency, `unpriced_gpu_ns` time without a price: in no amount here.
    """

    micro: int | None
    idle_micro: int | None
    gpu_ns: int
    unpriced_gpu_ns: int
    other_gpu_ns: int
    shared_micro: int | None = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """Forecast of what the period ends with (micro-units of the unit), and of the days on which the
    budget runs out.

    A run-out of None is after the end of the period.
    """

    low_micro: int
    middle_micro: int
    high_micro: int
    likely_micro: int
    days_of_history: int
    earliest_ms: int | None
    run_out_ms: int | None
    latest_ms: int | None


@dataclass(frozen=True, slots=True)
class OwnerAhead:
    """Where the spending of an owner ends with a month, in one currency."""

    owner: str
    currency: str
    ahead: Ahead


@dataclass(frozen=True, slots=True)
class Status:
    """A budget in one of its periods.

    `known_ms`: the ledger is rated up to here. `ahead` None: too little history. `by_day`: what
    each rated day of the period added, in micro-units, without shares of common costs.
    """

    budget: Budget
    period: Period
    at_ms: int
    known_ms: int
    spend: Spend
    ahead: Ahead | None
    pace_percents: tuple[int, int] | None
    alerts: tuple[Alert, ...] = ()
    by_day: tuple[int, ...] = ()

    @property
    def spent_percent(self) -> int | None:
        """Spent part of the budget, in whole percent."""
        return (
            None
            if self.spend.micro is None
            else percent_of(self.spend.micro, self.budget.amount_micro)
        )

    @property
    def is_rated(self) -> bool:
        """Whether any of the period is rated; else what is spent is not known."""
        return self.known_ms > self.period.start_ms

    @property
    def elapsed_percent(self) -> int | None:
        """Rated part of the period, in whole percent; None where nothing of it is."""
        if not self.is_rated:
            return None
        return (
            max(0, min(self.known_ms, self.period.end_ms) - self.period.start_ms)
            * 100
            // self.period.ms
        )

    @property
    def is_spent(self) -> bool:
        """Whether all of the budget is known to be spent: then it no longer runs out."""
        return self.spent_percent is not None and self.spent_percent >= 100

    @property
    def ahead_of_run_out(self) -> Ahead | None:
        """The forecast of the days on which the budget runs out; None once it is spent."""
        return None if self.is_spent else self.ahead


@dataclass(frozen=True, slots=True)
class IdleNow:
    """A workload that holds idle GPUs now: their cost so far and per day, and the command that
    releases them.
    """

    label: str
    gpus: int
    cost_micro: int
    per_day_micro: int
    command: str


@dataclass(frozen=True, slots=True)
class News:
    """Content of a message: the threshold, the status, and what changed between two windows of
    equal length.

    `before` is None when no earlier day is rated: then `drivers` divide the cost of `after`.
    `shortened`: both windows are as long as the rated time before. `also`: other thresholds of the
    rule crossed at the same time. `escalated`: sent to the escalation recipients. `idle`: the most
    expensive idle workloads.
    """

    alert: Alert
    also: tuple[Alert, ...]
    status: Status
    before: Period | None
    after: Period
    drivers: tuple[Driver, ...]
    since_mail: bool
    escalated: bool = False
    idle: tuple[IdleNow, ...] = ()
    shortened: bool = False

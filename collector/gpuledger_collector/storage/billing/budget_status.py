"""What the watch over budgets asks of the ledger, and what it tells: the standing of a budget, and news of one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from gpuledger_collector.accounting.budgets import Alert, Budget, Driver, HolderSpend
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.notifications.messages import Message


@dataclass(frozen=True, slots=True)
class Spend:
    """What an owner was charged in a range of days: micro-units of the budget's currency, GPU-nanoseconds.

    `other_gpu_ns` is held time that is charged in another currency or has no price: it is in no amount here.
    """

    cost_micro: int
    idle_cost_micro: int | None
    gpu_ns: int
    unpriced_gpu_ns: int
    other_gpu_ns: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """The estimate of the period's end in micro-units, and the days (their starts) on which the budget is spent.

    A run-out of None: not before the period's end.
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
class Status:
    """A budget in one of its periods. `known_ms`: the ledger is rated up to here. `ahead` None: too little history."""

    budget: Budget
    period: Period
    at_ms: int
    known_ms: int
    spend: Spend
    ahead: Ahead | None
    pace_percents: tuple[int, int] | None
    alerts: tuple[Alert, ...] = ()

    @property
    def elapsed_percent(self) -> int:
        """How much of the period has passed, in whole percents."""
        return max(0, min(self.known_ms, self.period.end_ms) - self.period.start_ms) * 100 // self.period.ms


@dataclass(frozen=True, slots=True)
class IdleNow:
    """A workload of the owner that holds idle GPUs now: what they have cost, a day more, and what gives them back."""

    label: str
    gpus: int
    cost_micro: int
    per_day_micro: int
    command: str


@dataclass(frozen=True, slots=True)
class News:
    """What a message tells: the threshold, the standing, and what changed between two windows of equal length.

    `before` None: the ledger knows no day before them, so there is nothing to compare with and `drivers` say where the
    money of `after` went. `shortened`: both windows are as long as what it knows before. `also`: other thresholds of
    the same rule that were crossed at once. `escalated`: it is told to those above. `idle`: the dearest that could be
    given back now.
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


class BudgetUnit(Protocol):
    """One transaction in which one budget is watched, by one watcher at a time."""

    def rated_until(self, at_ms: int) -> int | None:
        """Up to when the ledger is rated without a gap before an instant; None: not at all."""

    def rated_since(self, until_ms: int) -> int:
        """The first day of the days rated without a gap up to an instant."""

    def known_since(self, period: Period) -> int:
        """From when on the ledger knows the days of a period whole and without a gap, up to its end; that: none."""

    def spend(self, budget: Budget, period: Period) -> Spend:
        """What the owner was charged on the days that begin in the period."""

    def daily(self, budget: Budget, period: Period) -> Sequence[int]:
        """Micro-units of each day of the period, in order."""

    def burnt(self, budget: Budget, period: Period) -> int:
        """About what a usage interval of time cost: charges spread evenly over the time that they span."""

    def held(self, budget: Budget, period: Period) -> Sequence[HolderSpend]:
        """Who held what on the days of the period."""

    def idle(self, budget: Budget, at_ms: int) -> Sequence[IdleNow]:
        """Workloads of the owner that hold idle GPUs now, priced in the budget's currency, the dearest day first."""

    def alerts(self, budget: Budget, period: Period) -> Sequence[Alert]:
        """The alerts of a period."""

    def keep(self, budget: Budget, period: Period, alerts: Sequence[Alert], spent_micro: int) -> None:
        """Alerts as they are now."""

    def put(self, message: Message) -> bool:
        """A message, to be sent when this transaction is committed."""


class BudgetStore(Protocol):
    """Where budgets are kept."""

    def budgets(self) -> Sequence[Budget]:
        """The budgets in force, by name."""

    def watch(self, budget: Budget) -> AbstractContextManager[BudgetUnit | None]:
        """A transaction, alone in watching this budget; None when it is no longer in force."""

"""Which candidate a pool runs today: the tuned reactive setting, or a forecast that waited less
lately.

Every candidate is replayed on the pool's own past. The *tuned* reactive setting, which waited least
within the cost cap there, is the reference. At the start of each day the last ten days are
compared: among the forecasts that kept within the budget and did not change capacity much more
often than the reference, the one that waited least is selected; the reference itself where none
waited less. What a wrong choice can do is bounded by the guarded replay, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.scaling.policies import PolicySetting
from gpuledger_collector.insight.scaling.simulation import CapacityBudget, unmet
from gpuledger_collector.insight.series import Flags, Floats, Ints

HISTORY_DAYS = 10
"""Days before the first choice."""
SETTLE_DAYS = 3
"""Days that estimators need before a replay counts."""


@dataclass(frozen=True)
class SelectionRules:
    """How a day's candidate is selected, and what it may spend."""

    window_days: int = 10
    actions: float = 1.25  # most capacity changes, relative to the tuned reactive
    cost_ratio: float = 1.02  # most cost, relative to the tuned reactive
    lent_days: float = 14.0  # days over which money that is spent in advance is repaid

    def budget(self, cap: float, demand: float, per_day: int) -> CapacityBudget:
        """Return the budget of a pool with this mean demand: half of what the loan's days allow is
        lent.
        """
        steps = self.lent_days * per_day
        return CapacityBudget(
            cap, self.cost_ratio, (self.cost_ratio - 1) * demand * steps / 2, steps
        )


@dataclass(frozen=True)
class DailyTotals:
    """Each candidate's sums per day, shape (days, K); demand (days,)."""

    capacity: Floats
    wait: Floats
    actions: Floats
    demand: Floats

    def days_between(self, first: int, last: int) -> DailyTotals:
        """The days from `first` to before `last`."""
        return self._each(lambda table: table[first:last], self.demand[first:last])

    def _each(self, change: Callable[[Floats], Floats], demand: Floats) -> DailyTotals:
        return DailyTotals(change(self.capacity), change(self.wait), change(self.actions), demand)


EPSILON = 1e-9


def daily_totals(demand: Floats, capacity: Floats, known: Flags, per_day: int) -> DailyTotals:
    """Sum the replayed candidates by day; steps without known demand count for none, and no more
    does the last day.
    """
    # The last day may be incomplete: it is padded with steps that count for no policy.
    pad = (0, -len(demand) % per_day)
    counts = np.pad(known, pad)[:, None]

    def sum_by_day(values: Floats) -> Floats:
        counted = np.where(counts, np.pad(values, (pad, (0, 0))), 0.0)
        return np.asarray(counted.reshape(-1, per_day, values.shape[1]).sum(axis=1))

    moved = np.abs(np.diff(capacity, axis=0, prepend=capacity[:1])) > EPSILON
    each = demand[:, None]
    return DailyTotals(
        sum_by_day(capacity),
        sum_by_day(unmet(each, capacity)),
        sum_by_day(moved.astype(float)),
        sum_by_day(each)[:, 0],
    )


def tuned_reactive(totals: DailyTotals, settings: Sequence[PolicySetting], cap: float) -> int:
    """Return the reactive candidate that waited least within `cap` x demand, the cheapest if none
    is within.
    """
    reactive = np.array([not setting.predictive for setting in settings])
    spent, waited = totals.capacity.sum(axis=0), totals.wait.sum(axis=0)
    best = _least(waited, spent, reactive & (spent <= cap * totals.demand.sum() + EPSILON))
    return int(np.argmin(np.where(reactive, spent, np.inf))) if best is None else best


def select(
    totals: DailyTotals, anchor: int, challengers: Flags, cap: float, rules: SelectionRules
) -> int:
    """Return the column to run by these days: a challenger that waited less than the tuned
    reactive, or `anchor`.

    It must have cost no more than the budget allows, and not have changed capacity much more often.
    """
    spent, waited, actions = (
        table.sum(axis=0) for table in (totals.capacity, totals.wait, totals.actions)
    )
    most = rules.budget(cap, 0.0, 0).most(float(totals.demand.sum()), float(spent[anchor]))
    calm = actions <= rules.actions * actions[anchor]
    best = _least(waited, spent, challengers & calm & (spent <= most + EPSILON))
    return anchor if best is None or waited[best] > waited[anchor] - EPSILON else best


def _least(loss: Floats, spent: Floats, among: Flags) -> int | None:
    """The candidate with least loss, of equals the cheapest; None when there is none."""
    index = np.flatnonzero(among)
    return int(index[np.lexsort((spent[index], loss[index].round(6)))[0]]) if len(index) else None


def schedule(
    totals: DailyTotals,
    anchor: int,
    challengers: Flags,
    cap: float,
    rules: SelectionRules,
    days: int,
) -> Ints:
    """Return the column to run on each of `days`, selected with what was known at its start.

    `anchor` in the history. The last day may be the one after `totals`.
    """
    chosen = np.full(days, anchor)
    for day in range(HISTORY_DAYS, days):
        # The window ends before this day, so the choice uses nothing that was not known at its
        # start.
        window = totals.days_between(max(SETTLE_DAYS, day - rules.window_days), day)
        chosen[day] = select(window, anchor, challengers, cap, rules)
    return chosen

"""Which candidate a pool runs today: the one with the least risk lately, within its budget.

Every candidate is replayed on the pool's own past. At the start of each day the last four weeks are compared: among the
candidates that kept within the budget and did not change capacity much more often than the tuned reactive one, the one
with least *risk* is selected: its wait if demand had been as uncertain in each step as it usually is over the lead
time. Few waits are seen in four weeks, and a choice by those few alone is luck; risk counts the near misses too.

The budget is the smaller of the pool's cost cap and the cost of the tuned reactive scaler. A forecast is used only
where it beat the best reactive candidate by a margin, and by more than its gain varies from day to day: where demand
cannot be foreseen, the pool runs plain headroom. Overspending is saved in the days to come, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.scaling.policies import PolicySetting
from gpuledger_collector.insight.series import Flags, Floats, Ints


@dataclass(frozen=True)
class SelectionRules:
    """How a day's candidate is selected."""

    window_days: int = 28
    margin: float = 0.97  # a forecast's risk must have been at most this share of the best reactive's
    confidence: float = 0.5  # and lower by this many standard errors of the daily differences
    actions: float = 1.2  # most capacity changes, relative to the tuned reactive
    min_actions_per_day: float = 4.0  # this many changes are always allowed
    cost_ratio: float = 1.02  # most cost, relative to the tuned reactive
    repay_days: float = 7.0  # over how many days over- and underspending is evened out
    max_repaid: float = 0.03  # of a day's demand


@dataclass(frozen=True)
class DailyTotals:
    """Each candidate's sums per day, shape (days, K); demand (days,)."""

    capacity: Floats
    wait: Floats
    risk: Floats
    actions: Floats
    demand: Floats

    def _each(self, change: Callable[[Floats], Floats], demand: Floats) -> DailyTotals:
        return DailyTotals(change(self.capacity), change(self.wait), change(self.risk), change(self.actions), demand)

    def between(self, first: int, last: int) -> DailyTotals:
        """The days from `first` to before `last`."""
        return self._each(lambda table: table[first:last], self.demand[first:last])

    def of(self, columns: Ints) -> DailyTotals:
        """Some of the candidates."""
        return self._each(lambda table: table[:, columns], self.demand)

    @classmethod
    def joined(cls, *parts: DailyTotals) -> DailyTotals:
        """The candidates of all parts side by side, over the same days."""
        tables = zip(*((part.capacity, part.wait, part.risk, part.actions) for part in parts), strict=True)
        capacity, wait, risk, actions = (np.hstack(table) for table in tables)
        return cls(capacity, wait, risk, actions, parts[0].demand)

    def cost_of(self, column: int) -> float:
        """Capacity of one candidate as a multiple of demand."""
        return float(self.capacity[:, column].sum() / max(self.demand.sum(), EPSILON))


EPSILON = 1e-9


def typical_change(demand: Floats, delay: int) -> float:
    """Return the GPUs by which demand usually changes over the lead time of `delay` steps, at least a quarter."""
    moved = np.abs(demand[delay:] - demand[:-delay]) if len(demand) > delay else np.zeros(1)
    return max(0.25, float(moved.mean()))


def daily_totals(demand: Floats, capacity: Floats, known: Flags, per_day: int, spread: float) -> DailyTotals:
    """Sum the replayed candidates by day; steps without known demand count for none.

    Risk is the expected shortfall E[max(0, demand + e - capacity)] with e Laplace-distributed of scale `spread` GPUs.
    """
    days = len(demand) // per_day
    use = known[: days * per_day, None]

    def summed(values: Floats) -> Floats:
        counted = np.where(use, values[: days * per_day], 0.0)
        return np.asarray(counted.reshape(days, per_day, -1).sum(axis=1))

    moved = np.abs(np.diff(capacity, axis=0, prepend=capacity[:1])) > EPSILON
    short = demand[:, None] - capacity
    wait = summed(np.maximum(short, 0.0))
    near_misses = summed(0.5 * spread * np.exp(-np.abs(short) / spread))
    return DailyTotals(
        summed(capacity), wait, wait + near_misses, summed(moved.astype(float)), summed(demand[:, None])[:, 0]
    )


def tuned_reactive(totals: DailyTotals, settings: Sequence[PolicySetting], cap: float) -> int:
    """Return the reactive candidate that waited least within `cap` x demand, the cheapest if none is within."""
    reactive = _reactive(settings)
    spent, waited = totals.capacity.sum(axis=0), totals.wait.sum(axis=0)
    best = _least(waited, spent, reactive & (spent <= cap * totals.demand.sum() + EPSILON))
    return int(np.argmin(np.where(reactive, spent, np.inf))) if best is None else best


def _reactive(settings: Sequence[PolicySetting]) -> Flags:
    return np.array([not setting.predictive for setting in settings])


def select(
    totals: DailyTotals,
    settings: Sequence[PolicySetting],
    anchor: int,
    allowed: float,
    rules: SelectionRules | None = None,
) -> tuple[int, int]:
    """Return (column to run, column of the best reactive) by these days, with capacity <= `allowed` x demand.

    `anchor` is the tuned reactive's column, the measure of how often capacity may change. Where no reactive candidate
    is affordable it is selected itself.
    """
    rules = rules or SelectionRules()
    reactive = _reactive(settings)
    spent, risk, actions = (table.sum(axis=0) for table in (totals.capacity, totals.risk, totals.actions))
    calm = actions <= max(rules.actions * actions[anchor], rules.min_actions_per_day * len(totals.demand))
    eligible = calm & (spent <= allowed * totals.demand.sum() + EPSILON)
    base = _least(risk, spent, reactive & eligible)
    ahead = _least(risk, spent, ~reactive & eligible)
    if base is None:
        base = anchor
    if ahead is None:
        return base, base
    # Day by day, so that the spread of the differences says whether the gain is luck.
    gains = totals.risk[:, base] - totals.risk[:, ahead]
    doubt = float(gains.std(ddof=1)) * np.sqrt(len(gains)) if len(gains) > 1 else np.inf
    gain = float(gains.sum())
    # Both: a small gain is not worth a forecast, and a large one that comes from one day is not a gain.
    worth = gain > (1 - rules.margin) * risk[base] and gain > rules.confidence * doubt
    return (ahead if worth else base), base


def _least(loss: Floats, spent: Floats, among: Flags) -> int | None:
    """The candidate with least loss, of equals the cheapest; None when there is none."""
    index = np.flatnonzero(among)
    return int(index[np.lexsort((spent[index], loss[index].round(6)))[0]]) if len(index) else None


def affordable(totals: DailyTotals, anchor: int, cap: float, rules: SelectionRules) -> float:
    """Return capacity as a multiple of demand: the cap, or slightly more than the tuned reactive cost on these days."""
    return min(cap, rules.cost_ratio * totals.cost_of(anchor))


@dataclass(frozen=True)
class SelectionPlan:
    """How candidates are selected day by day: the first day, the cost cap, the tuned reactive's column, the rules."""

    first_day: int
    cap: float
    anchor: int
    rules: SelectionRules
    settle_days: int = 3


def schedule(totals: DailyTotals, settings: Sequence[PolicySetting], plan: SelectionPlan) -> Ints:
    """Return the column to run on each day from the first on, selected with what was known at the start of that day."""
    rules, anchor = plan.rules, plan.anchor
    days = len(totals.demand)
    chosen = np.zeros(days, dtype=np.int64)
    spent = wanted = theirs = 0.0
    for day in range(plan.first_day, days):
        window = totals.between(max(plan.settle_days, day - rules.window_days), day)
        # Spread over some days, since a debt that is repaid at once would leave the pool without headroom for a day.
        repayable = max(rules.repay_days * float(window.demand.mean()), EPSILON)
        # What is left of the cap, and of the tuned reactive's cost, is evened out a little each day.
        left, left_of_reference = (
            float(np.clip(balance / repayable, -rules.max_repaid, rules.max_repaid))
            for balance in (plan.cap * wanted - spent, rules.cost_ratio * theirs - spent)
        )
        # The window ends before this day, so the choice uses nothing that was not known at its start.
        allowed = min(plan.cap + left, rules.cost_ratio * window.cost_of(anchor) + left_of_reference)
        chosen[day], _ = select(window, settings, anchor, allowed, rules)
        spent += float(totals.capacity[day, chosen[day]])
        theirs += float(totals.capacity[day, anchor])
        wanted += float(totals.demand[day])
    return chosen

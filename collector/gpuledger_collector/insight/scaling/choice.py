"""Which candidate a pool runs today: the one that would have been safest lately, within its budget.

Every candidate is replayed on the pool's own past. At the start of each day the last four weeks are looked at: among
the candidates that kept within the money and were not much busier than the tuned reactive one, the one with least
*risk* is taken: its wait had demand been as uncertain in each step as it usually is over the lead time. Few waits are
seen in four weeks, and a choice by those few alone is luck; risk counts the near misses too.

The money is that of the budget and of the tuned reactive scaler, whichever is less. A forecast is switched on only
where it beat the best reactive candidate by a margin, and by more than its gain varies from day to day: where demand
cannot be foreseen, the pool runs plain headroom. What was overspent is saved in the days to come, and the other way
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.scaling.policies import PolicySetting
from gpuledger_collector.insight.series import Floats, Ints


@dataclass(frozen=True)
class SelectionRules:
    """How a day's candidate is chosen."""

    window_days: int = 28
    margin: float = 0.97  # a forecast's risk must have been at most this share of the best reactive's
    confidence: float = 0.5  # and lower by this many standard errors of the daily differences
    actions: float = 1.2  # nor may it have changed capacity more often than this many times the tuned reactive
    least_actions_per_day: float = 4.0  # below this nobody minds
    dearer: float = 1.02  # nor have cost more than this many times the tuned reactive
    repay_days: float = 7.0  # over how many days over- and underspending is evened out
    most_repaid: float = 0.03  # of a day's demand


@dataclass(frozen=True)
class DailyTotals:
    """Each candidate's sums of each day, shape (days, K); demand (days,)."""

    capacity: Floats
    wait: Floats
    risk: Floats
    actions: Floats
    demand: Floats

    def between(self, first: int, last: int) -> DailyTotals:
        """The days from `first` to before `last`."""
        return DailyTotals(
            *(table[first:last] for table in (self.capacity, self.wait, self.risk, self.actions, self.demand))
        )

    @classmethod
    def joined(cls, *parts: DailyTotals) -> DailyTotals:
        """The candidates of all parts side by side, over the same days."""
        capacity, wait, risk, actions = (
            np.hstack([getattr(part, name) for part in parts]) for name in ("capacity", "wait", "risk", "actions")
        )
        return cls(capacity, wait, risk, actions, parts[0].demand)

    def of(self, columns: Ints) -> DailyTotals:
        """The same for some of the candidates."""
        return DailyTotals(
            self.capacity[:, columns],
            self.wait[:, columns],
            self.risk[:, columns],
            self.actions[:, columns],
            self.demand,
        )


def typical_change(demand: Floats, delay: int) -> float:
    """GPUs by which demand usually changes over the lead time of `delay` steps, a quarter of a GPU at least."""
    moved = np.abs(demand[delay:] - demand[:-delay]) if len(demand) > delay else np.zeros(1)
    return max(0.25, float(moved.mean()))


def daily_totals(
    demand: Floats, capacity: Floats, known: npt.NDArray[np.bool_], per_day: int, spread: float
) -> DailyTotals:
    """Daily sums of the replayed candidates; steps without known demand count for nobody.

    Risk is the expected shortfall E[max(0, demand + e - capacity)] with e Laplace-distributed of scale `spread` GPUs.
    """
    days = len(demand) // per_day
    use = known[: days * per_day, None]

    def summed(values: Floats) -> Floats:
        kept = np.where(use, values[: days * per_day], 0.0)
        return np.asarray(kept.reshape(days, per_day, -1).sum(axis=1))

    moved = np.abs(np.diff(capacity, axis=0, prepend=capacity[:1])) > 1e-9
    short = demand[:, None] - capacity
    wait = summed(np.maximum(short, 0.0))
    near = summed(0.5 * spread * np.exp(-np.abs(short) / spread))
    return DailyTotals(summed(capacity), wait, wait + near, summed(moved.astype(float)), summed(demand[:, None])[:, 0])


def tuned_reactive(seen: DailyTotals, settings: Sequence[PolicySetting], cap: float) -> int:
    """The reactive candidate that waited least on these days within `cap` x demand, the cheapest if none is within."""
    reactive = np.array([not setting.predictive for setting in settings])
    spent, waited = seen.capacity.sum(axis=0), seen.wait.sum(axis=0)
    found = _least(waited, spent, reactive & (spent <= cap * seen.demand.sum() + 1e-9))
    return int(np.argmin(np.where(reactive, spent, np.inf))) if found is None else found


def select(
    seen: DailyTotals,
    settings: Sequence[PolicySetting],
    anchor: int,
    allowed: float,
    rules: SelectionRules | None = None,
) -> tuple[int, int]:
    """(column to run, column of the best reactive) by these days, with capacity <= `allowed` x demand.

    `anchor` is the tuned reactive's column: what nobody may be much busier than. Where no reactive candidate is
    affordable it is the anchor itself.
    """
    rules = rules or SelectionRules()
    reactive = np.array([not setting.predictive for setting in settings])
    spent, risk, actions = seen.capacity.sum(axis=0), seen.risk.sum(axis=0), seen.actions.sum(axis=0)
    fits = spent <= allowed * seen.demand.sum() + 1e-9
    calm = actions <= max(rules.actions * actions[anchor], rules.least_actions_per_day * len(seen.demand))
    base = _least(risk, spent, reactive & calm & fits)
    ahead = _least(risk, spent, ~reactive & calm & fits)
    if base is None:
        base = anchor
    if ahead is None:
        return base, base
    gains = seen.risk[:, base] - seen.risk[:, ahead]
    doubt = float(gains.std(ddof=1)) * np.sqrt(len(gains)) if len(gains) > 1 else np.inf
    gain = float(gains.sum())
    worth = gain > (1 - rules.margin) * risk[base] and gain > rules.confidence * doubt
    return (ahead if worth else base), base


def _least(loss: Floats, spent: Floats, among: npt.NDArray[np.bool_]) -> int | None:
    """The candidate with least loss, of equals the cheapest; None when there is none."""
    if not among.any():
        return None
    index = np.flatnonzero(among)
    return int(index[np.lexsort((spent[index], loss[index].round(6)))[0]])


def affordable(seen: DailyTotals, anchor: int, cap: float, rules: SelectionRules) -> float:
    """Capacity as a multiple of demand: the budget, or what the tuned reactive cost on these days and a little more."""
    return min(cap, rules.dearer * float(seen.capacity[:, anchor].sum() / max(seen.demand.sum(), 1e-9)))


@dataclass(frozen=True)
class SelectionPlan:
    """How candidates are chosen day by day: the first day, the budget, the tuned reactive, and how."""

    first_day: int
    cap: float
    anchor: int
    rules: SelectionRules
    settle_days: int = 3


def schedule(table: DailyTotals, settings: Sequence[PolicySetting], plan: SelectionPlan) -> Ints:
    """The column to run on each day from the first on, each chosen with what was known at the start of that day."""
    rules, anchor = plan.rules, plan.anchor
    days = len(table.demand)
    chosen = np.zeros(days, dtype=np.int64)
    spent = wanted = theirs = 0.0
    for day in range(plan.first_day, days):
        seen = table.between(max(plan.settle_days, day - rules.window_days), day)
        usual = max(rules.repay_days * float(seen.demand.mean()), 1e-9)

        def evened(left: float, usual: float = usual) -> float:
            return float(np.clip(left / usual, -rules.most_repaid, rules.most_repaid))

        allowed = min(
            plan.cap + evened(plan.cap * wanted - spent),
            rules.dearer * float(seen.capacity[:, anchor].sum() / max(seen.demand.sum(), 1e-9))
            + evened(rules.dearer * theirs - spent),
        )
        chosen[day], _ = select(seen, settings, anchor, allowed, rules)
        spent += float(table.capacity[day, chosen[day]])
        theirs += float(table.capacity[day, anchor])
        wanted += float(table.demand[day])
    return chosen

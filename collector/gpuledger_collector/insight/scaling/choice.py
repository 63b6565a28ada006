"""Which candidate a pool runs today: the one that would have waited least lately, within its budget.

Every candidate is replayed on the pool's own past. At the start of each day the last four weeks are looked at: among
the candidates that kept within the money and were not much busier than the best reactive one, the one with least wait
is taken. A forecast is switched on only where it beat the best reactive candidate by a margin: where demand cannot be
foreseen, the pool runs plain headroom. What was overspent so far is saved in the days to come, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.scaling.policies import Setting
from gpuledger_collector.insight.series import Floats, Ints


@dataclass(frozen=True)
class Rules:
    """How a day's candidate is chosen."""

    window_days: int = 28
    margin: float = 0.97  # a forecast must have waited at most this share of the best reactive
    actions: float = 1.2  # and changed capacity at most this many times as often
    least_actions_per_day: float = 4.0  # below this nobody minds
    least_gain: float = 0.00001  # of demand: less wait than this to be won is nothing to switch for
    repay_days: float = 3.0  # over how many days over- and underspending is evened out
    most_repaid: float = 0.06  # of a day's demand


@dataclass(frozen=True)
class Tally:
    """Each candidate's sums up to the start of each day, shape (days + 1, K); demand and known steps (days + 1,)."""

    capacity: Floats
    wait: Floats
    actions: Floats
    demand: Floats

    def between(self, first: int, last: int) -> Tally:
        """The sums from the start of day `first` to the start of day `last`, one row each."""
        return Tally(*(table[last] - table[first] for table in (self.capacity, self.wait, self.actions, self.demand)))

    def of(self, columns: Ints) -> Tally:
        """The same for some of the candidates."""
        return Tally(self.capacity[:, columns], self.wait[:, columns], self.actions[:, columns], self.demand)


def tally(demand: Floats, capacity: Floats, known: npt.NDArray[np.bool_], per_day: int) -> Tally:
    """Sums of the replayed candidates; steps without known demand count for nobody."""
    count = len(demand)
    days = count // per_day
    use = known[: days * per_day, None]

    def summed(values: Floats) -> Floats:
        kept = np.where(use, values[: days * per_day], 0.0)
        daily = kept.reshape(days, per_day, -1).sum(axis=1)
        return np.concatenate([np.zeros((1, daily.shape[1])), np.cumsum(daily, axis=0)])

    moved = np.abs(np.diff(capacity, axis=0, prepend=capacity[:1])) > 1e-9
    short = np.maximum(demand[:, None] - capacity, 0.0)
    return Tally(summed(capacity), summed(short), summed(moved.astype(float)), summed(demand[:, None])[:, 0])


def best(
    sums: Tally, settings: Sequence[Setting], allowed: float, days: float, rules: Rules | None = None
) -> tuple[int, int]:
    """(column to run, column of the best reactive) from one window's sums, with capacity <= allowed x demand.

    Without anything affordable the cheapest candidate is taken.
    """
    rules = rules or Rules()
    reactive = np.array([not setting.predictive for setting in settings])
    budget = allowed * sums.demand + 1e-9
    base = _least(sums, reactive & (sums.capacity <= budget))
    if base is None:
        base = int(np.argmin(np.where(reactive, sums.capacity, np.inf)))
    calm = sums.actions <= max(rules.actions * sums.actions[base], rules.least_actions_per_day * days)
    ahead = _least(sums, ~reactive & calm & (sums.capacity <= budget))
    if ahead is None:
        return base, base
    affordable = sums.capacity[base] <= budget
    gain = sums.wait[base] - sums.wait[ahead]
    worth = gain > (1 - rules.margin) * sums.wait[base] and gain > rules.least_gain * sums.demand
    return (ahead if worth or not affordable else base), base


def _least(sums: Tally, among: npt.NDArray[np.bool_]) -> int | None:
    """The candidate with least wait, of equals the cheapest; None when there is none."""
    if not among.any():
        return None
    index = np.flatnonzero(among)
    return int(index[np.lexsort((sums.capacity[index], sums.wait[index].round(6)))[0]])


def schedule(
    table: Tally,
    settings: Sequence[Setting],
    first_day: int,
    cap: float,
    rules: Rules | None = None,
    settle_days: int = 3,
) -> Ints:
    """The column to run on each day from `first_day` on, each chosen with what was known at the start of that day."""
    rules = rules or Rules()
    days = len(table.demand)
    chosen = np.zeros(days, dtype=np.int64)
    spent = wanted = 0.0
    for day in range(first_day, days):
        since = max(settle_days, day - rules.window_days)
        sums = table.between(since, day)
        usual = float(sums.demand) / (day - since)
        repay = (cap * wanted - spent) / max(rules.repay_days * usual, 1e-9)
        allowed = cap + float(np.clip(repay, -rules.most_repaid, rules.most_repaid))
        chosen[day], _ = best(sums, settings, allowed, day - since, rules)
        if day + 1 < days:
            today = table.between(day, day + 1)
            spent += float(today.capacity[chosen[day]])
            wanted += float(today.demand)
    return chosen

"""Outcome of a capacity policy: the loop by which every policy is judged.

At the end of step t a policy has seen the demand up to t and states how many GPUs it wants. What is
ordered then serves `delay` steps later and is counted from when it serves. What is released goes at
once, youngest orders first, but a busy GPU is never taken. Many policies run side by side as
columns, so a grid of hundreds costs little more than one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.series import Flags, Floats, Ints

EPSILON = 1e-9
TOLERANCE = 0.1
"""Kubernetes' horizontal autoscaler leaves capacity alone while utilization is within this ratio of
its target.
"""


@dataclass(frozen=True)
class Outcome:
    """Over the judged part: GPU-hours of capacity, demand and wait (demand above capacity), and
    what starts felt.

    `wait_p95_s`: a start is an upward crossing of one more whole GPU of demand; it waits until
    capacity reaches it or demand leaves it; this is the 95th percentile over all starts. `actions`:
    steps in which the capacity changed.
    """

    capacity: float
    demand: float
    wait: float
    wait_p95_s: float
    starts: int
    cold_starts: int
    actions: int


class _Capacity:
    """Serving capacity of K policies, and their orders by the step in which they serve, shape
    (delay, K).
    """

    def __init__(self, serving: Floats, delay: int) -> None:
        self.serving = serving
        self.orders = np.zeros((delay, len(serving)))

    def advance(self) -> Floats:
        """Begin a step: the oldest orders serve."""
        self.serving = self.serving + self.orders[0]
        self.orders = np.concatenate([self.orders[1:], np.zeros((1, len(self.serving)))])
        return self.serving

    def committed_capacity(self) -> Floats:
        """Capacity of the next `delay` steps if nothing is ordered or released, shape (delay, K)."""
        return np.asarray(self.serving + np.cumsum(self.orders, axis=0))

    def apply(self, target: Floats, keep: Floats, busy: float) -> None:
        """End a step: order up to `target`, release down to `keep`, and leave `busy` GPUs alone."""
        # What is ordered counts already, or each step of the delay would order the same GPUs again.
        coming = self.serving + self.orders.sum(axis=0)
        self.orders[-1] += np.maximum(target - coming, 0.0)
        drop = np.maximum(coming - np.maximum(keep, target), 0.0)
        if drop.any():
            # The youngest orders first: they would have served last, so canceling them loses least.
            for row in reversed(self.orders):
                cancelled = np.minimum(drop, row)
                row -= cancelled
                drop -= cancelled
            # Never below what is busy: a job that runs is not killed to save capacity.
            self.serving = np.maximum(self.serving - drop, np.minimum(busy, self.serving))


def rolling_max(values: Floats, window: int) -> Floats:
    """Return the largest of the last `window` values up to each row (axis 0), itself included;
    window >= 1.
    """
    out = values.copy()
    reach = 1
    # Doubling: the maximum over a window takes log2(window) passes.
    while reach < window:
        shift = min(reach, window - reach)
        if shift >= len(out):
            return np.asarray(np.maximum.accumulate(values, axis=0))
        out[shift:] = np.maximum(out[shift:], out[:-shift].copy())
        reach += shift
    return out


def simulate(
    demand: Floats, target: Floats, keep: Floats, delay: int, start: int = 0, node_gpus: float = 0.0
) -> Floats:
    """Return the capacity (n, K) of K policies over `demand` (n,), each stating `target` (n, K)
    GPUs after each step.

    `keep` (n, K), at least `target`, is the capacity below which a policy does not release (its
    hold time). Before `start` the capacity equals the demand. With `node_gpus` capacity comes in
    whole nodes.
    """
    target, keep = whole_nodes(target, node_gpus), whole_nodes(keep, node_gpus)
    held = whole_nodes(demand, node_gpus)
    capacity = np.empty(target.shape)
    capacity[:start] = held[:start, None]
    fleet = _Capacity(np.full(target.shape[1], held[max(0, start - 1)]), delay)
    for step in range(start, len(demand)):
        capacity[step] = fleet.advance()
        fleet.apply(target[step], keep[step], held[step])
    return capacity


@dataclass(frozen=True)
class CapacityRequest:
    """What policies state after each step, shape (n,) or (n, K): GPUs wanted, and kept when demand
    falls.
    """

    target: Floats
    keep: Floats


@dataclass(frozen=True)
class CapacityBudget:
    """Spending limits: `cap` x demand for all capacity, and `ratio` x the reference for a forecast.

    `lent` GPU-steps more may be spent at first; they are repaid evenly over `lent_steps`.
    """

    cap: float
    ratio: float
    lent: float
    lent_steps: float

    def most(self, demand: float, reference: float) -> float:
        """Most that a forecast may have spent, given the demand and what the reference spent on it."""
        return max(reference, min(self.ratio * reference, self.cap * demand))

    def remaining(self, demand: float, spent: Floats, steps: int) -> Floats:
        """What may still be spent after these steps; below 0 where more is spent than allowed."""
        return np.asarray(self.cap * demand + self.lent_at(steps) - spent)

    def allows(self, demand: float, spent: float, steps: int) -> bool:
        """Whether somebody who spent so much after these steps has kept to the cap and the loan."""
        return spent <= self.cap * demand + self.lent_at(steps) + EPSILON

    def lent_at(self, steps: int) -> float:
        """Part of the loan that is not repaid after these steps."""
        return self.lent * max(0.0, 1 - steps / self.lent_steps) if self.lent_steps else 0.0


class GuardedReplay:
    """K policies step by step, each kept from waiting more than a reference policy and from
    spending too much.

    *No overspending:* a step has no more capacity than what is left of the cap pays for, even if all
    demand ends, and no less than what is busy. So a policy has never spent more than the cap, the
    loan and one step of its busy GPUs, whatever the reference spends; the loan is repaid unless
    demand collapses before. *No dearer forecasts:* once `ratio` x the reference is spent, it orders no more than the
    reference. *No harm:* within the cap it may hold less than the reference only as far as the wait
    that it has saved pays for the worst that can come of it before new orders serve. A reference
    that has itself passed the cap is not followed. So while the cap binds neither, it has at no step
    waited more.
    """

    def __init__(
        self, held: float, delay: int, node_gpus: float, budget: CapacityBudget, count: int = 1
    ) -> None:
        self._ours, self._reference = (
            _Capacity(np.full(columns, held), delay) for columns in (count, 1)
        )
        self._delay, self._node, self._budget = delay, node_gpus, budget
        self._saved_wait, self._spent = np.zeros(count), np.zeros(count)
        self._demand = self._reference_spent = 0.0
        self._steps = 0

    @property
    def coming(self) -> Floats:
        """What each policy has, orders included, shape (K,)."""
        return np.asarray(self._ours.committed_capacity()[-1])

    @property
    def reference_coming(self) -> float:
        """What the reference has, orders included."""
        return float(self._reference.committed_capacity()[-1, 0])

    def step(
        self,
        demand: float,
        own: tuple[Floats, Floats] | None,
        reference: tuple[Floats, Floats],
        *,
        known: bool = True,
    ) -> Floats:
        """Play one step; return the capacity that served in it.

        Without `own` requests all follow the reference.
        """
        theirs, ours = float(self._reference.advance()[0]), self._ours.advance()
        held = float(whole_nodes(np.asarray(demand), self._node))
        self._apply(self._reference, reference, held)
        if own is None:
            own = reference
        else:
            # An unknown step neither earns nor spends: its demand is made up.
            if known:
                self._demand += demand
                self._reference_spent += theirs
                self._spent += ours
                self._saved_wait += max(demand - theirs, 0.0) - unmet(np.asarray(demand), ours)
            self._steps += 1
            own = self._bound_by_budget(own, reference, held)
        self._apply(self._ours, own, held)
        return ours

    def _apply(self, fleet: _Capacity, request: tuple[Floats, Floats], held: float) -> None:
        target, keep = (
            whole_nodes(np.broadcast_to(gpus, fleet.serving.shape), self._node) for gpus in request
        )
        fleet.apply(target, keep, held)

    def _bound_by_budget(
        self, own: tuple[Floats, Floats], reference: tuple[Floats, Floats], held: float
    ) -> tuple[Floats, Floats]:
        """Target and keep that the cap pays for, and not below what the saved wait allows."""
        most = self._budget.most(self._demand, self._reference_spent) + self._budget.lent_at(
            self._steps
        )
        paid = self._spent < most
        theirs, ours = self._reference.committed_capacity(), self._ours.committed_capacity()
        # What is on its way cannot be hurried: the wait that it may cost already is set aside
        # first.
        at_stake = np.maximum(theirs[:-1] - ours[:-1], 0.0).sum(axis=0)
        least = theirs[-1] - np.maximum(self._saved_wait - at_stake, 0.0) / self._delay
        # Money that follows a reference into its quiet hours is missing where demand rises.
        if not self._budget.allows(self._demand, self._reference_spent, self._steps):
            least = np.zeros_like(least)
        # Money is a limit that people set, so it beats the wait of a reference that passes it. A node
        # that is bought in part is not bought.
        affordable = self._budget.remaining(self._demand, self._spent, self._steps)
        if self._node:
            affordable = np.floor(affordable / self._node + 1e-6) * self._node
        affordable = np.maximum(affordable, held)
        target, keep = (
            np.minimum(
                np.maximum(np.where(paid, ours_, np.minimum(ours_, theirs_)), least), affordable
            )
            for ours_, theirs_ in zip(own, reference, strict=True)
        )
        return target, keep


def simulate_within(
    demand: Floats,
    own: CapacityRequest,
    reference: CapacityRequest,
    replay: GuardedReplay,
    known: Flags,
    span: tuple[int, int],
) -> Floats:
    """Return the capacity (n, K) of guarded policies; in `span` (start, first) all follow the
    reference.

    `own` is of shape (n, K), `reference` of shape (n, 1). Before `start` the capacity equals the
    demand.
    """
    start, first = span
    capacity = np.repeat(demand[:, None], own.target.shape[1], axis=1)
    for step in range(start, len(demand)):
        capacity[step] = replay.step(
            float(demand[step]),
            (own.target[step], own.keep[step]) if step >= first else None,
            (reference.target[step], reference.keep[step]),
            known=bool(known[step]),
        )
    return capacity


def simulate_autoscaler(
    demand: Floats,
    utilization: float,
    window: int,
    delay: int,
    start: int = 0,
    node_gpus: float = 0.0,
) -> Floats:
    """Return the capacity (n,) of Kubernetes' horizontal autoscaler: ceil(capacity x utilization /
    target).

    The highest request of the last `window` steps is kept on the way down (its stabilization
    window).
    """
    unit = node_gpus or 1.0
    held = whole_nodes(demand, unit)
    capacity = held.copy()
    fleet = _Capacity(np.full(1, max(held[max(0, start - 1)], unit)), delay)
    recent: deque[Floats] = deque(maxlen=window)
    for step in range(start, len(demand)):
        capacity[step] = fleet.advance()[0]
        size = np.maximum(fleet.serving, unit)
        # Utilization cannot exceed 1, so demand above capacity is invisible to it: it grows step by
        # step, as the real one does.
        ratio = np.minimum(demand[step], size) / size / utilization
        recent.append(
            np.where(np.abs(ratio - 1) <= TOLERANCE, size, whole_nodes(size * ratio, unit))
        )
        fleet.apply(recent[-1], np.max(recent, axis=0), held[step])
    return capacity


def whole_nodes(gpus: Floats, node_gpus: float) -> Floats:
    """Round GPUs up to whole nodes; unchanged for `node_gpus` 0."""
    # A millionth of a node off, so that 8.000000001 GPUs of rounding noise do not order another
    # node.
    return np.ceil(gpus / node_gpus - 1e-6) * node_gpus if node_gpus else gpus


def unmet(demand: Floats, capacity: Floats) -> Floats:
    """Return the demand that waits: what is above capacity."""
    return np.maximum(demand - capacity, 0.0)


def measure_outcome(demand: Floats, capacity: Floats, judged: Flags, step_ms: int) -> Outcome:
    """Measure one policy's `capacity` (n,) where `judged` (n,) holds."""
    hours = step_ms / HOUR_MS
    short = unmet(demand, capacity)[judged]
    waits = start_waits(demand, capacity, judged)
    changed = np.abs(np.diff(capacity)) > EPSILON
    return Outcome(
        capacity=float(capacity[judged].sum() * hours),
        demand=float(demand[judged].sum() * hours),
        wait=float(short.sum() * hours),
        wait_p95_s=float(np.quantile(waits, 0.95) * step_ms / 1000) if len(waits) else 0.0,
        starts=len(waits),
        cold_starts=int((waits > 0).sum()),
        actions=int((changed & judged[1:]).sum()),
    )


def start_waits(demand: Floats, capacity: Floats, judged: Flags) -> Ints:
    """Return the steps that each start waited: one entry per whole GPU by which demand rose, in
    time order.
    """
    wanted = np.ceil(demand - 1e-6)
    waits: list[Ints] = []
    for start in np.flatnonzero((np.diff(wanted) > 0) & judged[1:]) + 1:
        levels = np.arange(wanted[start - 1] + 1, wanted[start] + 1)
        missing = np.minimum(levels, demand[start]) > capacity[start] + 1e-6
        waited = np.zeros(len(levels), dtype=np.int64)
        step = int(start)
        while missing.any() and step < len(demand):
            waited += missing
            step += 1
            if step < len(demand):
                missing &= (np.minimum(levels, demand[step]) > capacity[step] + 1e-6) & (
                    levels <= wanted[step]
                )
        waits.append(waited)
    return np.concatenate(waits) if waits else np.empty(0, dtype=np.int64)

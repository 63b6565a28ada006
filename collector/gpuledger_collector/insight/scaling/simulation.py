"""Outcome of a capacity policy: the loop by which every policy is judged.

At the end of step t a policy has seen the demand up to t and states how many GPUs it wants. What is ordered then serves
`delay` steps later and is counted from when it serves. What is released goes at once, youngest orders first, but a
busy GPU is never taken. Many policies run side by side as columns, so a grid of hundreds costs little more than one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.series import Flags, Floats, Ints

EPSILON = 1e-9
TOLERANCE = 0.1
"""Kubernetes' horizontal autoscaler leaves capacity alone while utilization is within this ratio of its target."""


@dataclass(frozen=True)
class Outcome:
    """Over the judged part: GPU-hours of capacity, demand and wait (demand above capacity), and what starts felt.

    `wait_p95_s`: a start is an upward crossing of one more whole GPU of demand; it waits until capacity reaches it or
    demand leaves it; this is the 95th percentile over all starts. `actions`: steps in which the capacity changed.
    """

    capacity: float
    demand: float
    wait: float
    wait_p95_s: float
    starts: int
    cold_starts: int
    actions: int


class _Capacity:
    """Serving capacity of K policies, and their orders by the step in which they serve, shape (delay, K)."""

    def __init__(self, serving: Floats, delay: int) -> None:
        self.serving = serving
        self.orders = np.zeros((delay, len(serving)))

    def advance(self) -> Floats:
        """Begin a step: the oldest orders serve."""
        self.serving = self.serving + self.orders[0]
        self.orders = np.concatenate([self.orders[1:], np.zeros((1, len(self.serving)))])
        return self.serving

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
    """Return the largest of the last `window` values up to each row (axis 0), itself included; window >= 1."""
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
    """Return the capacity (n, K) of K policies over `demand` (n,), each stating `target` (n, K) GPUs after each step.

    `keep` (n, K), at least `target`, is the capacity below which a policy does not release (its hold time). Before
    `start` the capacity equals the demand. With `node_gpus` capacity comes in whole nodes.
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
    """What one policy states after each step, shape (n,): the GPUs it wants, and what it keeps when demand falls."""

    target: Floats
    keep: Floats

    def at(self, step: int) -> tuple[float, float]:
        """Target and keep of a step; a policy keeps at least its target."""
        return self.target[step], max(self.keep[step], self.target[step])


@dataclass(frozen=True)
class CapacityBudget:
    """Spending limit of one policy: from step `start` on, total capacity may be `cap` x total demand.

    What is above current demand shrinks, in lots of `lot` GPUs, once the balance falls below `reserve` (GPU-steps), and
    is gone when the balance is empty. `loan` is lent at the start and repaid until step `end`.
    """

    start: int
    cap: float
    reserve: float
    loan: float
    end: int
    lot: float = 0.0

    def loan_at(self, step: int) -> float:
        """Part of the loan that is not repaid yet."""
        return self.loan * max(0.0, 1 - (step - self.start) / (self.end - self.start))

    def share(self, balance: float) -> float:
        """Part of the headroom that a balance pays for."""
        return min(1.0, max(0.0, balance / max(self.reserve, EPSILON)))


@dataclass(frozen=True)
class ReferencePolicy:
    """The policy not to be beaten by: its capacity in each step, its requests, and the cost allowed relative to it."""

    capacity: Floats
    request: CapacityRequest
    cost_ratio: float


def simulate_within(
    demand: Floats,
    request: CapacityRequest,
    delay: int,
    start: int,
    node_gpus: float,
    known: Flags,
    budget: CapacityBudget,
    reference: ReferencePolicy,
) -> Floats:
    """Return the capacity (n,) of one policy, as `simulate`, that never spends more than its budget.

    Nor, over time, more than the reference policy by its ratio; and while it has waited more than the reference, it
    holds at least what the reference wants.
    """
    held = whole_nodes(demand, node_gpus)
    capacity = held.copy()
    fleet = _Capacity(np.full(1, held[max(0, start - 1)]), delay)
    balance = reference_balance = excess_wait = 0.0
    for step in range(start, len(demand)):
        capacity[step] = fleet.advance()[0]
        wanted, kept = request.at(step)
        if step >= budget.start:
            # An unknown step neither earns nor spends: its demand is made up.
            if known[step]:
                theirs = reference.capacity[step]
                balance += budget.cap * demand[step] - capacity[step]
                reference_balance += reference.cost_ratio * theirs - capacity[step]
                excess_wait += max(demand[step] - capacity[step], 0.0) - max(demand[step] - theirs, 0.0)
            # First within the reference, then within the cap: the last bound applied is the one that may never be
            # broken.
            share = budget.share(reference_balance + budget.loan_at(step))
            wanted, kept = _within_reference((wanted, kept), reference.request.at(step), share, excess_wait)
            share = budget.share(balance + budget.loan_at(step))
            if share < 1:
                wanted, kept = (
                    float(whole_nodes(np.asarray(demand[step] + share * (gpus - demand[step])), budget.lot))
                    for gpus in (wanted, kept)
                )
        asked = whole_nodes(np.array([wanted, kept]), node_gpus)
        fleet.apply(asked[:1], asked[1:], held[step])
    return capacity


def _within_reference(
    own: tuple[float, float], reference: tuple[float, float], share: float, excess_wait: float
) -> tuple[float, float]:
    """Bound target and keep by the reference: no more once its money is spent, no less while we wait more."""

    def bound(ours: float, theirs: float) -> float:
        if share < 1:
            ours = min(ours, theirs) + share * max(ours - theirs, 0.0)
        return max(ours, theirs) if excess_wait > EPSILON else ours

    wanted, kept = (bound(ours, theirs) for ours, theirs in zip(own, reference, strict=True))
    return wanted, max(wanted, kept)


def simulate_autoscaler(
    demand: Floats, utilization: float, window: int, delay: int, start: int = 0, node_gpus: float = 0.0
) -> Floats:
    """Return the capacity (n,) of Kubernetes' horizontal autoscaler: ceil(capacity x utilization / target).

    The highest request of the last `window` steps is kept on the way down (its stabilization window).
    """
    unit = node_gpus or 1.0
    held = whole_nodes(demand, unit)
    capacity = held.copy()
    fleet = _Capacity(np.full(1, max(held[max(0, start - 1)], unit)), delay)
    recent: deque[Floats] = deque(maxlen=window)
    for step in range(start, len(demand)):
        capacity[step] = fleet.advance()[0]
        size = np.maximum(fleet.serving, unit)
        # Utilization cannot exceed 1, so demand above capacity is invisible to it: it grows step by step, as the real
        # one does.
        ratio = np.minimum(demand[step], size) / size / utilization
        recent.append(np.where(np.abs(ratio - 1) <= TOLERANCE, size, whole_nodes(size * ratio, unit)))
        fleet.apply(recent[-1], np.max(recent, axis=0), held[step])
    return capacity


def whole_nodes(gpus: Floats, node_gpus: float) -> Floats:
    """Round GPUs up to whole nodes; unchanged for `node_gpus` 0."""
    # A millionth of a node off, so that 8.000000001 GPUs of rounding noise do not order another node.
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
    """Return the steps that each start waited: one entry per whole GPU by which demand rose, in time order."""
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
                missing &= (np.minimum(levels, demand[step]) > capacity[step] + 1e-6) & (levels <= wanted[step])
        waits.append(waited)
    return np.concatenate(waits) if waits else np.empty(0, dtype=np.int64)

"""What a capacity policy would have brought: the loop that every policy is judged by.

At the end of step t a policy has seen the demand up to t and states how many GPUs it wants. What is ordered then serves
`delay` steps later and is counted from when it serves. What is given back goes at once, youngest orders first, but a
busy GPU is never taken. Many policies run side by side as columns, so a grid of hundreds costs little more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.series import Floats, Ints

Bools = npt.NDArray[np.bool_]
EPSILON = 1e-9


@dataclass(frozen=True)
class Run:
    """Capacity that served in each step, shape (n, K) in GPUs, for K policies."""

    capacity: Floats


@dataclass(frozen=True)
class Outcome:
    """Over the judged part: GPU-hours of capacity, demand and wait (demand above capacity), and how it felt.

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


def rolling_max(values: Floats, window: int) -> Floats:
    """The largest of the last `window` values up to each row (axis 0), itself included; window >= 1."""
    out = values.copy()
    reach = 1
    while reach < window:
        shift = min(reach, window - reach)
        if shift >= len(out):
            return np.asarray(np.maximum.accumulate(values, axis=0))
        out[shift:] = np.maximum(out[shift:], out[:-shift].copy())
        reach += shift
    return out


def simulate(demand: Floats, target: Floats, keep: Floats, delay: int, start: int = 0, node_gpus: float = 0.0) -> Run:
    """Run K policies over `demand` (n,), each stating `target` (n, K) GPUs at the end of each step.

    `keep` (n, K), at least `target`, is what a policy does not go below when it gives back (its hold time). Before
    `start` the capacity equals the demand. With `node_gpus` capacity comes in whole nodes.
    """
    target, keep = whole_nodes(target, node_gpus), whole_nodes(keep, node_gpus)
    held = whole_nodes(demand, node_gpus)
    count, policies = target.shape
    capacity = np.empty((count, policies))
    capacity[:start] = held[:start, None]
    serving = np.full(policies, held[max(0, start - 1)])
    pipe = np.zeros((delay, policies))
    for t in range(start, count):
        serving = serving + pipe[0]
        pipe = np.concatenate([pipe[1:], np.zeros((1, policies))])
        capacity[t] = serving
        serving, pipe = apply_target(serving, pipe, target[t], keep[t], held[t])
    return Run(capacity)


def apply_target(serving: Floats, pipe: Floats, target: Floats, keep: Floats, busy: float) -> tuple[Floats, Floats]:
    """Serving capacity and orders under way after a decision; `pipe` (delay, K) is changed in place."""
    coming = serving + pipe.sum(axis=0)
    pipe[-1] += np.maximum(target - coming, 0.0)
    drop = np.maximum(coming - np.maximum(keep, target), 0.0)
    if drop.any():
        for row in range(len(pipe) - 1, -1, -1):
            cancelled = np.minimum(drop, pipe[row])
            pipe[row] -= cancelled
            drop -= cancelled
        serving = np.maximum(serving - drop, np.minimum(busy, serving))
    return serving, pipe


@dataclass(frozen=True)
class CapacityRequest:
    """What one policy states at the end of each step, shape (n,): what it wants, and what it keeps on the way down."""

    target: Floats
    keep: Floats


@dataclass(frozen=True)
class CapacityBudget:
    """The money of one policy: from step `start` on, capacity in all may be `cap` x demand in all.

    What is above the demand of now shrinks as the purse empties, and is gone when it is empty; it shrinks in lots of
    `lot` GPUs. `reserve` (GPU-steps) is the balance below which it begins to shrink; as much as `lent` is lent at the
    start, and paid back until step `end`.
    """

    start: int
    cap: float
    reserve: float
    lent: float
    end: int
    lot: float = 0.0

    def lent_at(self, step: int) -> float:
        """What is still lent."""
        return self.lent * max(0.0, 1 - (step - self.start) / (self.end - self.start))

    def share(self, balance: float) -> float:
        """Part of the headroom that a balance pays for."""
        return min(1.0, max(0.0, balance / max(self.reserve, EPSILON)))


@dataclass(frozen=True)
class ReferencePolicy:
    """The policy that is never to be done worse than: its capacity in each step, its wishes, and how much dearer we
    may be.
    """

    capacity: Floats
    wish: CapacityRequest
    dearer: float


def simulate_within(
    demand: Floats,
    wish: CapacityRequest,
    delay: int,
    start: int,
    node_gpus: float,
    known: Bools,
    purse: CapacityBudget,
    beside: ReferencePolicy,
) -> Floats:
    """Capacity (n,) of one policy, as `simulate`, that never spends more than its purse holds.

    Nor, over time, more than the policy beside it by its factor; and as long as it has waited more than that one, it
    holds at least what that one wants.
    """
    held = whole_nodes(demand, node_gpus)
    capacity = held.copy()
    serving, pipe = np.full(1, held[max(0, start - 1)]), np.zeros((delay, 1))
    balance = theirs = behind = 0.0
    for t in range(start, len(demand)):
        serving = serving + pipe[0]
        pipe = np.concatenate([pipe[1:], np.zeros((1, 1))])
        capacity[t] = serving[0]
        wanted, kept = wish.target[t], max(wish.keep[t], wish.target[t])
        if t >= purse.start:
            if known[t]:
                balance += purse.cap * demand[t] - capacity[t]
                theirs += beside.dearer * beside.capacity[t] - capacity[t]
                behind += max(demand[t] - capacity[t], 0.0) - max(demand[t] - beside.capacity[t], 0.0)
            wanted, kept = _together(wanted, kept, t, beside, purse.share(theirs + purse.lent_at(t)), behind)
            share = purse.share(balance + purse.lent_at(t))
            if share < 1:
                wanted, kept = (
                    float(whole_nodes(np.asarray(demand[t] + share * (one - demand[t])), purse.lot))
                    for one in (wanted, kept)
                )
        asked = whole_nodes(np.array([wanted, kept]), node_gpus)
        serving, pipe = apply_target(serving, pipe, asked[:1], asked[1:], held[t])
    return capacity


def _together(
    wanted: float, kept: float, t: int, beside: ReferencePolicy, share: float, behind: float
) -> tuple[float, float]:
    """Ours beside the other's wishes: no more than those when its money is spent, no less while we wait more."""
    other, others_keep = beside.wish.target[t], max(beside.wish.keep[t], beside.wish.target[t])
    if share < 1:
        wanted = min(wanted, other) + share * max(wanted - other, 0.0)
        kept = min(kept, others_keep) + share * max(kept - others_keep, 0.0)
    if behind > EPSILON:
        wanted, kept = max(wanted, other), max(kept, others_keep)
    return wanted, max(wanted, kept)


def simulate_utilisation(
    demand: Floats, targets: Floats, windows: Ints, delay: int, start: int = 0, node_gpus: float = 0.0
) -> Run:
    """Kubernetes' horizontal autoscaler: ceil(capacity x utilisation / target), 10 % tolerance, stabilisation window.

    `targets` (K,) utilisation wanted; `windows` (K,) steps whose highest wish is kept on the way down.
    """
    unit = node_gpus or 1.0
    held = whole_nodes(demand, unit)
    policies = len(targets)
    capacity = np.empty((len(demand), policies))
    capacity[:start] = held[:start, None]
    serving = np.full(policies, max(held[max(0, start - 1)], unit))
    pipe = np.zeros((delay, policies))
    recent = np.zeros((int(windows.max()), policies))
    for t in range(start, len(demand)):
        serving = serving + pipe[0]
        pipe = np.concatenate([pipe[1:], np.zeros((1, policies))])
        capacity[t] = serving
        size = np.maximum(serving, unit)
        ratio = np.minimum(demand[t], size) / size / targets
        want = np.where(np.abs(ratio - 1) <= 0.1, size, whole_nodes(size * ratio, unit))
        recent = np.concatenate([recent[1:], want[None]])
        age = np.arange(len(recent), 0, -1)[:, None]
        kept = np.where(age <= windows, recent, 0.0).max(axis=0)
        serving, pipe = apply_target(serving, pipe, want, kept, held[t])
    return Run(capacity)


def whole_nodes(gpus: Floats, node_gpus: float) -> Floats:
    """GPUs rounded up to whole nodes; unchanged for `node_gpus` 0."""
    return np.ceil(gpus / node_gpus - 1e-6) * node_gpus if node_gpus else gpus


def measure_outcome(demand: Floats, capacity: Floats, judged: npt.NDArray[np.bool_], step_ms: int) -> Outcome:
    """What one policy's `capacity` (n,) brought where `judged` (n,) holds."""
    hours = step_ms / 3_600_000
    short = np.maximum(demand - capacity, 0.0)[judged]
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


def start_waits(demand: Floats, capacity: Floats, judged: npt.NDArray[np.bool_]) -> Ints:
    """Steps that each start waited: one entry per whole GPU by which demand rose, in time order."""
    wanted = np.ceil(demand - 1e-6)
    waits: list[Ints] = []
    for t in np.flatnonzero((np.diff(wanted) > 0) & judged[1:]) + 1:
        levels = np.arange(wanted[t - 1] + 1, wanted[t] + 1)
        missing = np.minimum(levels, demand[t]) > capacity[t] + 1e-6
        waited = np.zeros(len(levels), dtype=np.int64)
        s = int(t)
        while missing.any() and s < len(demand):
            waited += missing
            s += 1
            if s < len(demand):
                missing &= (np.minimum(levels, demand[s]) > capacity[s] + 1e-6) & (levels <= wanted[s])
        waits.append(waited)
    return np.concatenate(waits) if waits else np.empty(0, dtype=np.int64)

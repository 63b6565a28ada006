"""Demand out of its workloads: which run now, how old they are, how long such ones last, and what comes at this hour.

Problem: a series of GPUs held does not say whether its 64 GPUs are one job in its last hour or sixteen that began a
minute ago. The ledger knows. Idea: simulate the hours to come. Each workload that runs (or waits) lives on as long as
workloads of its owner have lasted that were as old (Kaplan and Meier 1958; owners with few ended workloads are drawn
towards all owners). To what is left comes what began in the same hours of a past day and how much of it was left so
many hours later, whole days drawn at random so that what came together stays together. Quantiles are those of the
simulated paths, seeded, so that the same past gives the same forecast.

Law: only starts before, and ends before, the instant of the forecast are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.forecast.analogs import DAY_MS, History
from gpuledger_collector.insight.series import Floats, Ints

FEWEST_ENDED = 20
"""Ended workloads before a forecast from lifetimes says more than persistence."""
TURNOVER = 3.0
"""Workloads that ended per one that runs. Below it (services that are deployed and stay) lifetimes are hardly ever seen
to their end, and their replacements come when others go, which no lifetime tells."""


@dataclass(frozen=True)
class Workloads:
    """Workloads of one series, arrays of one entry each: GPUs, unix ms of start and end (what goes on ends at
    `GOES_ON`), and the owner as a number.

    `waiting` are the GPUs of those that are queued at `until_ms`, by owner number; all is known up to `until_ms`.
    """

    start_ms: Ints
    end_ms: Ints
    gpus: Floats
    owner: Ints
    until_ms: int
    waiting: tuple[tuple[int, float], ...] = ()


STILL_RUNNING = np.iinfo(np.int64).max


@dataclass(frozen=True)
class SimulationSettings:
    """How paths are drawn; the same for every series."""

    paths: int = 100
    days: int = 28
    owner_doubt: float = 10.0  # ended workloads' worth of belief in all owners' lifetimes
    half_life_days: float = 7.0  # age at which a past day counts half
    seed: int = 11
    most_running: int = 800
    fewest_own: int = 3  # an owner with fewer ended workloads has everybody's lifetimes


Prediction = tuple[Floats, Floats]


def predict(
    workloads: Workloads, past: History, leads: Ints, quantiles: Floats, simulation: SimulationSettings | None = None
) -> Prediction | None:
    """Levels (H, Q) and means (H,) after the last instant of `past`; None while too few workloads have ended, or too
    few of those that began.

    The value of a series at an instant is the mean over the step that begins there, so that "now" is the end of the
    last step, and a lead is asked about in the middle of its step.
    """
    simulation = simulation or SimulationSettings()
    now_ms = int(past.at_ms[-1]) + past.step_ms
    begun = workloads.start_ms < now_ms
    start, gpus, owner = workloads.start_ms[begun], workloads.gpus[begun], workloads.owner[begun]
    end = np.where(workloads.end_ms[begun] <= now_ms, workloads.end_ms[begun], STILL_RUNNING)
    ended = end < STILL_RUNNING
    if ended.sum() < max(FEWEST_ENDED, TURNOVER * (~ended).sum()):
        return None
    generator = np.random.default_rng(simulation.seed)
    ahead_ms = (leads - 1) * past.step_ms + past.step_ms // 2
    life = np.where(ended, end, now_ms) - start
    left = _left(start, gpus, owner, ended, life, workloads, now_ms, ahead_ms, simulation, generator)
    fresh = _fresh(start, end, gpus, now_ms, ahead_ms, int(start.min()), simulation, generator)
    if fresh is None:
        return None
    # What the series has and no workload explains is taken to stay.
    explained = _mean_held(start, end, gpus, now_ms - past.step_ms, now_ms)
    paths = left + fresh + (float(past.values[-1]) - explained - _queued(workloads, now_ms))
    return np.quantile(paths, quantiles, axis=0).T, paths.mean(axis=0)


def _queued(workloads: Workloads, now_ms: int) -> float:
    """GPUs that wait now; of earlier instants nobody remembers which workloads waited."""
    return sum(gpus for _, gpus in workloads.waiting) if now_ms >= workloads.until_ms else 0.0


def _mean_held(start: Ints, end: Ints, gpus: Floats, from_ms: int, to_ms: int) -> float:
    """Mean GPUs held between two instants."""
    held_ms = np.clip(np.minimum(end, to_ms) - np.maximum(start, from_ms), 0, None)
    return float((held_ms * gpus).sum()) / (to_ms - from_ms)


@dataclass(frozen=True)
class SurvivalCurve:
    """A survival curve: `survival[i]` is the probability to last longer than `length_ms[i]` (ascending)."""

    length_ms: Floats
    survival: Floats

    def at(self, length_ms: Floats) -> Floats:
        """The probability to last longer than these lengths."""
        place = np.searchsorted(self.length_ms, length_ms, side="right") - 1
        return np.where(place < 0, 1.0, self.survival[np.maximum(place, 0)])

    def length(self, survival: Floats) -> Floats:
        """The length at which survival falls to these probabilities; infinite beyond what was ever seen to end."""
        place = np.searchsorted(-self.survival, -survival, side="left")
        beyond = place >= len(self.length_ms)
        return np.where(beyond, np.inf, self.length_ms[np.minimum(place, len(self.length_ms) - 1)])


class Lifetimes:
    """Lives sorted once, for the curves of many owners; those that have not ended count as far as they went."""

    def __init__(self, life: Ints, ended: npt.NDArray[np.bool_]) -> None:
        self._order = np.lexsort((~ended, life))  # what ends at an instant goes before what was seen no longer
        self._dead = ended[self._order]
        self._length = np.asarray(life[self._order][self._dead], dtype=np.float64)

    def curve(self, weight: Floats) -> SurvivalCurve:
        """Kaplan-Meier of the lives by weight (a weight each, in the order they were given)."""
        mass = weight[self._order]
        at_risk = np.cumsum(mass[::-1])[::-1]
        kept = 1 - (mass / np.maximum(at_risk, 1e-12))[self._dead]
        survival = np.cumprod(np.where(kept < 1e-9, 0.0, kept))
        return SurvivalCurve(self._length, np.asarray(survival, dtype=np.float64))


def _left(
    start: Ints,
    gpus: Floats,
    owner: Ints,
    ended: npt.NDArray[np.bool_],
    life: Ints,
    workloads: Workloads,
    now_ms: int,
    ahead_ms: Ints,
    simulation: SimulationSettings,
    generator: np.random.Generator,
) -> Floats:
    """GPUs (paths, H) of what runs or waits now that are still held at each lead."""
    paths, count = simulation.paths, len(ahead_ms)
    total = np.zeros((paths, count + 1))
    rows = np.arange(paths)[:, None] * (count + 1)
    waiting = workloads.waiting if now_ms >= workloads.until_ms else ()
    running = np.flatnonzero(~ended)
    share = 1.0
    if len(running) > simulation.most_running:
        # A sample of the workloads stands for all of them: its noise is small beside that of the lifetimes.
        share = len(running) / simulation.most_running
        running = generator.choice(running, simulation.most_running, replace=False)
    lives, ended_of = Lifetimes(life, ended), np.bincount(owner[ended], minlength=int(owner.max()) + 1)
    everybody = lives.curve(np.ones(len(life)))
    owners = set(owner[running].tolist()) | {one for one, _ in waiting}
    for one in sorted(owners):
        mine = running[owner[running] == one]
        age = np.concatenate([now_ms - start[mine], np.zeros(sum(who == one for who, _ in waiting), dtype=np.int64)])
        held = np.concatenate([gpus[mine] * share, [waits for who, waits in waiting if who == one]])
        few = one >= len(ended_of) or ended_of[one] < simulation.fewest_own
        curve = everybody if few else lives.curve(_weights(one, owner, ended, simulation))
        lasts = curve.length(curve.at(age)[None, :] * generator.random((paths, len(age)))) - age[None, :]
        gone = np.searchsorted(ahead_ms, np.nan_to_num(lasts, posinf=np.inf), side="left")
        # A workload counts for every lead before it is gone: put down at its last lead, summed from behind.
        total += np.bincount(
            (rows + gone).ravel(), np.broadcast_to(held, gone.shape).ravel(), paths * (count + 1)
        ).reshape(paths, count + 1)
    return np.asarray(total[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:])


def _weights(one: int, owner: Ints, ended: npt.NDArray[np.bool_], simulation: SimulationSettings) -> Floats:
    """This owner's workloads count one each, all others together for a few of them."""
    mine = owner == one
    others = int((~mine & ended).sum())
    return np.where(mine, 1.0, simulation.owner_doubt / max(others, 1))


def _fresh(
    start: Ints,
    end: Ints,
    gpus: Floats,
    now_ms: int,
    ahead_ms: Ints,
    first_ms: int,
    simulation: SimulationSettings,
    generator: np.random.Generator,
) -> Floats | None:
    """GPUs (paths, H) of what will have begun by each lead and is still held then, as on a past day; None without one.

    The day is one whose leads had all passed by now, recent ones rather, and of the same kind (weekend or not) rather.
    """
    reach = int(-(-int(ahead_ms[-1]) // DAY_MS))
    back = [days for days in range(reach, simulation.days + 1) if now_ms - days * DAY_MS >= first_ms]
    if not back:
        return None
    curves = np.stack([_began(start, end, gpus, now_ms - days * DAY_MS, ahead_ms) for days in back])
    age = np.asarray(back, dtype=float)
    weekend = np.asarray([_weekend(now_ms - days * DAY_MS) == _weekend(now_ms) for days in back])
    chance = np.exp2(-age / simulation.half_life_days) * np.where(weekend, 1.0, 0.3)
    return curves[generator.choice(len(back), simulation.paths, p=chance / chance.sum())]


def _began(start: Ints, end: Ints, gpus: Floats, then_ms: int, ahead_ms: Ints) -> Floats:
    """GPUs of what began between `then_ms` and each lead after it and was held at that lead."""
    inside = (start >= then_ms) & (start < then_ms + int(ahead_ms[-1]))
    begins, ends, held = start[inside] - then_ms, end[inside] - then_ms, gpus[inside]
    count = len(ahead_ms)
    change = np.bincount(np.searchsorted(ahead_ms, begins, side="left"), held, count + 1)
    change -= np.bincount(np.searchsorted(ahead_ms, ends, side="left"), held, count + 1)
    return np.asarray(np.cumsum(change)[:count])


def _weekend(at_ms: int) -> bool:
    return (at_ms // DAY_MS + 3) % 7 >= 5


def predict_at_origins(
    workloads: Workloads,
    past: History,
    asked: Sequence[tuple[int, Ints]],
    quantiles: Floats,
    simulation: SimulationSettings | None = None,
) -> dict[int, Prediction]:
    """The answers at these lengths of the past with their leads, where there is one."""
    made = {}
    for origin, leads in asked:
        then = replace(
            past,
            values=past.values[:origin],
            known=past.known[:origin],
            at_ms=past.at_ms[:origin],
            age=past.age[:origin],
        )
        found = predict(workloads, then, leads, quantiles, simulation)
        if found is not None:
            made[origin] = found
    return made

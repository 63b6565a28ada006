"""Demand from its workloads: which run now and how old they are, how long such ones last, and what usually starts.

Problem: a series of GPUs held does not say whether its 64 GPUs are one job in its last hour or sixteen that began a
minute ago. The ledger knows. Idea: simulate the hours to come. Each workload that runs (or waits) survives as long as
workloads of its owner have that were as old (Kaplan and Meier 1958; owners with few ended workloads are shrunk towards
all owners). Added is what began in the same hours of a past day and how much of it was left as many hours later, whole
days drawn at random so that what came together stays together. Quantiles are those of the simulated paths; the seed is
fixed, so the same past gives the same forecast.

Law: only starts and ends before the instant of the forecast are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.forecast.analogs import History, Prediction
from gpuledger_collector.insight.series import Flags, Floats, Ints, is_weekend

MIN_ENDED = 20
"""Ended workloads before a forecast from lifetimes is better than persistence."""
TURNOVER = 3.0
"""Workloads that ended per one that runs. Below it (services that are deployed and stay) lifetimes are hardly ever seen
to their end, and a replacement starts when its predecessor is removed, which no lifetime predicts."""
STILL_RUNNING = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Workloads:
    """Workloads of one series, arrays of one entry each: GPUs, unix ms of start and end, and the owner as a number.

    A workload that runs ends at STILL_RUNNING. `waiting` are the GPUs of each one queued at `until_ms`, with the number
    of its owner; all is known up to `until_ms`.
    """

    start_ms: Ints
    end_ms: Ints
    gpus: Floats
    owner: Ints
    until_ms: int
    waiting: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class SimulationSettings:
    """How paths are drawn; the same for every series."""

    paths: int = 100
    days: int = 28
    owner_doubt: float = 10.0  # weight of all owners' lifetimes, in ended workloads
    half_life_days: float = 7.0  # age at which a past day counts half
    seed: int = 11
    max_running: int = 800
    min_own: int = 3  # an owner with fewer ended workloads gets the lifetimes of all


def predict(
    workloads: Workloads, history: History, leads: Ints, quantiles: Floats, settings: SimulationSettings | None = None
) -> Prediction | None:
    """Predict after the last instant of `history`; None while too few workloads have ended, or of those that began.

    The value of a series at an instant is the mean over the step that begins there, so "now" is the end of the last
    step, and a lead is asked about in the middle of its step.
    """
    simulation = _Simulation(workloads, history, leads, settings or SimulationSettings())
    if simulation.ended.sum() < max(MIN_ENDED, TURNOVER * (~simulation.ended).sum()):
        return None
    remaining = simulation.remaining()
    new = simulation.newly_started()
    if new is None:
        return None
    # What the series has beyond its known workloads is assumed to stay.
    explained = simulation.mean_held(history.step_ms)
    queued = sum(gpus for _, gpus in simulation.waiting)
    paths = remaining + new + (float(history.values[-1]) - explained - queued)
    return np.quantile(paths, quantiles, axis=0).T, paths.mean(axis=0)


def predict_at_origins(
    workloads: Workloads, history: History, asked: Sequence[tuple[int, Ints]], quantiles: Floats
) -> dict[int, Prediction]:
    """Predict at these lengths of the history with their leads, where possible."""
    predictions = {origin: predict(workloads, history.until(origin), leads, quantiles) for origin, leads in asked}
    return {origin: prediction for origin, prediction in predictions.items() if prediction is not None}


@dataclass(frozen=True)
class SurvivalCurve:
    """`survival[i]` is the probability to last longer than `length_ms[i]` (ascending)."""

    length_ms: Floats
    survival: Floats

    def at(self, length_ms: Floats) -> Floats:
        """Probability to last longer than these lengths."""
        place = np.searchsorted(self.length_ms, length_ms, side="right") - 1
        return np.where(place < 0, 1.0, self.survival[np.maximum(place, 0)])

    def length(self, survival: Floats) -> Floats:
        """Length at which survival falls to these probabilities; infinite beyond the longest observed end."""
        place = np.searchsorted(-self.survival, -survival, side="left")
        beyond = place >= len(self.length_ms)
        return np.where(beyond, np.inf, self.length_ms[np.minimum(place, len(self.length_ms) - 1)])


class Lifetimes:
    """Lifetimes sorted once, for the curves of many owners; those that have not ended are right-censored."""

    def __init__(self, life: Ints, ended: Flags) -> None:
        self._order = np.lexsort((~ended, life))  # at equal length, ends precede censored lifetimes
        self._ended = ended[self._order]
        self._length = np.asarray(life[self._order][self._ended], dtype=np.float64)

    def curve(self, weight: Floats) -> SurvivalCurve:
        """Kaplan-Meier estimate with a weight for each lifetime, in the order given."""
        mass = weight[self._order]
        at_risk = np.cumsum(mass[::-1])[::-1]
        surviving = 1 - (mass / np.maximum(at_risk, 1e-12))[self._ended]
        survival = np.cumprod(np.where(surviving < 1e-9, 0.0, surviving))
        return SurvivalCurve(self._length, np.asarray(survival, dtype=np.float64))


class _Simulation:
    """The workloads that had started by the end of the history, and the leads in ms after it."""

    def __init__(self, workloads: Workloads, history: History, leads: Ints, settings: SimulationSettings) -> None:
        self.settings = settings
        self.now_ms = int(history.at_ms[-1]) + history.step_ms
        begun = workloads.start_ms < self.now_ms
        self.start, self.gpus, self.owner = workloads.start_ms[begun], workloads.gpus[begun], workloads.owner[begun]
        self.end = np.where(workloads.end_ms[begun] <= self.now_ms, workloads.end_ms[begun], STILL_RUNNING)
        self.ended = self.end < STILL_RUNNING
        self.ahead_ms = (leads - 1) * history.step_ms + history.step_ms // 2
        # The queue is known at `until_ms` only: of earlier instants no record says which workloads waited.
        self.waiting = workloads.waiting if self.now_ms >= workloads.until_ms else ()
        self.generator = np.random.default_rng(settings.seed)

    def mean_held(self, step_ms: int) -> float:
        """Mean GPUs that known workloads held in the last step."""
        begin_ms = self.now_ms - step_ms
        held_ms = np.clip(np.minimum(self.end, self.now_ms) - np.maximum(self.start, begin_ms), 0, None)
        return float((held_ms * self.gpus).sum()) / step_ms

    def remaining(self) -> Floats:
        """GPUs (paths, H) of what runs or waits now that are still held at each lead."""
        paths, count = self.settings.paths, len(self.ahead_ms)
        total = np.zeros((paths, count + 1))
        rows = np.arange(paths)[:, None] * (count + 1)
        running = np.flatnonzero(~self.ended)
        share = 1.0
        if len(running) > self.settings.max_running:
            # A sample stands for all workloads: its noise is small compared with that of the lifetimes.
            share = len(running) / self.settings.max_running
            running = self.generator.choice(running, self.settings.max_running, replace=False)
        curves = self._curves()
        for owner in sorted(set(self.owner[running].tolist()) | {owner for owner, _ in self.waiting}):
            own = running[self.owner[running] == owner]
            queued = [gpus for waiting_owner, gpus in self.waiting if waiting_owner == owner]
            age = np.concatenate([self.now_ms - self.start[own], np.zeros(len(queued), dtype=np.int64)])
            held = np.concatenate([self.gpus[own] * share, queued])
            curve = curves(owner)
            # A uniform share of the survival at its age: the length drawn is conditional on having lasted that long.
            draws = curve.at(age)[None, :] * self.generator.random((paths, len(age)))
            gone = np.searchsorted(self.ahead_ms, curve.length(draws) - age[None, :], side="left")
            # A workload counts for every lead before its end: put at its last lead, summed from behind.
            cells = np.broadcast_to(held, gone.shape).ravel()
            total += np.bincount((rows + gone).ravel(), cells, paths * (count + 1)).reshape(paths, count + 1)
        return np.asarray(total[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:])

    def _curves(self) -> Callable[[int], SurvivalCurve]:
        """Survival by owner: own workloads weigh 1 each, all others together `owner_doubt` ended ones."""
        life = np.where(self.ended, self.end, self.now_ms) - self.start
        lifetimes = Lifetimes(life, self.ended)
        ended_of = np.bincount(self.owner[self.ended], minlength=int(self.owner.max()) + 1)
        all_owners = lifetimes.curve(np.ones(len(life)))

        def curve(owner: int) -> SurvivalCurve:
            if owner >= len(ended_of) or ended_of[owner] < self.settings.min_own:
                return all_owners
            own = self.owner == owner
            others = int((~own & self.ended).sum())
            return lifetimes.curve(np.where(own, 1.0, self.settings.owner_doubt / max(others, 1)))

        return curve

    def newly_started(self) -> Floats | None:
        """GPUs (paths, H) of what starts before each lead and is still held then, as on a past day; None without one.

        A day qualifies when all its leads are over by now; recent days and days of the same kind (weekend or not) are
        more likely.
        """
        first_ms = int(self.start.min())
        reach = int(-(-int(self.ahead_ms[-1]) // DAY_MS))
        days = [day for day in range(reach, self.settings.days + 1) if self.now_ms - day * DAY_MS >= first_ms]
        if not days:
            return None
        curves = np.stack([self._started_after(self.now_ms - day * DAY_MS) for day in days])
        age = np.asarray(days, dtype=float)
        same_kind = is_weekend(self.now_ms - np.asarray(days) * DAY_MS) == is_weekend(self.now_ms)
        chance = np.exp2(-age / self.settings.half_life_days) * np.where(same_kind, 1.0, 0.3)
        return curves[self.generator.choice(len(days), self.settings.paths, p=chance / chance.sum())]

    def _started_after(self, then_ms: int) -> Floats:
        """GPUs of what began between `then_ms` and each lead after it and was held at that lead."""
        inside = (self.start >= then_ms) & (self.start < then_ms + int(self.ahead_ms[-1]))
        count, held = len(self.ahead_ms), self.gpus[inside]
        begun, gone = (
            np.bincount(np.searchsorted(self.ahead_ms, at[inside] - then_ms, side="left"), held, count + 1)
            for at in (self.start, self.end)
        )
        return np.asarray(np.cumsum(begun - gone)[:count])

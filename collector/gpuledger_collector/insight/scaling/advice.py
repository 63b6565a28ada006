"""Capacity that a pool should hold now, as a number and a sentence.

At the start of each day (UTC) the pool's own last four weeks are replayed with every candidate, as
in the backtest. The advice is what the backtest's policy has at the last step: the day's setting,
guarded by what it saved and spent in these weeks. It is never below current demand and is then held
to the pool's limits. There is no advice when the demand is stale: a caller without an answer falls
back to reacting.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.scaling.choice import HISTORY_DAYS, SelectionRules
from gpuledger_collector.insight.scaling.lookahead import climate
from gpuledger_collector.insight.scaling.policies import PolicySetting, request_since
from gpuledger_collector.insight.scaling.replay import CandidateReplay
from gpuledger_collector.insight.scaling.simulation import GuardedReplay
from gpuledger_collector.insight.series import Flags, Floats, Series, fill_forward

PAST_DAYS = 28
STALE_STEPS = 3
YOUNG_HEADROOM = 0.1
SAME_GPUS = 0.05
"""Less is rounding noise to a person."""
SHOWN = (0.5, 0.9, 0.98)


@dataclass(frozen=True)
class ScalingLimits:
    """What a pool allows: GPUs at least and at most, GPUs of a node, and capacity as a multiple of
    demand.

    `warm_gpus` are kept free above the demand, `headroom` is the least share of demand kept above
    it. The target does not fall for `cooldown_ms` after a change, nor below the highest wish of the
    last `stabilization_ms`. `money_gpus` is the capacity that the money limit pays for.
    """

    floor_gpus: float = 0.0
    ceiling_gpus: float | None = None
    node_gpus: float = 1.0
    cost_cap: float = 1.25
    step_up_gpus: float | None = None
    step_down_gpus: float | None = None
    cooldown_ms: int = 0
    stabilization_ms: int = 0
    warm_gpus: float = 0.0
    headroom: float = 0.0
    predict: bool = True
    money_gpus: float | None = None


@dataclass(frozen=True)
class PastTarget:
    """A target in force from an instant until that of the next one, and the wish before the limits."""

    at_ms: int
    gpus: float
    wanted: float = 0.0


@dataclass(frozen=True)
class ScalingAdvice:
    """Capacity to hold, and why.

    `demand_ahead` maps quantiles to the demand expected within the lead time.

    `mode` is predictive, reactive, or young (too little history to choose). `wanted_gpus` is the
    target of the chosen setting before the limits, `reactive_gpus` that of the tuned reactive one.
    In mode reactive both are the same.
    """

    as_of_ms: int
    valid_until_ms: int
    demand_now: float
    demand_ahead: dict[float, float]
    desired_gpus: float
    desired_nodes: int
    mode: str
    setting: PolicySetting
    reason: str
    reactive_gpus: float
    wanted_gpus: float


def advise(
    series: Series,
    lead_ms: int,
    now_ms: int,
    limits: ScalingLimits | None = None,
    held_gpus: float | None = None,
    past: Sequence[PastTarget] = (),
    now_gpus: float = 0.0,
) -> ScalingAdvice | None:
    """Advise a pool with this demand; None when its last known value is older than three steps.

    `held_gpus` is the pool's capacity now, needed for the step limits; the last target where it is
    not given. `past` are the earlier targets, oldest first; `now_gpus` is the demand known since
    the last step ended. Raises ValueError for a step that does not divide the day into 24 or more.
    """
    limits = limits or ScalingLimits()
    per_day = steps_per_day(series.step_ms)
    known = np.isfinite(series.values)
    if not known.any():
        return None
    last = int(np.flatnonzero(known)[-1])
    as_of = series.start_ms + last * series.step_ms
    # No advice from old demand: whoever asks then reacts to what it sees itself.
    if now_ms - as_of > STALE_STEPS * series.step_ms:
        return None
    recent = slice(max(0, last + 1 - (PAST_DAYS + 1) * per_day), last + 1)
    demand, known = fill_forward(series.values[recent]), known[recent]
    delay = max(1, round(lead_ms / series.step_ms))
    today = as_of % DAY_MS // series.step_ms + 1
    choice = _choose(demand, known, delay, series.step_ms, limits, today)
    # The demand of the step that has not ended yet may be above the last one, and must be served as
    # well.
    now = max(float(demand[-1]), now_gpus)
    rise = np.zeros(len(SHOWN))
    if len(demand) > 2 * per_day:
        rise = climate(demand, delay, per_day, np.asarray(SHOWN), len(demand) - 1)[-1]
    if held_gpus is None and past:
        held_gpus = past[-1].gpus
    gpus, bound = _apply_limits(
        max(choice.wanted, now), now, limits, _TargetHistory(held_gpus, past, now_ms)
    )
    nodes = _nodes(gpus, limits)
    return ScalingAdvice(
        as_of_ms=as_of,
        valid_until_ms=as_of + max(lead_ms, series.step_ms),
        demand_now=now,
        demand_ahead={
            quantile: now + float(extra) for quantile, extra in zip(SHOWN, rise, strict=True)
        },
        desired_gpus=nodes * limits.node_gpus,
        desired_nodes=nodes,
        mode=choice.mode,
        setting=choice.setting,
        reason=_reason(choice, now, bound, lead_ms, limits.predict),
        reactive_gpus=max(choice.tuned, now),
        wanted_gpus=choice.wanted,
    )


def steps_per_day(step_ms: int) -> int:
    """Return the steps of a day.

    Raises ValueError unless the step divides the day into 24 or more.
    """
    if DAY_MS % step_ms or DAY_MS // step_ms < 24:
        raise ValueError(
            f"a step of {step_ms / 1000:g} s does not divide the day into 24 or more steps"
        )
    return DAY_MS // step_ms


@dataclass(frozen=True)
class _Choice:
    """The setting of today, its capacity now, that of the tuned reactive one, and what it would be
    without guard.
    """

    mode: str
    setting: PolicySetting
    wanted: float
    tuned: float
    unguarded: float


def _choose(
    demand: Floats, known: Flags, delay: int, step_ms: int, limits: ScalingLimits, today: int
) -> _Choice:
    """Choose for the day of the last step; `today`: how many of the last steps are of that day."""
    per_day = DAY_MS // step_ms
    begun = len(demand) - today
    if begun < HISTORY_DAYS * per_day:
        wanted = float(demand[-1]) * (1 + YOUNG_HEADROOM)
        return _Choice(
            "young", PolicySetting("reactive", headroom=YOUNG_HEADROOM), wanted, wanted, wanted
        )
    # Complete days only, so that the selection is the same all day and its cached result is reused.
    days = slice(begun - min(begun // per_day, PAST_DAYS) * per_day, begun)
    # Selecting takes seconds and much memory: one thread at a time, and the others get its cached
    # result.
    with _SELECTING:
        plan = _plan_of_day(
            demand[days].tobytes(),
            known[days].tobytes(),
            delay,
            step_ms,
            limits.node_gpus,
            limits.cost_cap,
            limits.predict,
        )
    replay = copy.deepcopy(plan.replay)
    own, tuned = (
        request_since(setting, demand, delay, step_ms, begun)
        for setting in (plan.setting, plan.tuned)
    )
    for step in range(today):
        replay.step(
            float(demand[begun + step]),
            (own.target[step : step + 1], own.keep[step : step + 1]),
            (tuned.target[step : step + 1], tuned.keep[step : step + 1]),
            known=bool(known[begun + step]),
        )
    mode = "predictive" if plan.setting.predictive else "reactive"
    return _Choice(
        mode, plan.setting, float(replay.coming[0]), replay.reference_coming, float(own.keep[-1])
    )


_SELECTING = threading.Lock()


@dataclass(frozen=True)
class _DayPlan:
    """What whole days recommend for the next one: its setting, the tuned reactive one, and the
    replay up to it.
    """

    setting: PolicySetting
    tuned: PolicySetting
    replay: GuardedReplay


@lru_cache(maxsize=256)
def _plan_of_day(
    demand_bytes: bytes,
    known_bytes: bytes,
    delay: int,
    step_ms: int,
    node_gpus: float,
    cost_cap: float,
    predict: bool,
) -> _DayPlan:
    demand, known = np.frombuffer(demand_bytes), np.frombuffer(known_bytes, dtype=np.bool_)
    days, rules = len(demand) * step_ms // DAY_MS, SelectionRules()
    replay = CandidateReplay(
        demand, known, step_ms, delay, node_gpus, cost_cap, tuned_days=days, predict=predict
    )
    chosen = replay.schedule(replay.predictive, rules, days + 1)
    _, state = replay.run([chosen[:days]], rules)
    settings = replay.candidates.settings
    return _DayPlan(settings[chosen[days]], settings[replay.anchor], state)


@dataclass(frozen=True)
class _TargetHistory:
    """Capacity now, and the earlier targets, oldest first."""

    gpus: float | None
    past: Sequence[PastTarget]
    now_ms: int

    def highest_wish(self, within_ms: int) -> float:
        """Highest wish within a time up to now; 0 for none.

        A target kept up by the window itself is no wish.
        """
        ends = [target.at_ms for target in self.past[1:]] + [self.now_ms]
        return max(
            (
                target.wanted
                for target, end_ms in zip(self.past, ends, strict=False)
                if self.now_ms - end_ms < within_ms
            ),
            default=0.0,
        )

    def changed_ms(self) -> int:
        """When the current target came into force."""
        current = self.past[-1].gpus
        # From the newest back: the first target of the latest run of equal ones brought it into
        # force.
        unchanged = itertools.takewhile(lambda target: target.gpus == current, reversed(self.past))
        return min(target.at_ms for target in unchanged)


def _apply_limits(
    wanted: float, now: float, limits: ScalingLimits, history: _TargetHistory
) -> tuple[float, str]:
    """The wish inside the limits, and the limit that changed it ("" for none).

    Current demand beats a step limit; the ceiling and the money limit, which people have set, beat
    everything.
    """
    gpus, bound = wanted, ""

    def raise_to(least: float, name: str) -> None:
        nonlocal gpus, bound
        if least > gpus:
            gpus, bound = least, name

    def lower_to(most: float | None, name: str) -> None:
        nonlocal gpus, bound
        if most is not None and gpus > most:
            gpus, bound = most, name

    # The order is the precedence: what comes later wins. Hard limits come last, money after all.
    raise_to(
        now * (1 + limits.headroom) + limits.warm_gpus,
        "the warm pool" if limits.warm_gpus else "the headroom",
    )
    raise_to(history.highest_wish(limits.stabilization_ms), "the stabilization window")
    if history.past and history.now_ms - history.changed_ms() < limits.cooldown_ms:
        raise_to(history.past[-1].gpus, "the cool-down")
    if (
        history.gpus is not None
        and limits.step_up_gpus is not None
        and gpus > history.gpus + limits.step_up_gpus
    ):
        gpus, bound = max(history.gpus + limits.step_up_gpus, now), "the step limit up"
    if history.gpus is not None and limits.step_down_gpus is not None:
        raise_to(history.gpus - limits.step_down_gpus, "the step limit down")
    raise_to(limits.floor_gpus, "the floor")
    lower_to(limits.ceiling_gpus, "the ceiling")
    lower_to(limits.money_gpus, "the money limit")
    return gpus, bound


def _nodes(gpus: float, limits: ScalingLimits) -> int:
    """Whole nodes for these GPUs, rounded up, but not above the ceiling and the money limit."""
    nodes = int(np.ceil(gpus / limits.node_gpus - 1e-6))
    # Rounding up to a node must not pass a limit, so these are rounded down.
    bounds = [most for most in (limits.ceiling_gpus, limits.money_gpus) if most is not None]
    return min([nodes, *(int(most / limits.node_gpus + 1e-6) for most in bounds)])


def _reason(choice: _Choice, now: float, bound: str, lead_ms: int, predict: bool) -> str:
    """One sentence for a person."""
    lead, demand, wanted = (
        f"{lead_ms / 60_000:g} min",
        f"{now:.1f}".removesuffix(".0"),
        choice.wanted,
    )
    setting, figures = choice.setting.sentence(), f"{wanted:.1f} GPUs while {demand} are wanted now"
    if choice.mode == "young":
        sentence = (
            f"less than {HISTORY_DAYS} days of history: demand of {demand} plus"
            f" {YOUNG_HEADROOM:.0%} headroom"
        )
    elif choice.mode == "reactive":
        why = "no forecast waited less lately than" if predict else "prediction is off:"
        sentence = f"{why} the tuned reactive setting ({setting}): {figures}"
    elif wanted < choice.unguarded - SAME_GPUS:
        sentence = f"the budget is spent, so the tuned reactive setting decides: {figures}"
    elif wanted > choice.unguarded + SAME_GPUS:
        sentence = (
            "forecasts have saved too little wait to hold much less than the tuned reactive"
            f" setting: {figures}"
        )
    elif wanted > now:
        sentence = (
            f"{setting} asks for {wanted:.1f} GPUs over the next {lead} while {demand} are"
            " wanted now"
        )
    else:
        sentence = f"no rise expected over the next {lead}: the {demand} GPUs that are wanted now"
    return sentence + (f"; {bound} of the pool decides" if bound else "")

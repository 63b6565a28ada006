"""What a pool should hold now, in a number and a sentence.

At the start of each day (UTC) the pool's own last four weeks are replayed with every candidate, as in the back-test,
and the safest one within the money is asked all day. What it says is never below the demand of now, is then held to the
pool's limits, and there is no answer at all when the demand is stale: a caller without an answer falls back to
reacting.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.scaling.choice import (
    DailyTotals,
    SelectionRules,
    affordable,
    daily_totals,
    select,
    tuned_reactive,
    typical_change,
)
from gpuledger_collector.insight.scaling.lookahead import climate
from gpuledger_collector.insight.scaling.policies import (
    PolicySetting,
    by_family,
    current_target,
    headroom_unit,
    reactive,
)
from gpuledger_collector.insight.scaling.simulation import simulate
from gpuledger_collector.insight.series import Floats, Series

DAY_MS = 86_400_000
PAST_DAYS = 28
MIN_DAYS = 10
SETTLE_DAYS = 3
STALE_STEPS = 3
YOUNG_HEADROOM = 0.1
SHOWN = (0.5, 0.9, 0.98)


@dataclass(frozen=True)
class ScalingLimits:
    """What a pool allows: GPUs at least and at most, GPUs of a node, and capacity as a multiple of demand.

    `warm_gpus` are kept free above the demand, `headroom` is the least part of demand kept above it. What is desired
    does not fall for `cooldown_ms` after a change, nor below the highest wish of the last `stabilise_ms`. `money_gpus`
    is what the money limit pays for.
    """

    floor_gpus: float = 0.0
    ceiling_gpus: float | None = None
    node_gpus: float = 1.0
    cost_cap: float = 1.25
    step_up_gpus: float | None = None
    step_down_gpus: float | None = None
    cooldown_ms: int = 0
    stabilise_ms: int = 0
    warm_gpus: float = 0.0
    headroom: float = 0.0
    predict: bool = True
    money_gpus: float | None = None


@dataclass(frozen=True)
class PastTarget:
    """What was desired from an earlier instant until the next one that is told of, and the wish before the limits."""

    at_ms: int
    gpus: float
    wanted: float = 0.0


@dataclass(frozen=True)
class ScalingAdvice:
    """Capacity to hold, and why. `demand_ahead` maps quantiles to the demand expected within the lead time."""

    as_of_ms: int
    valid_until_ms: int
    demand_now: float
    demand_ahead: dict[float, float]
    desired_gpus: float
    desired_nodes: int
    mode: str  # predictive, reactive, or young (too little history to choose)
    setting: PolicySetting
    reason: str
    reactive_gpus: float
    """What the best reactive setting asks for, before the limits."""
    wanted_gpus: float
    """What the chosen setting asks for, before the limits."""


def advise(
    series: Series,
    lead_ms: int,
    now_ms: int,
    limits: ScalingLimits | None = None,
    held_gpus: float | None = None,
    past: Sequence[PastTarget] = (),
    now_gpus: float = 0.0,
) -> ScalingAdvice | None:
    """Advice for a pool with this demand; None when its last known value is older than three steps.

    `held_gpus` is what the pool holds now, needed for the limits of a step; where it is not given, what was desired
    last. `past` is what was desired before, oldest first; `now_gpus` what is known to be wanted since the last step
    ended. Raises ValueError for a step that does not divide the day into 24 or more.
    """
    limits = limits or ScalingLimits()
    if held_gpus is None and past:
        held_gpus = past[-1].gpus
    per_day = DAY_MS // series.step_ms
    if DAY_MS % series.step_ms or per_day < 24:
        raise ValueError(f"a step of {series.step_ms / 1000:g} s does not divide the day into 24 or more steps")
    known = np.isfinite(series.values)
    if not known.any():
        return None
    last = int(np.flatnonzero(known)[-1])
    as_of = series.start_ms + last * series.step_ms
    if now_ms - as_of > STALE_STEPS * series.step_ms:
        return None
    first = max(0, last + 1 - (PAST_DAYS + 1) * per_day)
    demand, known = series.values[first : last + 1], known[first : last + 1]
    seen = np.maximum.accumulate(np.where(known, np.arange(len(demand)), -1))
    demand = np.where(seen >= 0, demand[np.maximum(seen, 0)], 0.0)
    delay = max(1, round(lead_ms / series.step_ms))
    today = (as_of + series.step_ms) % DAY_MS // series.step_ms
    setting, wanted, reacting, mode = _choose(demand, known, delay, series.step_ms, limits, today)
    now = max(float(demand[-1]), now_gpus)
    rise = np.zeros(len(SHOWN))
    if len(demand) > 2 * per_day:
        rise = climate(demand, delay, per_day, np.asarray(SHOWN), len(demand) - 1)[-1]
    ahead = {quantile: now + float(extra) for quantile, extra in zip(SHOWN, rise, strict=True)}
    gpus, bound = _bounded(max(wanted, now), now, limits, _Held(held_gpus, past, now_ms))
    nodes = _nodes(gpus, limits)
    reason = _reason(mode, setting, now, wanted, bound, lead_ms)
    valid = as_of + max(lead_ms, series.step_ms)
    return ScalingAdvice(
        as_of, valid, now, ahead, nodes * limits.node_gpus, nodes, mode, setting, reason, max(reacting, now), wanted
    )


def _choose(
    demand: Floats, known: npt.NDArray[np.bool_], delay: int, step_ms: int, limits: ScalingLimits, today: int
) -> tuple[PolicySetting, float, float, str]:
    """The setting to run, the GPUs it wants now (its hold included), those of the best reactive one, and the mode.

    `today`: how many of the last steps are of the day that is not over.
    """
    per_day = DAY_MS // step_ms
    if len(demand) < MIN_DAYS * per_day:
        setting = PolicySetting("reactive", headroom=YOUNG_HEADROOM)
        wanted = float(demand[-1]) * (1 + YOUNG_HEADROOM)
        return setting, wanted, wanted, "young"
    begun = len(demand) - today
    days = slice(begun - min(begun // per_day, PAST_DAYS) * per_day, begun)
    question = (delay, step_ms, limits.node_gpus, limits.cost_cap, limits.predict)
    with _ONE_AT_A_TIME:
        chosen = _settings_of_a_day(demand[days].tobytes(), known[days].tobytes(), *question)
    wanted, reacting = (current_target(one, demand, delay, step_ms, begun) for one in chosen)
    return chosen[0], wanted, reacting, "predictive" if chosen[0].predictive else "reactive"


_ONE_AT_A_TIME = threading.Lock()
"""Choosing takes seconds and much memory; whoever asks for the same meanwhile gets the same answer."""


@lru_cache(maxsize=256)
def _settings_of_a_day(
    demand_bytes: bytes, known_bytes: bytes, delay: int, step_ms: int, node_gpus: float, cost_cap: float, predict: bool
) -> tuple[PolicySetting, PolicySetting]:
    """The setting that whole days recommend for the next one, and the best reactive one."""
    demand, known = np.frombuffer(demand_bytes), np.frombuffer(known_bytes, dtype=np.bool_)
    per_day = DAY_MS // step_ms
    unit, spread, warm = headroom_unit(demand, node_gpus), typical_change(demand, delay), SETTLE_DAYS * per_day
    settings: list[PolicySetting] = []
    tallies: list[DailyTotals] = []
    families = by_family(demand, unit, delay, step_ms, warm) if predict else ()
    for candidates in itertools.chain([reactive(demand, unit, step_ms)], families):
        run = simulate(demand, candidates.target, candidates.keep, delay, warm, node_gpus)
        settings += candidates.settings
        tallies.append(daily_totals(demand, run.capacity, known, per_day, spread))
    seen = DailyTotals.joined(*tallies).between(SETTLE_DAYS, len(demand) // per_day)
    anchor, rules = tuned_reactive(seen, settings, cost_cap), SelectionRules()
    column, base = select(seen, settings, anchor, affordable(seen, anchor, cost_cap, rules), rules)
    return settings[column], settings[base]


@dataclass(frozen=True)
class _Held:
    """What is there, and what was desired before, oldest first."""

    gpus: float | None
    past: Sequence[PastTarget]
    now_ms: int

    def highest(self, within_ms: int) -> float:
        """The most that was wished within a time up to now; 0 for nothing. What the window keeps up is no wish."""
        ends = [one.at_ms for one in self.past[1:]] + [self.now_ms]
        lasted = zip(self.past, ends, strict=True) if self.past else ()
        return max((one.wanted for one, end_ms in lasted if self.now_ms - end_ms < within_ms), default=0.0)

    def changed_ms(self) -> int:
        """When what is desired now was first desired."""
        at_ms = self.past[-1].at_ms
        for one in reversed(self.past):
            if one.gpus != self.past[-1].gpus:
                break
            at_ms = one.at_ms
        return at_ms


def _bounded(wanted: float, now: float, limits: ScalingLimits, held: _Held) -> tuple[float, str]:
    """The wish inside the limits, and the limit that changed it ("" for none).

    The demand of now beats a step limit; the ceiling and the money, which people have set, beat everything.
    """
    gpus, bound = wanted, ""
    if (least := now * (1 + limits.headroom) + limits.warm_gpus) > gpus:
        gpus, bound = least, "the warm pool" if limits.warm_gpus else "the headroom"
    gpus, bound = _calmed(gpus, bound, limits, held)
    if held.gpus is not None and limits.step_up_gpus is not None and gpus > held.gpus + limits.step_up_gpus:
        gpus, bound = max(held.gpus + limits.step_up_gpus, now), "the step limit up"
    if held.gpus is not None and limits.step_down_gpus is not None and gpus < held.gpus - limits.step_down_gpus:
        gpus, bound = held.gpus - limits.step_down_gpus, "the step limit down"
    if gpus < limits.floor_gpus:
        gpus, bound = limits.floor_gpus, "the floor"
    if limits.ceiling_gpus is not None and gpus > limits.ceiling_gpus:
        gpus, bound = limits.ceiling_gpus, "the ceiling"
    if limits.money_gpus is not None and gpus > limits.money_gpus:
        gpus, bound = limits.money_gpus, "the money limit"
    return gpus, bound


def _calmed(gpus: float, bound: str, limits: ScalingLimits, held: _Held) -> tuple[float, str]:
    """The wish, kept up by the stabilisation window and the cool-down."""
    if (highest := held.highest(limits.stabilise_ms)) > gpus:
        gpus, bound = highest, "the stabilisation window"
    if held.past and gpus < held.past[-1].gpus and held.now_ms - held.changed_ms() < limits.cooldown_ms:
        gpus, bound = held.past[-1].gpus, "the cool-down"
    return gpus, bound


def _nodes(gpus: float, limits: ScalingLimits) -> int:
    """Whole nodes for these GPUs, rounded up, but not above what the ceiling and the money allow."""
    nodes = int(np.ceil(gpus / limits.node_gpus - 1e-6))
    for most in (limits.ceiling_gpus, limits.money_gpus):
        if most is not None:
            nodes = min(nodes, int(most / limits.node_gpus + 1e-6))
    return nodes


def _reason(mode: str, setting: PolicySetting, now: float, wanted: float, bound: str, lead_ms: int) -> str:
    """One sentence for a person."""
    lead = f"{lead_ms / 60_000:g} min"
    if mode == "young":
        said = f"less than {MIN_DAYS} days of history: demand of {now:g} plus {YOUNG_HEADROOM:.0%} headroom"
    elif wanted > now:
        said = f"{setting.sentence()} asks for {wanted:.1f} GPUs over the next {lead} while {now:g} are wanted now"
    else:
        said = f"no rise to be expected over the next {lead}: the {now:g} GPUs that are wanted now"
    return said + (f"; {bound} of the pool decides" if bound else "")

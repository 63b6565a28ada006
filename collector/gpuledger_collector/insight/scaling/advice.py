"""What a pool should hold now, in a number and a sentence.

The pool's own last four weeks are replayed with every candidate, as in the back-test; the one that would have waited
least within the money is asked about now. The answer is never below the demand of now, keeps to the pool's limits,
and there is none at all when the demand is stale: a caller without an answer falls back to reacting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.scaling.choice import Rules, affordable, best, surprise, tally, tuned
from gpuledger_collector.insight.scaling.lookahead import climate
from gpuledger_collector.insight.scaling.policies import Candidates, Setting, joined, predictive, reactive, unit_of
from gpuledger_collector.insight.scaling.simulation import simulate
from gpuledger_collector.insight.series import Floats, Series

DAY_MS = 86_400_000
PAST_DAYS = 28
LEAST_DAYS = 10
SETTLE_DAYS = 3
STALE_STEPS = 3
YOUNG_HEADROOM = 0.1
SHOWN = (0.5, 0.9, 0.98)


@dataclass(frozen=True)
class Limits:
    """What a pool allows: GPUs at least and at most, GPUs of a node, and capacity as a multiple of demand."""

    floor_gpus: float = 0.0
    ceiling_gpus: float | None = None
    node_gpus: float = 1.0
    cost_cap: float = 1.25
    step_up_gpus: float | None = None
    step_down_gpus: float | None = None


@dataclass(frozen=True)
class Advice:
    """Capacity to hold, and why. `rise` maps quantiles to the demand expected within the lead time."""

    as_of_ms: int
    valid_until_ms: int
    demand_now: float
    demand_ahead: dict[float, float]
    desired_gpus: float
    desired_nodes: int
    mode: str  # predictive, reactive, or young (too little history to choose)
    setting: Setting
    reason: str


def advise(
    series: Series, lead_ms: int, now_ms: int, limits: Limits | None = None, held_gpus: float | None = None
) -> Advice | None:
    """Advice for a pool with this demand; None when its last known value is older than three steps.

    `held_gpus` is what the pool holds now, needed for the limits of a step. Raises ValueError for a step that does
    not divide the day into 24 or more.
    """
    limits = limits or Limits()
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
    first = max(0, last + 1 - PAST_DAYS * per_day)
    demand, known = series.values[first : last + 1], known[first : last + 1]
    seen = np.maximum.accumulate(np.where(known, np.arange(len(demand)), -1))
    demand = np.where(seen >= 0, demand[np.maximum(seen, 0)], 0.0)
    delay = max(1, round(lead_ms / series.step_ms))
    setting, wanted, mode = _choose(demand, known, delay, series.step_ms, limits)
    now = float(demand[-1])
    rise = np.zeros(len(SHOWN))
    if len(demand) > 2 * per_day:
        rise = climate(demand, delay, per_day, np.asarray(SHOWN), len(demand) - 1)[-1]
    ahead = {quantile: now + float(extra) for quantile, extra in zip(SHOWN, rise, strict=True)}
    gpus, bound = _bounded(max(wanted, now), now, limits, held_gpus)
    nodes = int(np.ceil(gpus / limits.node_gpus - 1e-6))
    reason = _reason(mode, setting, now, wanted, bound, lead_ms)
    valid = as_of + max(lead_ms, series.step_ms)
    return Advice(as_of, valid, now, ahead, nodes * limits.node_gpus, nodes, mode, setting, reason)


def _choose(demand: Floats, known: Floats, delay: int, step_ms: int, limits: Limits) -> tuple[Setting, float, str]:
    """The setting to run, the GPUs it wants now (its hold included), and the mode."""
    per_day = DAY_MS // step_ms
    if len(demand) < LEAST_DAYS * per_day:
        setting = Setting("reactive", headroom=YOUNG_HEADROOM)
        return setting, float(demand[-1]) * (1 + YOUNG_HEADROOM), "young"
    # Whole days up to now: the part of a day stands at the beginning, where it is not looked at.
    cut = len(demand) % per_day
    demand, known = demand[cut:], known[cut:]
    unit = unit_of(demand, limits.node_gpus)
    warm = SETTLE_DAYS * per_day
    candidates: Candidates = joined(reactive(demand, unit, step_ms), predictive(demand, unit, delay, step_ms, warm))
    run = simulate(demand, candidates.target, candidates.keep, delay, warm, limits.node_gpus)
    days = len(demand) // per_day
    spread = surprise(demand, delay)
    seen = tally(demand, run.capacity, known.astype(bool), per_day, spread).between(SETTLE_DAYS, days)
    anchor, rules = tuned(seen, candidates.settings, limits.cost_cap), Rules()
    column, _ = best(seen, candidates.settings, anchor, affordable(seen, anchor, limits.cost_cap, rules), rules)
    setting = candidates.settings[column]
    wanted = max(float(candidates.target[-1, column]), float(candidates.keep[-1, column]))
    return setting, wanted, "predictive" if setting.predictive else "reactive"


def _bounded(wanted: float, now: float, limits: Limits, held: float | None) -> tuple[float, str]:
    """The wish inside the limits, and the limit that changed it ("" for none); the demand of now beats a step limit
    down.
    """
    gpus, bound = wanted, ""
    if held is not None and limits.step_up_gpus is not None and gpus > held + limits.step_up_gpus:
        gpus, bound = max(held + limits.step_up_gpus, now), "the step limit up"
    if held is not None and limits.step_down_gpus is not None and gpus < held - limits.step_down_gpus:
        gpus, bound = held - limits.step_down_gpus, "the step limit down"
    if gpus < limits.floor_gpus:
        gpus, bound = limits.floor_gpus, "the floor"
    if limits.ceiling_gpus is not None and gpus > limits.ceiling_gpus:
        gpus, bound = limits.ceiling_gpus, "the ceiling"
    return gpus, bound


def _reason(mode: str, setting: Setting, now: float, wanted: float, bound: str, lead_ms: int) -> str:
    """One sentence for a person."""
    lead = f"{lead_ms / 60_000:g} min"
    if mode == "young":
        said = f"less than {LEAST_DAYS} days of history: demand of {now:g} plus {YOUNG_HEADROOM:.0%} headroom"
    elif wanted > now:
        said = f"{setting.sentence()} asks for {wanted:.1f} GPUs over the next {lead} while {now:g} are wanted now"
    else:
        said = f"no rise to be expected over the next {lead}: the {now:g} GPUs that are wanted now"
    return said + (f"; {bound} of the pool decides" if bound else "")

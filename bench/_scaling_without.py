"""What each part of capacity scaling is worth: the same pools without it; not a benchmark of its own.

A part is a value of the grid of candidates, an estimator or a group of its inputs, or a rule of the
daily choice. Each pool is replayed without it, with the constants that ship (every family chooses
the same ones left out). Cuts are against the tuned setting of *all* reactive candidates, so that a
part that makes the baseline worse gains nothing by it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np

from gpuledger_collector.insight.scaling import choice, lookahead, policies
from gpuledger_collector.insight.scaling.choice import (
    SETTLE_DAYS,
    SelectionRules,
    tuned_reactive,
)
from gpuledger_collector.insight.scaling.policies import headroom_unit
from gpuledger_collector.insight.scaling.replay import CandidateReplay
from gpuledger_collector.insight.scaling.simulation import (
    CapacityRequest,
    GuardedReplay,
    simulate_within,
)

ENDLESS = 10_000.0


@dataclass(frozen=True)
class Part:
    """What is left out: candidates for which `drops` holds, given their setting and the unit of
    headroom; other rules; or other values in the modules that make candidates.
    """

    drops: Callable = lambda *_: False
    rules: SelectionRules = field(default_factory=SelectionRules)
    values: Mapping = field(default_factory=dict)
    tuned_alone: bool = False
    """Whether the tuned reactive setting is judged itself: it is what a pool without forecasts runs."""


def _columns(first, last):
    """The features without some columns."""
    features = lookahead.features

    def fewer(*arguments):
        return np.delete(features(*arguments), np.s_[first:last], axis=1)

    return {"lookahead.features": fewer}


def _even_spread(rows, ahead, now, quantiles):
    """A day's rises with one scale of errors for all instants."""
    width = rows.std(axis=0)
    width[width < 1e-9] = 1.0
    rows, now = rows / width, now / width
    expected = lookahead._ridge(rows, ahead)
    return (now @ expected)[:, None] + np.quantile(ahead - rows @ expected, quantiles)[None, :]


def parts():
    """Each part by its name; the first is nothing."""
    out = {"nothing": Part()}
    for value in policies.HEADROOM[1:]:
        out[f"headroom {value:g}"] = Part(lambda s, _, v=value: s.headroom == v, tuned_alone=True)
    out["any headroom"] = Part(lambda s, _: s.headroom > 0, tuned_alone=True)
    for value in policies.EXTRA_UNITS[1:]:
        out[f"extra {value:g}"] = Part(
            lambda s, unit, v=value: s.extra_gpus == v * unit, tuned_alone=True
        )
    out["any extra"] = Part(lambda s, _: s.extra_gpus > 0, tuned_alone=True)
    for value in policies.HOLD_MINUTES[1:]:
        out[f"reactive hold {value}"] = Part(
            lambda s, _, v=value: not s.predictive and s.hold_minutes == v, tuned_alone=True
        )
    for value in policies.RISE_QUANTILES:
        out[f"quantile {value:g}"] = Part(lambda s, _, v=value: s.quantile == v)
    for place, name in enumerate(("first", "second")):
        half = policies.RISE_QUANTILES[place::2]
        out[f"every other quantile, from the {name}"] = Part(
            lambda each, _, half=half: each.quantile in half
        )
    for value in policies.PREDICTIVE_HOLDS:
        out[f"hold {value}"] = Part(lambda s, _, v=value: s.predictive and s.hold_minutes == v)
    for value in policies.LOT_UNITS:
        out[f"lot {value:g}"] = Part(lambda s, unit, v=value: s.lot_gpus == v * unit)
    for value in policies.FAMILIES:
        out[value] = Part(lambda s, _, v=value: s.family == v)
    rules = SelectionRules()
    out |= {
        "limit on changes": Part(rules=replace(rules, actions=ENDLESS)),
        "limit of 1.02 x": Part(rules=replace(rules, cost_ratio=ENDLESS)),
        "loan": Part(rules=replace(rules, lent_days=0.0)),
        "window of ten days": Part(rules=replace(rules, window_days=int(ENDLESS))),
        "lots": Part(values={"policies.LOT_UNITS": (0.0,)}),
        "drift: hour": Part(values=_columns(1, 5)),
        "drift: last changes": Part(values=_columns(5, 11)),
        "drift: means": Part(values=_columns(11, 14)),
        "drift: spread of errors": Part(values={"lookahead._fit_day": _even_spread}),
        "drift: three weeks": Part(values={"lookahead.PAST_DAYS": 28}),
        "drift: ridge": Part(values={"lookahead.RIDGE": 1e-6}),
        "climate: 14 days": Part(values={"lookahead.CLIMATE_DAYS": 28}),
    }
    return out


def join(several):
    """Several parts left out at once."""
    rules = SelectionRules()
    changed = {}
    for part in several:
        changed |= {
            name: value for name, value in vars(part.rules).items() if value != getattr(rules, name)
        }
    values = {name: value for part in several for name, value in part.values.items()}
    return Part(
        lambda setting, unit: any(part.drops(setting, unit) for part in several),
        replace(rules, **changed),
        values,
    )


def chosen_parts(wanted):
    """The parts of `--without=a,b+c`: each alone, or those joined by + at once; all when empty."""
    known = parts()
    if not wanted:
        return known
    unknown = {name for each in wanted.split(",") for name in each.split("+")} - set(known)
    if unknown:
        print(f"bench: no part {', '.join(sorted(unknown))}; {', '.join(known)}", file=sys.stderr)
        sys.exit(2)
    return {"nothing": Part()} | {
        each: known[each] if each in known else join([known[name] for name in each.split("+")])
        for each in wanted.split(",")
    }


def _candidates(demand, step_ms, delay, values):
    """All candidates replayed, with other values in the modules that make them."""
    with ExitStack() as stack:
        for name, value in values.items():
            module, _, attribute = name.partition(".")
            stack.enter_context(
                patch.object(
                    {"lookahead": lookahead, "policies": policies}[module], attribute, value
                )
            )
        known = np.ones(len(demand), dtype=bool)
        return CandidateReplay(demand, known, step_ms, delay, 0.0, 1.1)


def scores_without(demand, step_ms, delay, caps, several, score):
    """By cap and name of the part, the score of one pool without it."""
    kinds = {}
    for name, part in several.items():
        kinds.setdefault(tuple(part.values.items()), []).append(name)
    wanted = {cap: {} for cap in caps}
    whole = None
    for values, names in kinds.items():
        replay = _candidates(demand, step_ms, delay, dict(values))
        whole = whole or replay
        for name, cap in itertools.product(names, caps):
            replay.cap = cap
            wanted[cap][name] = _wanted(replay, several[name])
    return {cap: _scores(whole, cap, several, wanted[cap], score) for cap in caps}


def _wanted(replay, part):
    """The tuned reactive setting that is left, the candidates of the days, and what these want and
    keep.
    """
    settings = replay.candidates.settings
    unit = headroom_unit(replay.demand[: replay.first], 0.0)
    kept = np.array([not part.drops(each, unit) for each in settings])
    replay.anchor = _tuned(replay, kept)
    days = replay.schedule(kept & replay.predictive, part.rules)
    steps = np.arange(len(replay.demand))
    column = days[steps // replay.per_day]
    return (
        replay.anchor,
        days,
        replay.candidates.target[steps, column],
        replay.candidates.keep[steps, column],
    )


def _scores(replay, cap, several, wanted, score):
    replay.cap = cap
    full = _tuned(replay, np.ones(len(replay.candidates.settings), dtype=bool))
    groups, ours = {}, {}
    for name, part in several.items():
        anchor = wanted[name][0]
        if part.tuned_alone:
            ours[name] = replay.capacity[:, anchor]
        else:
            budget = part.rules.budget(cap, replay.level, replay.per_day)
            groups.setdefault((anchor, budget), []).append(name)
    for (anchor, budget), names in groups.items():
        capacity = _guarded(replay, anchor, budget, [wanted[name] for name in names])
        ours |= dict(zip(names, capacity.T, strict=True))
    replay.anchor = full
    return {name: score(replay, ours[name], ours[name], wanted[name][1]) for name in several}


def _guarded(replay, anchor, budget, columns):
    """Capacity of several wishes under guard, as CandidateReplay.run has it."""
    tables = replay.candidates.target, replay.candidates.keep
    state = GuardedReplay(
        float(replay.demand[replay.warm - 1]), replay.delay, replay.node, budget, len(columns)
    )
    return simulate_within(
        replay.demand,
        CapacityRequest(*(np.stack([each[place] for each in columns], axis=1) for place in (2, 3))),
        CapacityRequest(*(table[:, anchor : anchor + 1] for table in tables)),
        state,
        replay.known,
        (replay.warm, replay.first),
    )


def _tuned(replay, among):
    """The tuned reactive setting among some candidates."""
    index = np.flatnonzero(among)
    totals = replay.totals.days_between(SETTLE_DAYS, choice.HISTORY_DAYS)
    part = replace(
        totals,
        capacity=totals.capacity[:, index],
        wait=totals.wait[:, index],
        actions=totals.actions[:, index],
    )
    settings = [replay.candidates.settings[place] for place in index]
    return int(index[tuned_reactive(part, settings, replay.cap)])

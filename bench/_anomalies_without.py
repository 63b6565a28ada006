"""What each part of the search for unusual spending is worth: the same labeled cases without it; not
a benchmark of its own.

A part of the detector is a constant with no effect, or an input without what the part makes of it.
For each family the threshold is chosen without the part on the other families, and shown on this
one. Causes are judged on the episodes that the search in the ledger keeps: whether the word is that
of the injection, and whether the workload that was injected is named.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np

from gpuledger_collector.insight.anomalies import TUNED, alarms, causes

HUGE = 1e9


@dataclass(frozen=True)
class Part:
    """How a part is left out: other constants of the tuning or of modules, another case."""

    tuning: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    case: object = None
    storms: bool = False
    """Whether storms have to be searched again."""


def _past(**fields):
    """A case whose baselines have other fields."""

    def change(case):
        return replace(
            case,
            past=replace(case.past, **{name: of(case.past) for name, of in fields.items()}),
            past_of_long_running=replace(
                case.past_of_long_running,
                **{name: of(case.past_of_long_running) for name, of in fields.items()},
            ),
        )

    return Part(case=change)


def _without_leaps(score, leap, price, rule, step_ms):
    return _find_alarms(score, np.where(np.isfinite(leap), 0.0, leap), price, rule, step_ms)


_find_alarms = alarms.find_alarms


def detector_parts():
    """Each part of the detector by its name; the first is nothing."""
    return {
        "nothing": Part(),
        "extreme scores at once": Part({"far": HUGE}),
        "two hours in a row": Part({"persistence_hours": 1}),
        "least spread, 15 % of the mean": Part({"min_of_mean": 0.0}),
        "usual height above the past's": Part({"above_height": 1.0}),
        "smoothing": Part({"smooth": 0.0}),
        "the fast excess": Part({"fast": 1e-9}),
        "the CUSUM": Part({"slow": 0.0}),
        "slack": Part({"slack": 0.0}),
        "limit on what an hour adds": Part({"clip_up": HUGE}),
        "forgetting": Part({"memory": 1.0}),
        "cap on the CUSUM": Part({"cap": HUGE}),
        "fatigue": Part({"fatigue": 0.0}),
        "fatigue that is forgotten": Part(values={"alarms.FATIGUE_HOURS": HUGE}),
        "long-running workloads": Part({"long_running": 0.0}),
        "least spread of long-running": Part({"min_of_all": 0.0}),
        "what recurs": _past(recurring=lambda past: np.full(len(past.level), np.nan)),
        "trust": _past(trust=lambda past: np.where(past.trust > 0, 1.0, 0.0)),
        "leaps within an alarm": Part(values={"detector.find_alarms": _without_leaps}),
        "merging over 12 hours": Part(values={"alarms.MERGE_HOURS": 1}),
        "storms": Part(case=lambda case: replace(case, storms=[])),
        "storms: three times as many": Part(values={"causes.STORM_TIMES": 0}, storms=True),
        "storms: twice is usual": Part(values={"causes.USUAL_STORMS": HUGE}, storms=True),
        "storms: short runs": Part(values={"causes.STORM_RUN_MS": HUGE}, storms=True),
        "storms: runs to compare with": Part(values={"causes.MIN_COMPARABLE": 1}, storms=True),
    }


def cause_parts():
    """Each rule and threshold of causes by its name."""
    rules = {
        rule.__name__.strip("_"): {
            "RULES": tuple(each for each in causes.RULES if each is not rule)
        }
        for rule in causes.RULES
    }
    return (
        {"nothing": {}}
        | rules
        | {
            "far longer: 1.5": {"FAR_LONGER": 1.0},
            "far larger": {"FAR_MORE": HUGE},
            "such runs: 5": {"MIN_COMPARABLE": 1},
            "storm: 30 minutes": {"STORM_RUN_MS": HUGE},
            "plateau: 8 hours": {"PLATEAU_MS": 0},
            "leak: two days": {"LEAK_MS": 0},
            "leak: four days": {"LEAK_DAYS": 2},
            "leak: no leap": {"LEAK_MAX_STEP": HUGE},
            "new: a day": {"NEW_MS": 0},
            "scale-up: a quarter": {"SCALED": 1.0},
            "most of the rise": {"MOST_OF_RISE": 0.0},
        }
    )


def changed(values):
    """A context in which constants of modules have other values."""
    stack = ExitStack()
    for name, value in values.items():
        stack.enter_context(patch(f"gpuledger_collector.insight.anomalies.{name}", value))
    return stack


def figures_without(part, families, thresholds, judge):
    """The figures of each family without a part, with the threshold that its others choose.

    `judge(part, tuning, show)` gives figures by family on the cases to show or to choose on,
    `families` maps each family to be shown to those that it is chosen on.
    """
    tunings = [replace(TUNED, **({"threshold": each} | part.tuning)) for each in thresholds]
    tried = {tuning: judge(part, tuning, False) for tuning in tunings}
    shown, out = {}, {}
    for family, others in families.items():
        best = max(tunings, key=lambda each: np.mean([merit_of(tried[each][o]) for o in others]))
        if best not in shown:
            shown[best] = judge(part, best, True)
        out[family] = best.threshold, shown[best][family]
    return out


def merit_of(figures, allowed=0.6):
    """Mean of recall and precision, less a twentieth for each false alarm above what is allowed."""
    return (figures["recall"] + figures["precision"]) / 2 - 0.05 * max(
        0.0, figures["clean_fa"] - allowed
    )

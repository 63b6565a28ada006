"""Candidate policies: reactive with headroom and hold, and the same plus a forecast of the rise.

Each candidate is a column of two tables: what it wants at the end of each step, and what it keeps
when demand falls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.scaling.lookahead import climate, drift
from gpuledger_collector.insight.scaling.simulation import CapacityRequest, rolling_max, whole_nodes
from gpuledger_collector.insight.series import Floats

HEADROOM = (0.0, 0.05, 0.1, 0.2, 0.35, 0.54)
EXTRA_UNITS = (0, 1, 2, 4)
HOLD_MINUTES = (0, 15, 30, 60, 120, 240)
RISE_QUANTILES = (0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.97, 0.98, 0.99, 0.995, 0.998)
PREDICTIVE_HOLDS = (0, 30, 60, 120)
FAMILIES = ("climate", "drift", "blend")
LOT_UNITS = (0.5, 1.0, 2.0)
"""A forecast moves a little with every step: capacity ordered in lots does not follow every move.
"""


@dataclass(frozen=True)
class PolicySetting:
    """One candidate's parameters; `family` is reactive, climate, drift, or blend (the mean of these
    two).
    """

    family: str
    headroom: float = 0.0
    extra_gpus: float = 0.0
    hold_minutes: int = 0
    quantile: float | None = None
    lot_gpus: float = 0.0

    @property
    def predictive(self) -> bool:
        """Whether it uses a forecast."""
        return self.quantile is not None

    def sentence(self) -> str:
        """Describe it for a person."""
        parts = [
            f"{self.quantile:.1%} quantile of the rise ({self.family})"
            if self.quantile is not None
            else "",
            f"{self.extra_gpus:g} GPU{'s' * (self.extra_gpus != 1)} more"
            if self.extra_gpus
            else "",
            f"{self.headroom:.0%} headroom" if self.headroom else "",
            f"hold for {self.hold_minutes} min" if self.hold_minutes else "",
        ]
        return ", ".join(["demand now", *filter(None, parts)])


@dataclass(frozen=True)
class Candidates:
    """Settings with their tables `target` and `keep` (n, K), one column each."""

    settings: tuple[PolicySetting, ...]
    target: Floats
    keep: Floats


def steps_of(minutes: float, step_ms: int) -> int:
    """Return the whole steps of a time span, at least 1 (the step itself)."""
    return 1 + round(minutes * 60_000 / step_ms)


def headroom_unit(demand: Floats, node_gpus: float) -> float:
    """Return the GPUs by which fixed headroom grows: a node, or a twentieth of mean demand for
    fractional capacity.
    """
    return node_gpus or max(1.0, round(float(demand.mean()) / 20))


def reactive(demand: Floats, unit: float, step_ms: int) -> Candidates:
    """Build 144 settings: demand x (1 + headroom) + extra, held for a while."""
    held = {hold: rolling_max(demand, steps_of(hold, step_ms)) for hold in HOLD_MINUTES}
    settings, target, keep = [], [], []
    for head, extra, hold in itertools.product(HEADROOM, EXTRA_UNITS, HOLD_MINUTES):
        settings.append(PolicySetting("reactive", head, extra * unit, hold))
        target.append(demand * (1 + head) + extra * unit)
        keep.append(held[hold] * (1 + head) + extra * unit)
    return Candidates(tuple(settings), np.stack(target, axis=1), np.stack(keep, axis=1))


def predictive(
    demand: Floats, unit: float, delay: int, step_ms: int, start: int
) -> Iterator[Candidates]:
    """Build 144 settings a family: demand + a quantile of the rise until an order serves, in whole
    lots, held.
    """
    quantiles = np.asarray(RISE_QUANTILES)
    for family in FAMILIES:
        rise = _rise(family, demand, delay, step_ms, quantiles, start)
        settings, target, keep = [], [], []
        for units, hold in itertools.product(LOT_UNITS, PREDICTIVE_HOLDS):
            lot = units * unit
            wanted = whole_nodes(demand[:, None] + rise, lot)
            settings += [
                PolicySetting(family, 0.0, 0.0, hold, quantile, lot) for quantile in RISE_QUANTILES
            ]
            target.append(wanted)
            keep.append(rolling_max(wanted, steps_of(hold, step_ms)))
        yield Candidates(tuple(settings), np.hstack(target), np.hstack(keep))


def _rise(
    family: str, demand: Floats, delay: int, step_ms: int, quantiles: Floats, start: int
) -> Floats:
    """GPUs by which demand may rise (n, Q), from the step `start` on."""
    per_day = max(1, DAY_MS // step_ms)
    estimators = {"climate": (climate,), "drift": (drift,), "blend": (climate, drift)}[family]
    rises = [estimate(demand, delay, per_day, quantiles, start) for estimate in estimators]
    return np.asarray(sum(rises) / len(rises))


def request_since(
    setting: PolicySetting, demand: Floats, delay: int, step_ms: int, day: int
) -> CapacityRequest:
    """Return what one setting states after each step from `day` on; `day` is the step that began
    the last day.
    """
    recent, begun = steps_of(setting.hold_minutes, step_ms), day
    wanted = demand * (1 + setting.headroom) + setting.extra_gpus
    if setting.quantile is not None:
        per_day = max(1, DAY_MS // step_ms)
        while begun > per_day and begun > day + 1 - recent:
            begun -= per_day  # the hold reaches back to yesterday, whose forecast was fitted then
        rise = _rise(setting.family, demand, delay, step_ms, np.asarray([setting.quantile]), begun)[
            :, 0
        ]
        wanted = whole_nodes(demand + rise, setting.lot_gpus)
    return CapacityRequest(wanted[day:], rolling_max(wanted, recent)[day:])


def join_candidates(*parts: Candidates) -> Candidates:
    """Put the candidates of all parts side by side."""
    settings = tuple(setting for part in parts for setting in part.settings)
    return Candidates(
        settings,
        np.hstack([part.target for part in parts]),
        np.hstack([part.keep for part in parts]),
    )

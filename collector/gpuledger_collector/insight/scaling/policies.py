"""The policies that compete: reactive with headroom and hold, the same plus a forecast of the rise, and the anchors.

Each candidate is a column of two tables: what it wants at the end of each step, and what it keeps on the way down.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.scaling.lookahead import climate, drift
from gpuledger_collector.insight.scaling.simulation import rolling_max, whole_nodes
from gpuledger_collector.insight.series import Floats

HEADROOM = (0.0, 0.05, 0.1, 0.2, 0.35, 0.54)
EXTRA_UNITS = (0, 1, 2, 4)
HOLD_MINUTES = (0, 15, 30, 60, 120, 240)
RISE_QUANTILES = (0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.97, 0.98, 0.99, 0.995, 0.998)
PREDICTIVE_HOLDS = (0, 15, 30, 60, 120)
PREDICTIVE_EXTRA = (0.0, 0.5, 1.0, 2.0)
FAMILIES = ("climate", "drift", "blend")
DAY_MS = 86_400_000
LOTS_PER_UNIT = (4.0, 2.0)
"""A forecast moves a little with every step: capacity ordered in lots stands still meanwhile."""
UTILISATION = (0.5, 0.6, 0.65, 0.7, 0.8, 0.9)
WINDOW_MINUTES = (5, 15, 30, 60)


@dataclass(frozen=True)
class PolicySetting:
    """One candidate, in words and numbers."""

    family: str  # reactive, climate, drift, or the mean of these two: blend
    headroom: float = 0.0
    extra_gpus: float = 0.0
    hold_minutes: int = 0
    quantile: float | None = None
    lot_gpus: float = 0.0

    @property
    def predictive(self) -> bool:
        """Whether it looks ahead."""
        return self.quantile is not None

    def sentence(self) -> str:
        """What it does, for a person."""
        parts = [f"hold for {self.hold_minutes} min"] if self.hold_minutes else []
        if self.headroom:
            parts.insert(0, f"{self.headroom:.0%} headroom")
        if self.extra_gpus:
            parts.insert(0, f"{self.extra_gpus:g} GPUs more")
        if self.quantile is not None:
            parts.insert(0, f"{self.quantile:.1%} quantile of the rise ({self.family})")
        return "demand now" + "".join(f", {part}" for part in parts)


@dataclass(frozen=True)
class Candidates:
    """Settings with their tables, one column each."""

    settings: tuple[PolicySetting, ...]
    target: Floats  # (n, K)
    keep: Floats  # (n, K)


def steps_of(minutes: float, step_ms: int) -> int:
    """Whole steps of a time span, at least 1 (the step itself)."""
    return 1 + round(minutes * 60_000 / step_ms)


def headroom_unit(demand: Floats, node_gpus: float) -> float:
    """What one more 'node' of fixed headroom means where capacity is fractional: a twentieth of the usual demand."""
    return node_gpus or max(1.0, round(float(demand.mean()) / 20))


def reactive(demand: Floats, unit: float, step_ms: int) -> Candidates:
    """144 settings: demand x (1 + headroom) + extra, held for a while."""
    held = {hold: rolling_max(demand, steps_of(hold, step_ms)) for hold in HOLD_MINUTES}
    settings, target, keep = [], [], []
    for head, extra, hold in itertools.product(HEADROOM, EXTRA_UNITS, HOLD_MINUTES):
        settings.append(PolicySetting("reactive", head, extra * unit, hold))
        target.append(demand * (1 + head) + extra * unit)
        keep.append(held[hold] * (1 + head) + extra * unit)
    return Candidates(tuple(settings), np.stack(target, axis=1), np.stack(keep, axis=1))


def predictive(demand: Floats, unit: float, delay: int, step_ms: int, start: int) -> Candidates:
    """Demand now plus a quantile of the rise until what is ordered now serves, in whole lots, held for a while."""
    return join_candidates(*by_family(demand, unit, delay, step_ms, start))


def by_family(demand: Floats, unit: float, delay: int, step_ms: int, start: int) -> Iterator[Candidates]:
    """The same, one family at a time: all of a month's five minutes at once are half a gigabyte."""
    quantiles = np.asarray(RISE_QUANTILES)
    for family in FAMILIES:
        rise = _rise(family, demand, delay, step_ms, quantiles, start)
        settings, target, keep = [], [], []
        for extra, lot in itertools.product(PREDICTIVE_EXTRA, lot_sizes(unit)):
            wanted = whole_nodes(demand[:, None] + rise + extra * unit, lot)
            for hold in PREDICTIVE_HOLDS:
                settings += [
                    PolicySetting(family, 0.0, extra * unit, hold, quantile, lot) for quantile in RISE_QUANTILES
                ]
                target.append(wanted)
                keep.append(rolling_max(wanted, steps_of(hold, step_ms)))
        yield Candidates(tuple(settings), np.hstack(target), np.hstack(keep))


def _rise(family: str, demand: Floats, delay: int, step_ms: int, quantiles: Floats, start: int) -> Floats:
    """GPUs by which demand may rise (n, Q), from the step `start` on."""
    per_day = max(1, DAY_MS // step_ms)
    if family == "climate":
        return climate(demand, delay, per_day, quantiles, start)
    if family == "drift":
        return drift(demand, delay, per_day, quantiles, start)
    both = (_rise(one, demand, delay, step_ms, quantiles, start) for one in ("climate", "drift"))
    return np.asarray(sum(both) / 2)


def current_target(setting: PolicySetting, demand: Floats, delay: int, step_ms: int, day: int) -> float:
    """What one setting asks for at the end of the last step, its hold included; `day`: the step that began today."""
    recent = steps_of(setting.hold_minutes, step_ms)
    if setting.quantile is None:
        return float(demand[-recent:].max()) * (1 + setting.headroom) + setting.extra_gpus
    per_day = max(1, DAY_MS // step_ms)
    while day > per_day and day > len(demand) - recent:
        day -= per_day  # the hold reaches back to yesterday, whose forecast was fitted then
    rise = _rise(setting.family, demand, delay, step_ms, np.asarray([setting.quantile]), day)[-recent:, 0]
    return float(whole_nodes(demand[-recent:] + rise + setting.extra_gpus, setting.lot_gpus).max())


def lot_sizes(unit: float) -> list[float]:
    """GPUs that are ordered at once: quarters and halves of a unit."""
    return sorted(unit / parts for parts in LOTS_PER_UNIT)


def join_candidates(*parts: Candidates) -> Candidates:
    """All candidates of the parts, side by side."""
    settings = tuple(setting for part in parts for setting in part.settings)
    return Candidates(settings, np.hstack([part.target for part in parts]), np.hstack([part.keep for part in parts]))

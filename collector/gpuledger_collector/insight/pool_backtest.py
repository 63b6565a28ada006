"""The back-test of a pool's own last 28 days in money: what stands beside the switch that turns prediction on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.backtest import Backtest, ScalingScenario, TooShort, backtest_scaling, filled
from gpuledger_collector.insight.scaling.policies import headroom_unit, reactive
from gpuledger_collector.insight.scaling.pools import GpuHourRate, ScalingTerms, money_micro
from gpuledger_collector.insight.scaling.simulation import simulate
from gpuledger_collector.insight.series import Series

JUDGED_DAYS = 28
HISTORY_DAYS = 10
SHOWN = ("static-peak", "hpa-default", "reactive-plain", "reactive-tuned", "gpuledger", "oracle")
COLUMNS = ("policy", "capacity", "demand", "wait", "wait_p95_s", "actions", "cost", "over_demand", "currency")
DAY_MS = 86_400_000


@dataclass(frozen=True)
class PoolBacktest:
    """A back-test of a pool in money. `done` is None where there is too little to judge, and `short` says so.

    `front` are the reactive settings that no other one beats in both, by capacity: (capacity, wait) in GPU-hours. They
    are known in hindsight, so no scaler can count on them.
    """

    terms: ScalingTerms
    done: Backtest | None
    short: str
    rate: GpuHourRate | None
    front: tuple[tuple[float, float], ...] = ()

    def rows(self) -> list[dict[str, object]]:
        """One row per policy: GPU-hours, and capacity and what stood by above demand in money, None without a rate."""
        found = []
        for verdict in self.done.verdicts if self.done else ():
            if verdict.policy in SHOWN:
                one = verdict.outcome
                row = {name: value for name, value in verdict.row().items() if name in COLUMNS}
                money = {"cost": self.money(one.capacity), "over_demand": self.money(one.capacity - one.demand)}
                found.append({**row, **money, "currency": self.rate.currency if self.rate else None})
        return found

    def facts(self) -> dict[str, object]:
        """Everything as JSON."""
        ahead, days = (self.done.predictive_days, self.done.judged_days) if self.done else (0, 0)
        return {
            "pool": self.terms.pool,
            "lead_s": self.terms.lead_ms // 1000,
            "cost_cap": self.terms.limits.cost_cap,
            "predict": self.terms.limits.predict,
            "mode": self.terms.mode,
            "judged_days": days,
            "predictive_days": ahead,
            "note": self.short,
            "policies": self.rows(),
        }

    def money(self, gpu_hours: float) -> float | None:
        """GPU-hours at the pool's rate; None without one. An estimate, never a bill."""
        micro = money_micro(gpu_hours * 3600, self.rate)
        return None if micro is None else round(micro / 1_000_000, 2)


def backtest_pool(
    series: Series, terms: ScalingTerms, rate: GpuHourRate | None, *, with_front: bool = False
) -> PoolBacktest:
    """The back-test of a pool's last 28 days, or of as many as there are after ten days of history."""
    wanted = (JUDGED_DAYS + HISTORY_DAYS) * DAY_MS // series.step_ms
    skipped = max(0, len(series.values) - wanted)
    last = Series(series.name, series.start_ms + skipped * series.step_ms, series.step_ms, series.values[skipped:])
    node = 0.0 if terms.limits.node_gpus == 1 else terms.limits.node_gpus
    try:
        done = backtest_scaling(last, ScalingScenario(terms.lead_ms, terms.limits.cost_cap, node))
    except TooShort as error:
        return PoolBacktest(terms, None, str(error), rate)
    return PoolBacktest(terms, done, "", rate, front_of(done, last, terms.lead_ms, node) if with_front else ())


def front_of(done: Backtest, series: Series, lead_ms: int, node_gpus: float) -> tuple[tuple[float, float], ...]:
    """Capacity and wait (GPU-hours, over the judged part) of the reactive settings that no other one beats in both."""
    demand = filled(series.values, np.isfinite(series.values))
    step, hours = series.step_ms, series.step_ms / 3_600_000
    candidates = reactive(demand, headroom_unit(demand[: HISTORY_DAYS * DAY_MS // step], node_gpus), step)
    delay = max(1, round(lead_ms / step))
    capacity = simulate(demand, candidates.target, candidates.keep, delay, 0, node_gpus).capacity[done.judged]
    spent = capacity.sum(axis=0) * hours
    waited = np.maximum(demand[done.judged][:, None] - capacity, 0.0).sum(axis=0) * hours
    front: list[tuple[float, float]] = []
    for column in np.lexsort((waited, spent)):
        if not front or waited[column] < front[-1][1] - 1e-9:
            front.append((float(spent[column]), float(waited[column])))
    return tuple(front)

"""The backtest of a pool's own last 28 days in money, shown next to the switch that turns
prediction on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.backtest import (
    Backtest,
    ScalingScenario,
    TooShort,
    backtest_scaling,
)
from gpuledger_collector.insight.rates import HOUR_S, GpuHourRate, money_micro
from gpuledger_collector.insight.scaling.choice import HISTORY_DAYS
from gpuledger_collector.insight.scaling.policies import headroom_unit, reactive
from gpuledger_collector.insight.scaling.pools import ScalingTerms
from gpuledger_collector.insight.scaling.simulation import simulate
from gpuledger_collector.insight.series import Series, fill_forward

JUDGED_DAYS = 28
SHOWN = ("static-peak", "hpa-default", "reactive-plain", "reactive-tuned", "gpuledger", "oracle")


@dataclass(frozen=True, slots=True)
class PricedPolicy:
    """What a policy comes to: GPU-hours, and capacity and its excess over demand in money, None
    without a rate.
    """

    policy: str
    capacity: float
    demand: float
    wait: float
    wait_p95_s: float
    actions: int
    cost: float | None
    over_demand: float | None
    currency: str | None


@dataclass(frozen=True)
class PoolBacktest:
    """A backtest of a pool in money.

    `backtest` is None where there is too little to judge, and `note` says so.

    `front` is the Pareto front of the reactive settings by capacity: (capacity, wait) in GPU-hours.
    It is known in hindsight, so no scaler can reach it reliably.
    """

    terms: ScalingTerms
    backtest: Backtest | None
    note: str
    rate: GpuHourRate | None
    front: tuple[tuple[float, float], ...] = ()

    def policies(self) -> list[PricedPolicy]:
        """The policies that are shown."""
        currency = self.rate.currency if self.rate else None
        return [
            PricedPolicy(
                result.policy,
                round(outcome.capacity, 3),
                round(outcome.demand, 3),
                round(outcome.wait, 3),
                round(outcome.wait_p95_s, 3),
                outcome.actions,
                self.money(outcome.capacity),
                self.money(outcome.capacity - outcome.demand),
                currency,
            )
            for result in (self.backtest.results if self.backtest else ())
            for outcome in [result.outcome]
            if result.policy in SHOWN
        ]

    def facts(self) -> dict[str, object]:
        """Everything as JSON."""
        return {
            "pool": self.terms.pool,
            "lead_s": self.terms.lead_ms // 1000,
            "cost_cap": self.terms.limits.cost_cap,
            "predict": self.terms.limits.predict,
            "mode": self.terms.mode,
            "judged_days": self.backtest.judged_days if self.backtest else 0,
            "predictive_days": self.backtest.predictive_days if self.backtest else 0,
            "note": self.note,
            "policies": list(map(asdict, self.policies())),
        }

    def money(self, gpu_hours: float) -> float | None:
        """GPU-hours at the pool's rate; None without one. An estimate, never a bill."""
        micro = money_micro(gpu_hours * HOUR_S, self.rate)
        return None if micro is None else round(micro / MICRO, 2)


def backtest_pool(
    series: Series, terms: ScalingTerms, rate: GpuHourRate | None, *, with_front: bool = False
) -> PoolBacktest:
    """Backtest a pool's last 28 days, or as many as there are after ten days of history."""
    wanted = (JUDGED_DAYS + HISTORY_DAYS) * DAY_MS // series.step_ms
    skipped = max(0, len(series.values) - wanted)
    last = Series(
        series.name,
        series.start_ms + skipped * series.step_ms,
        series.step_ms,
        series.values[skipped:],
    )
    node = 0.0 if terms.limits.node_gpus == 1 else terms.limits.node_gpus
    try:
        backtest = backtest_scaling(
            last, ScalingScenario(terms.lead_ms, terms.limits.cost_cap, node)
        )
    except TooShort as error:
        return PoolBacktest(terms, None, str(error), rate)
    front = reactive_front(backtest, last, terms.lead_ms, node) if with_front else ()
    return PoolBacktest(terms, backtest, "", rate, front)


def reactive_front(
    backtest: Backtest, series: Series, lead_ms: int, node_gpus: float
) -> tuple[tuple[float, float], ...]:
    """Return capacity and wait (GPU-hours, judged part) of the reactive settings that no other one
    beats in both.
    """
    demand = fill_forward(series.values)
    step, hours, judged = series.step_ms, series.step_ms / HOUR_MS, backtest.judged
    candidates = reactive(
        demand, headroom_unit(demand[: HISTORY_DAYS * DAY_MS // step], node_gpus), step
    )
    delay = max(1, round(lead_ms / step))
    capacity = simulate(demand, candidates.target, candidates.keep, delay, 0, node_gpus)[judged]
    spent = capacity.sum(axis=0) * hours
    waited = np.maximum(demand[judged][:, None] - capacity, 0.0).sum(axis=0) * hours
    front: list[tuple[float, float]] = []
    for column in np.lexsort((waited, spent)):
        if not front or waited[column] < front[-1][1] - 1e-9:
            front.append((float(spent[column]), float(waited[column])))
    return tuple(front)

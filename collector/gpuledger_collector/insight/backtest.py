"""Backtests: what a forecast or a capacity policy would have achieved on a pool's own past.

Scaling: the first ten days are history, on which settings are chosen; the rest is judged. Every policy sees the demand
up to a step and nothing after it. The baselines are a static peak, Kubernetes' default autoscaler, a reactive scaler
without headroom, the reactive scaler tuned on the history within the same cost, and perfect knowledge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.forecast import Forecast, quantile_loss
from gpuledger_collector.insight.scaling.advice import steps_per_day
from gpuledger_collector.insight.scaling.choice import (
    SelectionPlan,
    SelectionRules,
    daily_totals,
    schedule,
    tuned_reactive,
    typical_change,
)
from gpuledger_collector.insight.scaling.policies import (
    headroom_unit,
    join_candidates,
    lot_sizes,
    predictive,
    reactive,
)
from gpuledger_collector.insight.scaling.simulation import (
    CapacityBudget,
    CapacityRequest,
    Outcome,
    ReferencePolicy,
    measure_outcome,
    simulate,
    simulate_autoscaler,
    simulate_within,
    whole_nodes,
)
from gpuledger_collector.insight.series import Flags, Floats, Ints, Series, fill_forward

HISTORY_DAYS = 10
SETTLE_DAYS = 3
RESERVE_HOURS, LOAN_HOURS = 2, 72
"""In hours of what may be spent above the demand: the balance at which headroom shrinks, and the initial loan."""
DEFAULT_COST_CAP = 1.25
AUTOSCALER_UTILIZATION, AUTOSCALER_WINDOW_MS = 0.65, 300_000
"""Kubernetes' default stabilization window is 300 s."""


class TooShort(ValueError):
    """The series leaves nothing to judge after its history."""


@dataclass(frozen=True)
class ScalingScenario:
    """What is backtested: delay of an order, most capacity as a multiple of demand, and GPUs of a node."""

    delay_ms: int
    cost_cap: float = DEFAULT_COST_CAP
    node_gpus: float = 0.0


@dataclass(frozen=True)
class PolicyResult:
    """One policy's outcome over the judged part, and the setting that it ran."""

    policy: str
    outcome: Outcome
    setting: str
    capacity: Floats

    def row(self) -> dict[str, object]:
        """The contract's row: GPU-hours rounded to a thousandth."""
        numbers = {
            name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self.outcome).items()
        }
        return {"policy": self.policy, **numbers, "setting": self.setting}


@dataclass(frozen=True)
class Backtest:
    """Every policy's result, and the number of judged days on which ours used a forecast."""

    results: tuple[PolicyResult, ...]
    judged: Flags
    predictive_days: int
    judged_days: int


def backtest_scaling(series: Series, scenario: ScalingScenario, rules: SelectionRules | None = None) -> Backtest:
    """Judge all policies on one demand series.

    In gaps the policies see the last known demand, and nothing is judged. Raises TooShort when fewer than eleven days
    are given, ValueError for a step that is longer than an hour or does not divide the day.
    """
    per_day = steps_per_day(series.step_ms)
    start = HISTORY_DAYS * per_day
    if len(series.values) <= start + per_day // 24:
        days = len(series.values) * series.step_ms / DAY_MS
        raise TooShort(f"{days:.1f} days are given; the first 10 are history, and nothing is left to judge")
    replay = _Replay(series, scenario)
    rules = rules or SelectionRules()
    ours, days_ahead, days = replay.daily("gpuledger", np.arange(len(replay.candidates.settings)), rules)
    retuned, _, _ = replay.daily("reactive-daily", replay.reactive_columns, rules)
    results = (*replay.baselines(), replay.tuned(), retuned, replay.hindsight(), ours, replay.oracle())
    return Backtest(results, replay.judged, days_ahead, days)


class _Replay:
    """The shared parts of one backtest: the demand, and every candidate replayed once."""

    def __init__(self, series: Series, scenario: ScalingScenario) -> None:
        self.step_ms, self.per_day = series.step_ms, steps_per_day(series.step_ms)
        self.first, self.warm = HISTORY_DAYS * self.per_day, SETTLE_DAYS * self.per_day
        self.cap, self.node = scenario.cost_cap, scenario.node_gpus
        self.delay = max(1, round(scenario.delay_ms / series.step_ms))
        self.known = np.isfinite(series.values)
        self.demand = demand = fill_forward(series.values)
        self.judged = self.known & (np.arange(len(demand)) >= self.first)
        history = demand[: self.first]
        unit = headroom_unit(history, self.node)
        self.candidates = join_candidates(
            reactive(demand, unit, self.step_ms), *predictive(demand, unit, self.delay, self.step_ms, self.warm)
        )
        self.reactive_columns = np.flatnonzero([not setting.predictive for setting in self.candidates.settings])
        self.capacity = self._simulate(self.candidates.target, self.candidates.keep)
        # The last day may be incomplete: it is padded with steps that count for no policy.
        pad = (0, -len(demand) % self.per_day)
        self.totals = daily_totals(
            np.pad(demand, pad),
            np.pad(self.capacity, (pad, (0, 0)), mode="edge"),
            np.pad(self.known, pad),
            self.per_day,
            typical_change(history, self.delay),
        )
        self.lot = max(lot_sizes(unit))
        self.anchor = tuned_reactive(self.totals.between(SETTLE_DAYS, HISTORY_DAYS), self.candidates.settings, self.cap)

    def _simulate(self, target: Floats, keep: Floats) -> Floats:
        return simulate(self.demand, target, keep, self.delay, self.warm, self.node)

    def result(self, policy: str, capacity: Floats, setting: str) -> PolicyResult:
        """Measure a policy over the judged part."""
        return PolicyResult(
            policy, measure_outcome(self.demand, capacity, self.judged, self.step_ms), setting, capacity
        )

    def candidate(self, policy: str, column: int) -> PolicyResult:
        """Measure one of the candidates."""
        return self.result(policy, self.capacity[:, column], self.candidates.settings[column].sentence())

    def baselines(self) -> tuple[PolicyResult, ...]:
        """Common practice: a static peak, Kubernetes' defaults, plain reactive."""
        demand = self.demand
        peak = whole_nodes(np.full(len(demand), demand[: self.first].max()), self.node)
        window = max(1, round(AUTOSCALER_WINDOW_MS / self.step_ms))
        hpa = simulate_autoscaler(demand, AUTOSCALER_UTILIZATION, window, self.delay, self.warm, self.node)
        plain = self._simulate(demand[:, None], demand[:, None])[:, 0]
        return (
            self.result("static-peak", peak, "the peak of the history, always"),
            self.result("hpa-default", hpa, "utilization 65 %, tolerance 10 %, window 300 s"),
            self.result("reactive-plain", plain, "demand now"),
        )

    def tuned(self) -> PolicyResult:
        """The reactive setting that waited least on the history within the cost cap."""
        return self.candidate("reactive-tuned", self.anchor)

    def hindsight(self) -> PolicyResult:
        """The reactive setting that would have been best on the judged part itself: a bound, not a policy."""
        capacity, demand = self.capacity[:, self.reactive_columns][self.judged], self.demand[self.judged]
        spent = capacity.sum(axis=0)
        waited = np.maximum(demand[:, None] - capacity, 0).sum(axis=0)
        allowed = spent <= self.cap * demand.sum() + 1e-9
        best = np.argmin(np.where(allowed, waited, np.inf)) if allowed.any() else np.argmin(spent)
        return self.candidate("reactive-hindsight", int(self.reactive_columns[best]))

    def daily(self, policy: str, columns: Ints, rules: SelectionRules) -> tuple[PolicyResult, int, int]:
        """Run each day the candidate of these that its own past recommends; also days with a forecast, and all days."""
        target, keep = self.candidates.target, self.candidates.keep
        settings = [self.candidates.settings[column] for column in columns]
        anchor = int(np.flatnonzero(columns == self.anchor)[0])
        plan = SelectionPlan(HISTORY_DAYS, self.cap, anchor, rules, SETTLE_DAYS)
        chosen = schedule(self.totals.of(columns), settings, plan)
        steps = np.arange(len(self.demand))
        day = np.minimum(steps // self.per_day, len(chosen) - 1)
        column = columns[chosen[np.maximum(day, HISTORY_DAYS)]]
        # What may be spent above the demand in an hour.
        hourly = (self.cap - 1) * float(self.demand[: self.first].mean()) * self.per_day / 24
        capacity = simulate_within(
            self.demand,
            CapacityRequest(target[steps, column], keep[steps, column]),
            self.delay,
            self.warm,
            self.node,
            self.known,
            CapacityBudget(
                self.first, self.cap, RESERVE_HOURS * hourly, LOAN_HOURS * hourly, len(self.demand), self.lot
            ),
            ReferencePolicy(
                self.capacity[:, self.anchor],
                CapacityRequest(target[:, self.anchor], keep[:, self.anchor]),
                rules.cost_ratio,
            ),
        )
        days = np.unique(day[self.first :])
        days_ahead = sum(settings[chosen[number]].predictive for number in days)
        setting = f"chosen daily; last: {self.candidates.settings[column[-1]].sentence()}"
        return self.result(policy, capacity, setting), days_ahead, len(days)

    def oracle(self) -> PolicyResult:
        """Perfect knowledge: what was wanted, when it was wanted."""
        return self.result("oracle", whole_nodes(self.demand, self.node), "demand, known in advance")


def score(actual: Floats, forecast: Forecast) -> dict[str, float]:
    """Score one forecast against `actual` (H,), NaN where unknown: loss, loss of the naive baseline, coverage.

    `loss` is the mean quantile loss; a weighted quantile loss is 2 x the sum of losses over the sum of |actual|.
    """
    quantiles = np.asarray(forecast.quantiles)
    known = np.isfinite(actual)
    covered = (actual[known, None] <= forecast.values[known] + 1e-9).mean(axis=0) if known.any() else quantiles * np.nan
    return {
        "loss": quantile_loss(actual, forecast.values, quantiles),
        "naive_loss": quantile_loss(actual, forecast.naive, quantiles),
        **{f"covered_{q:g}": float(share) for q, share in zip(quantiles, covered, strict=True)},
    }


def skill(scores: Sequence[dict[str, float]]) -> float | None:
    """Return 1 - loss / loss(naive) over many scored forecasts; None when the naive baseline was never wrong."""
    naive = sum(entry["naive_loss"] for entry in scores)
    return 1 - sum(entry["loss"] for entry in scores) / naive if naive > 0 else None

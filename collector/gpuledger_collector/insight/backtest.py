"""Backtests: what a forecast or a capacity policy would have achieved on a pool's own past.

Scaling: the first ten days are history, on which settings are chosen; the rest is judged. Every
policy sees the demand up to a step and nothing after it. The baselines are a static peak,
Kubernetes' default autoscaler, a reactive scaler without headroom, the reactive scaler tuned on the
history within the same cost, and perfect knowledge. Ours is guarded: it keeps to the cost cap, and
while that binds neither it has at no step waited more than the tuned reactive scaler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.scaling.advice import steps_per_day
from gpuledger_collector.insight.scaling.choice import HISTORY_DAYS, SelectionRules
from gpuledger_collector.insight.scaling.replay import CandidateReplay
from gpuledger_collector.insight.scaling.simulation import (
    Outcome,
    measure_outcome,
    simulate_autoscaler,
    unmet,
    whole_nodes,
)
from gpuledger_collector.insight.series import Flags, Floats, Series, fill_forward

DEFAULT_COST_CAP = 1.25
AUTOSCALER_UTILIZATION, AUTOSCALER_WINDOW_MS = 0.65, 300_000
"""Kubernetes' default stabilization window is 300 s."""


class TooShort(ValueError):
    """The series leaves nothing to judge after its history."""


@dataclass(frozen=True)
class ScalingScenario:
    """What is backtested: delay of an order, most capacity as a multiple of demand, and GPUs of a
    node.
    """

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


@dataclass(frozen=True)
class Backtest:
    """Every policy's result, and the number of judged days on which ours used a forecast."""

    results: tuple[PolicyResult, ...]
    judged: Flags
    predictive_days: int
    judged_days: int


def backtest_scaling(
    series: Series, scenario: ScalingScenario, rules: SelectionRules | None = None
) -> Backtest:
    """Judge all policies on one demand series.

    In gaps the policies see the last known demand, and nothing is judged. Raises TooShort when
    fewer than eleven days are given, ValueError for a step that is longer than an hour or does not
    divide the day.
    """
    per_day = steps_per_day(series.step_ms)
    start = HISTORY_DAYS * per_day
    if len(series.values) <= start + per_day // 24:
        days = len(series.values) * series.step_ms / DAY_MS
        raise TooShort(
            f"{days:.1f} days are given; the first 10 are history, and nothing is left to judge"
        )
    backtest = _Backtest(series, scenario)
    rules = rules or SelectionRules()
    ahead = backtest.replay.predictive
    ours, days_ahead, days = backtest.daily("gpuledger", ahead, rules)
    retuned, _, _ = backtest.daily("reactive-daily", ~ahead, rules)
    results = (
        *backtest.baselines(),
        backtest.tune_reactive(),
        retuned,
        backtest.hindsight(),
        ours,
        backtest.oracle(),
    )
    return Backtest(results, backtest.judged, days_ahead, days)


class _Backtest:
    """One backtest: every candidate replayed once, and the policies measured on what comes after
    the history.
    """

    def __init__(self, series: Series, scenario: ScalingScenario) -> None:
        self.demand, known = fill_forward(series.values), np.isfinite(series.values)
        delay = max(1, round(scenario.delay_ms / series.step_ms))
        self.step_ms, self.node = series.step_ms, scenario.node_gpus
        self.replay = CandidateReplay(
            self.demand, known, self.step_ms, delay, self.node, scenario.cost_cap
        )
        self.first = self.replay.first
        self.judged = known & (np.arange(len(self.demand)) >= self.first)

    def result(self, policy: str, capacity: Floats, setting: str) -> PolicyResult:
        """Measure a policy over the judged part."""
        return PolicyResult(
            policy,
            measure_outcome(self.demand, capacity, self.judged, self.step_ms),
            setting,
            capacity,
        )

    def candidate(self, policy: str, column: int) -> PolicyResult:
        """Measure one of the candidates."""
        return self.result(policy, self.replay.capacity[:, column], self._sentence(column))

    def _sentence(self, column: int) -> str:
        return self.replay.candidates.settings[column].sentence()

    def baselines(self) -> tuple[PolicyResult, ...]:
        """Common practice: a static peak, Kubernetes' defaults, plain reactive."""
        demand, replay = self.demand, self.replay
        peak = whole_nodes(np.full(len(demand), demand[: self.first].max()), self.node)
        window = max(1, round(AUTOSCALER_WINDOW_MS / self.step_ms))
        hpa = simulate_autoscaler(
            demand, AUTOSCALER_UTILIZATION, window, replay.delay, replay.warm, self.node
        )
        plain = replay.simulate(demand[:, None], demand[:, None])[:, 0]
        return (
            self.result("static-peak", peak, "the peak of the history, always"),
            self.result("hpa-default", hpa, "utilization 65 %, tolerance 10 %, window 300 s"),
            self.result("reactive-plain", plain, "demand now"),
        )

    def tune_reactive(self) -> PolicyResult:
        """The reactive setting that waited least on the history within the cost cap."""
        return self.candidate("reactive-tuned", self.replay.anchor)

    def hindsight(self) -> PolicyResult:
        """The reactive setting that would have been best on the judged part itself: a bound, not a
        policy.
        """
        columns = np.flatnonzero(~self.replay.predictive)
        capacity, demand = self.replay.capacity[:, columns][self.judged], self.demand[self.judged]
        spent = capacity.sum(axis=0)
        waited = unmet(demand[:, None], capacity).sum(axis=0)
        allowed = spent <= self.replay.cap * demand.sum() + 1e-9
        best = np.argmin(np.where(allowed, waited, np.inf)) if allowed.any() else np.argmin(spent)
        return self.candidate("reactive-hindsight", int(columns[best]))

    def daily(
        self, policy: str, challengers: Flags, rules: SelectionRules
    ) -> tuple[PolicyResult, int, int]:
        """Run each day what its own past recommends; also the days with a challenger, and all days."""
        anchor = self.replay.anchor
        chosen = self.replay.schedule(challengers, rules)
        capacity, _ = self.replay.run([chosen], rules)
        days = chosen[HISTORY_DAYS:]
        last = self._sentence(days[-1])
        tuned = "the tuned reactive setting, " if days[-1] == anchor else ""
        won = int((days != anchor).sum())
        return (
            self.result(policy, capacity[:, 0], f"chosen daily; last: {tuned}{last}"),
            won,
            len(days),
        )

    def oracle(self) -> PolicyResult:
        """Perfect knowledge: what was wanted, when it was wanted."""
        return self.result(
            "oracle", whole_nodes(self.demand, self.node), "demand, known in advance"
        )

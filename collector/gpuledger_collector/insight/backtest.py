"""Back-tests: what a forecast or a capacity policy would have brought on a pool's own past.

Scaling: the first ten days are history, on which settings are chosen; the rest is judged. Every policy sees the
demand up to a step and nothing after it. The anchors are named plainly: a static peak, Kubernetes' default
autoscaler, a reactive scaler without headroom, the reactive scaler tuned on the history within the same cost, ours,
and perfect knowledge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from gpuledger_collector.insight.forecast import Forecast
from gpuledger_collector.insight.forecast.ensemble import quantile_loss
from gpuledger_collector.insight.scaling.choice import (
    SelectionPlan,
    SelectionRules,
    daily_totals,
    schedule,
    tuned_reactive,
    typical_change,
)
from gpuledger_collector.insight.scaling.policies import (
    PolicySetting,
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
    simulate_utilisation,
    simulate_within,
    whole_nodes,
)
from gpuledger_collector.insight.series import Floats, Ints, Series

DAY_MS = 86_400_000
HISTORY_DAYS = 10
SETTLE_DAYS = 3
LENT_HOURS = 72
DEFAULT_COST_CAP = 1.25


class TooShort(ValueError):
    """The series leaves nothing to judge after its history."""


@dataclass(frozen=True)
class ScalingScenario:
    """What is back-tested: delay of an order, the most that capacity may be as a multiple of demand, node size."""

    delay_ms: int
    cost_cap: float = DEFAULT_COST_CAP
    node_gpus: float = 0.0


@dataclass(frozen=True)
class PolicyResult:
    """One policy's outcome over the judged part, and what it ran."""

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
    """Every policy's verdict, and the share of judged days on which ours looked ahead."""

    verdicts: tuple[PolicyResult, ...]
    judged: npt.NDArray[np.bool_]
    predictive_days: int
    judged_days: int


def backtest_scaling(series: Series, question: ScalingScenario, rules: SelectionRules | None = None) -> Backtest:
    """Judge all policies on one demand series.

    Gaps hold the last known demand for the policies and are not judged. Raises TooShort when fewer than eleven days are
    given, ValueError for a step that is longer than a day's twenty-fourth part.
    """
    step = series.step_ms
    per_day = DAY_MS // step
    if DAY_MS % step or per_day < 24:
        raise ValueError(f"a step of {step / 1000:g} s does not divide the day into 24 or more steps")
    start = HISTORY_DAYS * per_day
    if len(series.values) <= start + per_day // 24:
        given = len(series.values) * step / DAY_MS
        raise TooShort(f"{given:.1f} days are given; the first 10 are history, and nothing is left to judge")
    known = np.isfinite(series.values)
    demand = filled(series.values, known)
    judged = known & (np.arange(len(demand)) >= start)
    bench = _Bench(demand, known, judged, step, per_day, max(1, round(question.delay_ms / step)), question)
    rules = rules or SelectionRules()
    everything = np.arange(len(bench.candidates.settings))
    ours, days_ahead, days = bench.daily("gpuledger", everything, rules)
    retuned, _, _ = bench.daily("reactive-daily", bench.reacting(), rules)
    verdicts = (*bench.anchors(), bench.tuned(), retuned, bench.hindsight(), ours, bench.oracle())
    return Backtest(verdicts, judged, days_ahead, days)


def filled(values: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    """Demand with each gap as it was last known, zero before it ever was."""
    seen = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.asarray(np.where(seen >= 0, values[np.maximum(seen, 0)], 0.0))


class _Bench:
    """The shared parts of one back-test: the demand, and every candidate replayed once."""

    def __init__(
        self,
        demand: Floats,
        known: npt.NDArray[np.bool_],
        judged: npt.NDArray[np.bool_],
        step_ms: int,
        per_day: int,
        delay: int,
        question: ScalingScenario,
    ) -> None:
        self.demand, self.judged, self.step_ms, self.per_day, self.delay = demand, judged, step_ms, per_day, delay
        self.known = known
        self.cap, self.node = question.cost_cap, question.node_gpus
        self.first = HISTORY_DAYS * per_day
        self.warm = SETTLE_DAYS * per_day
        unit = headroom_unit(demand[: self.first], self.node)
        self.candidates = join_candidates(
            reactive(demand, unit, step_ms), predictive(demand, unit, delay, step_ms, self.warm)
        )
        self.replayed = simulate(
            demand, self.candidates.target, self.candidates.keep, delay, self.warm, self.node
        ).capacity
        # The last day may be a part of one: it is padded with steps that count for nobody.
        pad = -len(demand) % per_day
        self.table = daily_totals(
            np.pad(demand, (0, pad)),
            np.pad(self.replayed, ((0, pad), (0, 0)), mode="edge"),
            np.pad(known, (0, pad)),
            per_day,
            typical_change(demand[: self.first], delay),
        )
        self.lot = max(lot_sizes(unit))
        history = self.table.between(SETTLE_DAYS, HISTORY_DAYS)
        self.anchor = tuned_reactive(history, self.candidates.settings, self.cap)
        self.anchored = self.run(self.candidates.target[:, self.anchor], self.candidates.keep[:, self.anchor])

    def verdict(self, policy: str, capacity: Floats, setting: str) -> PolicyResult:
        """Measured over the judged part."""
        return PolicyResult(
            policy, measure_outcome(self.demand, capacity, self.judged, self.step_ms), setting, capacity
        )

    def run(self, target: Floats, keep: Floats) -> Floats:
        """One policy's capacity."""
        return simulate(self.demand, target[:, None], keep[:, None], self.delay, self.warm, self.node).capacity[:, 0]

    def anchors(self) -> tuple[PolicyResult, ...]:
        """What people have: a static peak, Kubernetes' defaults, plain reactive."""
        peak = whole_nodes(np.full(len(self.demand), self.demand[: self.first].max()), self.node)
        windows = np.array([max(1, round(300_000 / self.step_ms))])
        hpa = simulate_utilisation(self.demand, np.array([0.65]), windows, self.delay, self.warm, self.node)
        plain = self.run(self.demand, self.demand)
        return (
            self.verdict("static-peak", peak, "the peak of the history, always"),
            self.verdict("hpa-default", hpa.capacity[:, 0], "utilisation 65 %, tolerance 10 %, window 300 s"),
            self.verdict("reactive-plain", plain, "demand now"),
        )

    def tuned(self) -> PolicyResult:
        """The reactive setting that waited least on the history within the cost cap."""
        return self.verdict("reactive-tuned", self.anchored, self.candidates.settings[self.anchor].sentence())

    def reacting(self) -> Ints:
        """The columns of the reactive candidates."""
        return np.flatnonzero([not setting.predictive for setting in self.candidates.settings])

    def hindsight(self) -> PolicyResult:
        """The reactive setting that would have been best on the judged part itself: a bound, no policy."""
        settings = self.candidates.settings
        reacting = self.reacting()
        found = [(column, self.replayed[:, column]) for column in reacting]
        known = self.judged
        spent = np.array([capacity[known].sum() for _, capacity in found])
        waited = np.array([np.maximum(self.demand - capacity, 0)[known].sum() for _, capacity in found])
        allowed = spent <= self.cap * self.demand[known].sum() + 1e-9
        place = int(np.argmin(np.where(allowed, waited, np.inf))) if allowed.any() else int(np.argmin(spent))
        column, capacity = found[place]
        return self.verdict("reactive-hindsight", capacity, settings[column].sentence())

    def daily(self, policy: str, columns: Ints, rules: SelectionRules) -> tuple[PolicyResult, int, int]:
        """Each day the one of these candidates that its own past recommends; also the days with a forecast, and all."""
        settings = [self.candidates.settings[column] for column in columns]
        anchor = int(np.flatnonzero(columns == self.anchor)[0])
        chosen = schedule(
            self.table.of(columns), settings, SelectionPlan(HISTORY_DAYS, self.cap, anchor, rules, SETTLE_DAYS)
        )
        day = np.minimum(np.arange(len(self.demand)) // self.per_day, len(chosen) - 1)
        column = columns[chosen[np.maximum(day, HISTORY_DAYS)]]
        rows = np.arange(len(self.demand))
        wish = CapacityRequest(self.candidates.target[rows, column], self.candidates.keep[rows, column])
        other = CapacityRequest(self.candidates.target[:, self.anchor], self.candidates.keep[:, self.anchor])
        # Two hours' worth of what may be spent above the demand is enough to slow down in; days' worth are lent.
        hourly = (self.cap - 1) * float(self.demand[: self.first].mean()) * self.per_day / 24
        purse = CapacityBudget(self.first, self.cap, 2 * hourly, LENT_HOURS * hourly, len(self.demand), self.lot)
        capacity = simulate_within(
            self.demand,
            wish,
            self.delay,
            self.warm,
            self.node,
            self.known,
            purse,
            ReferencePolicy(self.anchored, other, rules.dearer),
        )
        days = np.unique(day[self.first :])
        ahead = sum(settings[chosen[number]].predictive for number in days)
        last: PolicySetting = self.candidates.settings[column[-1]]
        return self.verdict(policy, capacity, f"chosen daily; last: {last.sentence()}"), ahead, len(days)

    def oracle(self) -> PolicyResult:
        """Perfect knowledge: what was wanted, when it was wanted."""
        return self.verdict("oracle", whole_nodes(self.demand, self.node), "demand, known in advance")


def score(actual: Floats, forecast: Forecast) -> dict[str, float]:
    """One forecast against what came, shape (H,), NaN where unknown: loss, loss of the naive twin, and coverages.

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
    """1 - loss / loss(naive) over many scored forecasts; None when the naive twin was never wrong."""
    naive = sum(entry["naive_loss"] for entry in scores)
    return 1 - sum(entry["loss"] for entry in scores) / naive if naive > 0 else None

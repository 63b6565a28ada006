"""All candidates of a pool replayed on its own past: what backtests judge and what advice runs on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.scaling.choice import (
    HISTORY_DAYS,
    SETTLE_DAYS,
    SelectionRules,
    daily_totals,
    schedule,
    tuned_reactive,
)
from gpuledger_collector.insight.scaling.policies import (
    headroom_unit,
    join_candidates,
    predictive,
    reactive,
)
from gpuledger_collector.insight.scaling.simulation import (
    CapacityRequest,
    GuardedReplay,
    simulate,
    simulate_within,
)
from gpuledger_collector.insight.series import Flags, Floats, Ints


class CandidateReplay:
    """Every candidate on one demand, and the tuned reactive setting of its first `tuned_days`
    (`anchor`).
    """

    def __init__(
        self,
        demand: Floats,
        known: Flags,
        step_ms: int,
        delay: int,
        node_gpus: float,
        cost_cap: float,
        *,
        tuned_days: int = HISTORY_DAYS,
        predict: bool = True,
    ) -> None:
        self.demand, self.known, self.step_ms, self.per_day = (
            demand,
            known,
            step_ms,
            DAY_MS // step_ms,
        )
        self.delay, self.node, self.cap = delay, node_gpus, cost_cap
        self.first, self.warm = HISTORY_DAYS * self.per_day, SETTLE_DAYS * self.per_day
        self.level = float(demand[: tuned_days * self.per_day].mean())
        unit = headroom_unit(demand[: tuned_days * self.per_day], node_gpus)
        ahead = predictive(demand, unit, delay, step_ms, self.warm) if predict else ()
        self.candidates = join_candidates(reactive(demand, unit, step_ms), *ahead)
        self.predictive = np.array([setting.predictive for setting in self.candidates.settings])
        self.capacity = self.simulate(self.candidates.target, self.candidates.keep)
        self.totals = daily_totals(demand, self.capacity, known, self.per_day)
        self.anchor = tuned_reactive(
            self.totals.days_between(SETTLE_DAYS, tuned_days), self.candidates.settings, self.cap
        )

    def simulate(self, target: Floats, keep: Floats) -> Floats:
        """Capacity of policies that nothing guards."""
        return simulate(self.demand, target, keep, self.delay, self.warm, self.node)

    def schedule(self, challengers: Flags, rules: SelectionRules, days: int | None = None) -> Ints:
        """Return the candidate of each day: of the replayed ones, or of the first `days`, which may
        be one more.
        """
        days = len(self.totals.demand) if days is None else days
        return schedule(self.totals, self.anchor, challengers, self.cap, rules, days)

    def run(self, schedules: Sequence[Ints], rules: SelectionRules) -> tuple[Floats, GuardedReplay]:
        """Run schedules under guard: their capacity (n, K), and the state after the last step."""
        steps = np.arange(len(self.demand))
        columns = np.stack([chosen[steps // self.per_day] for chosen in schedules], axis=1)
        target, keep = (
            table[steps[:, None], columns]
            for table in (self.candidates.target, self.candidates.keep)
        )
        anchor = slice(self.anchor, self.anchor + 1)
        budget = rules.budget(self.cap, self.level, self.per_day)
        replay = GuardedReplay(
            float(self.demand[self.warm - 1]), self.delay, self.node, budget, len(schedules)
        )
        capacity = simulate_within(
            self.demand,
            CapacityRequest(target, keep),
            CapacityRequest(self.candidates.target[:, anchor], self.candidates.keep[:, anchor]),
            replay,
            self.known,
            (self.warm, self.first),
        )
        return capacity, replay

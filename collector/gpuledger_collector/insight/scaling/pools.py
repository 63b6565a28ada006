"""What a pool allows, the decision that is made for it, and what came of the decision.

A pool without terms gets advice under the defaults. Acting is for those who asked for it, with a floor, a ceiling and a
money limit: what is decided then is told to the pool's webhook, once per change. A decision is judged when the time
has passed in which it served: from the lead time after it was made until the next one serves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal

import numpy as np

from gpuledger_collector.insight.scaling.advice import PastTarget, ScalingAdvice, ScalingLimits, advise
from gpuledger_collector.insight.series import Series

ADVICE, ACT = MODES = ("advice", "act")
DEFAULT_LEAD_MS = 600_000
HOUR_S = 3600


@dataclass(frozen=True)
class GpuHourRate:
    """Money of one GPU-hour of a pool."""

    per_gpu_hour: Decimal
    currency: str


@dataclass(frozen=True)
class ScalingTerms:
    """What a pool allows. `money_per_hour` bounds capacity by its price; `webhook` is the name of a configured hook."""

    pool: str
    limits: ScalingLimits = field(default_factory=ScalingLimits)
    lead_ms: int = DEFAULT_LEAD_MS
    mode: str = ADVICE
    money_per_hour: Decimal | None = None
    currency: str = ""
    webhook: str = ""

    def facts(self) -> dict[str, object]:
        """Everything but the pool's name, as JSON keeps it."""
        money = None if self.money_per_hour is None else f"{self.money_per_hour.normalize():f}"
        return {
            "limits": {name: value for name, value in asdict(self.limits).items() if name != "money_gpus"},
            "lead_ms": self.lead_ms,
            "mode": self.mode,
            "money_per_hour": money,
            "currency": self.currency,
            "webhook": self.webhook,
        }

    @classmethod
    def of(cls, pool: str, facts: Mapping[str, object]) -> ScalingTerms:
        """What `facts` kept."""
        rest = dict(facts)
        limits, money = rest.pop("limits"), rest.pop("money_per_hour")
        assert isinstance(limits, Mapping)
        return cls(pool, ScalingLimits(**limits), money_per_hour=None if money is None else Decimal(str(money)), **rest)  # type: ignore[arg-type]

    def payable(self, rate: GpuHourRate | None) -> ScalingLimits:
        """The limits with what the money limit pays for. Raises Unpriced where there is a limit and no rate for it."""
        if self.money_per_hour is None:
            return self.limits
        if rate is None or rate.currency != self.currency:
            raise Unpriced(f"the money limit cannot be kept: the price book has no one rate in {self.currency} for it")
        if not rate.per_gpu_hour:
            return self.limits
        return replace(self.limits, money_gpus=float(self.money_per_hour / rate.per_gpu_hour))


@dataclass(frozen=True)
class PoolDemand:
    """A pool's demand as capacity is decided on. `now_gpus` is what is known of since the last step ended.

    `unknown` says in a sentence why there is to be no number, for example a queue that nobody reads any more; "" where
    nothing is in the way.
    """

    series: Series
    now_gpus: float = 0.0
    unknown: str = ""

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self.series.name


STALE = "the demand of this pool is not known of late: no number, react to what you see"


class Unpriced(Exception):
    """A money limit without a rate to keep it by."""


@dataclass(frozen=True)
class ScalingDecision:
    """Advice as it was given for a pool. `told` is the webhook that the change is put out for."""

    pool: str
    made_ms: int
    step_ms: int
    lead_ms: int
    advice: ScalingAdvice
    mode: str
    before_gpus: float | None
    inputs_hash: str
    told: str = ""

    @property
    def serves_ms(self) -> int:
        """When what is ordered by it serves: the lead time after the last known step has ended."""
        return self.advice.as_of_ms + self.step_ms + self.lead_ms

    @property
    def changed(self) -> bool:
        """Whether the target is another than before."""
        return self.before_gpus != self.advice.desired_gpus


def explain_no_decision(demand: PoolDemand) -> str:
    """Why there is no number for a pool, in a sentence."""
    return f"{demand.unknown}: no number, react to what you see" if demand.unknown else STALE


def decide(
    demand: PoolDemand | Series,
    terms: ScalingTerms,
    now_ms: int,
    rate: GpuHourRate | None = None,
    past: Sequence[PastTarget] = (),
) -> ScalingDecision | None:
    """The decision for a pool now; None when its demand is not known of late, or cannot be advised on.

    A money limit that cannot be kept for want of a rate turns acting off, and the sentence says so.
    """
    if isinstance(demand, Series):
        demand = PoolDemand(demand)
    if demand.unknown:
        return None
    series, mode, doubt, limits = demand.series, terms.mode, "", terms.limits
    try:
        limits = terms.payable(rate)
    except Unpriced as error:
        mode, doubt = ADVICE, f"; {error}"
    advice = advise(series, terms.lead_ms, now_ms, limits, past=past, now_gpus=demand.now_gpus)
    if advice is None:
        return None
    if doubt:
        advice = replace(advice, reason=advice.reason + doubt)
    before = past[-1].gpus if past else None
    told = terms.webhook if mode == ACT and before != advice.desired_gpus else ""
    digest = inputs_hash(series, terms, rate, demand.now_gpus)
    return ScalingDecision(terms.pool, now_ms, series.step_ms, terms.lead_ms, advice, mode, before, digest, told)


def inputs_hash(series: Series, terms: ScalingTerms, rate: GpuHourRate | None, now_gpus: float = 0.0) -> str:
    """SHA-256 of the demand and the terms that a decision is made from."""
    said = {
        "now_gpus": now_gpus,
        "start_ms": series.start_ms,
        "step_ms": series.step_ms,
        "terms": terms.facts(),
        "rate": None if rate is None else [str(rate.per_gpu_hour), rate.currency],
    }
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(series.values, dtype="<f8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class PendingOutcome:
    """A decision whose outcome is not known yet: it serves until `until_ms`, when the next one does."""

    decision_id: int
    pool: str
    from_ms: int
    until_ms: int
    desired_gpus: float
    reactive_gpus: float


@dataclass(frozen=True)
class DecisionOutcome:
    """What came while a decision served, had it been followed, over the `known_ms` with known demand.

    Demand, wait (demand above what was desired) and waste (the other way round) in GPU-seconds, and the same of the
    best reactive setting.
    """

    from_ms: int
    until_ms: int
    known_ms: int
    demand_gpu_s: float
    wait_gpu_s: float
    waste_gpu_s: float
    reactive_wait_gpu_s: float
    reactive_waste_gpu_s: float


def judge_decision(series: Series, from_ms: int, until_ms: int, desired: float, reactive: float) -> DecisionOutcome:
    """What came from one instant to another, by the demand that is known by now."""
    at = series.start_ms + np.arange(len(series.values)) * series.step_ms
    seconds = np.clip(np.minimum(at + series.step_ms, until_ms) - np.maximum(at, from_ms), 0, None) / 1000
    known = np.isfinite(series.values) & (seconds > 0)
    demand, seconds = series.values[known], seconds[known]

    def total(gpus: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        return float((np.maximum(gpus, 0.0) * seconds).sum())

    return DecisionOutcome(
        from_ms,
        until_ms,
        round(float(seconds.sum()) * 1000),
        total(demand),
        total(demand - desired),
        total(desired - demand),
        total(demand - reactive),
        total(reactive - demand),
    )


def money_micro(gpu_s: float, rate: GpuHourRate | None) -> int | None:
    """Micro-units of these GPU-seconds at a rate; None where there is none. An estimate, never a bill."""
    return None if rate is None else round(Decimal(gpu_s) / HOUR_S * rate.per_gpu_hour * 1_000_000)

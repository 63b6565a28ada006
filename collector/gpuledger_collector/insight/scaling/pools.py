"""A pool's scaling terms, the decisions made under them, and the outcome of each decision.

A pool without terms gets advice under the defaults. In mode `act`, which needs a floor, a ceiling
and a money limit, each change of the target is sent to the pool's webhook once. A decision is
judged when the time has passed in which it served: from the lead time after it was made until the
next one serves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal

import numpy as np

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.insight.scaling.advice import (
    STALE_STEPS,
    PastTarget,
    ScalingAdvice,
    ScalingLimits,
    advise,
    steps_per_day,
)
from gpuledger_collector.insight.scaling.lookahead import climate
from gpuledger_collector.insight.series import Floats, Series, fill_forward

ADVICE, ACT = MODES = ("advice", "act")
DEFAULT_LEAD_MS = 600_000
NINE_IN_TEN = 0.9
STALE = "the demand of this pool is unknown lately"


class Unpriced(Exception):
    """There is a money limit and no rate to convert it to capacity."""


@dataclass(frozen=True)
class ScalingTerms:
    """What a pool allows.

    `money_per_hour` bounds capacity by its price; `webhook` is the name of a configured hook.
    """

    pool: str
    limits: ScalingLimits = field(default_factory=ScalingLimits)
    lead_ms: int = DEFAULT_LEAD_MS
    mode: str = ADVICE
    money_per_hour: Decimal | None = None
    currency: str = ""
    webhook: str = ""

    def facts(self) -> dict[str, object]:
        """Everything but the pool's name, as JSON stores it."""
        facts = {name: getattr(self, name) for name in ("lead_ms", "mode", "currency", "webhook")}
        limits = {
            name: value for name, value in asdict(self.limits).items() if name != "money_gpus"
        }
        money = None if self.money_per_hour is None else f"{self.money_per_hour.normalize():f}"
        return {**facts, "limits": limits, "money_per_hour": money}

    @classmethod
    def from_facts(cls, pool: str, facts: Mapping[str, object]) -> ScalingTerms:
        """Restore terms from `facts`."""
        rest = dict(facts)
        limits, money = rest.pop("limits"), rest.pop("money_per_hour")
        assert isinstance(limits, Mapping)
        return cls(
            pool,
            ScalingLimits(**limits),
            money_per_hour=None if money is None else Decimal(str(money)),
            **rest,  # type: ignore[arg-type]
        )

    def payable(self, rate: GpuHourRate | None) -> ScalingLimits:
        """Return the limits with the capacity that the money limit pays for.

        Raises Unpriced without a rate for it.
        """
        if self.money_per_hour is None:
            return self.limits
        if rate is None or rate.currency != self.currency:
            raise Unpriced(
                f"the money limit cannot be applied: no single rate in {self.currency} in the price"
                " book"
            )
        # A rate of zero: any capacity is paid for.
        if not rate.per_gpu_hour:
            return self.limits
        return replace(self.limits, money_gpus=float(self.money_per_hour / rate.per_gpu_hour))


@dataclass(frozen=True)
class PoolDemand:
    """A pool's demand. `now_gpus` is the demand known since the last step ended.

    `unknown` says in a sentence why capacity cannot be decided, for example a queue that is not
    read any more.
    """

    series: Series
    now_gpus: float = 0.0
    unknown: str = ""

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self.series.name


@dataclass(frozen=True, slots=True)
class ModelHeadroom:
    """GPUs of one model in a pool of several: those that are there, the demand of its last hour, and
    the demand within the lead time that is not exceeded nine times in ten; None: unknown lately.
    """

    model: str
    gpus: float
    demand_gpus: float | None = None
    ahead_gpus: float | None = None

    @property
    def headroom_gpus(self) -> float | None:
        """What is there beyond that demand, negative where some are missing."""
        return None if self.ahead_gpus is None else self.gpus - self.ahead_gpus

    @property
    def scarcity(self) -> float:
        """Headroom as a share of what is there: the least is scarcest; unknown comes last."""
        return np.inf if self.headroom_gpus is None else self.headroom_gpus / self.gpus


def headroom_of_model(
    model: str, gpus: float, demand: Series | None, lead_ms: int, now_ms: int
) -> ModelHeadroom:
    """Return the headroom of so many GPUs (more than 0) with this demand."""
    until_ms = None if demand is None else demand.known_until_ms
    if demand is None or until_ms is None or now_ms - until_ms > STALE_STEPS * demand.step_ms:
        return ModelHeadroom(model, gpus)
    known = (until_ms - demand.start_ms) // demand.step_ms
    values, per_day = fill_forward(demand.values[:known]), steps_per_day(demand.step_ms)
    delay = max(1, round(lead_ms / demand.step_ms))
    rise = climate(values, delay, per_day, np.array([NINE_IN_TEN]), known - 1)[-1, 0]
    return ModelHeadroom(model, gpus, float(values[-1]), float(values[-1] + rise))


@dataclass(frozen=True)
class ScalingDecision:
    """Advice as it was given to a pool; `webhook` is notified of it, "" for none."""

    pool: str
    made_ms: int
    step_ms: int
    lead_ms: int
    advice: ScalingAdvice
    mode: str
    before_gpus: float | None
    inputs_hash: str
    webhook: str = ""

    @property
    def is_change(self) -> bool:
        """Whether the target differs from the one before."""
        return self.before_gpus != self.advice.desired_gpus


def explain_no_decision(demand: PoolDemand) -> str:
    """Say why there is no target for a pool."""
    return f"{demand.unknown or STALE}: no target, react to current demand"


def decide(
    demand: PoolDemand | Series,
    terms: ScalingTerms,
    now_ms: int,
    rate: GpuHourRate | None = None,
    past: Sequence[PastTarget] = (),
) -> ScalingDecision | None:
    """Decide a pool's capacity now; None when its demand is stale or unknown.

    A money limit that cannot be applied for want of a rate turns acting off, and the reason says
    so.
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
    before = past[-1].gpus if past else None
    return ScalingDecision(
        pool=terms.pool,
        made_ms=now_ms,
        step_ms=series.step_ms,
        lead_ms=terms.lead_ms,
        advice=replace(advice, reason=advice.reason + doubt),
        mode=mode,
        before_gpus=before,
        inputs_hash=inputs_hash(series, terms, rate, demand.now_gpus),
        webhook=terms.webhook if mode == ACT and before != advice.desired_gpus else "",
    )


def inputs_hash(
    series: Series, terms: ScalingTerms, rate: GpuHourRate | None, now_gpus: float = 0.0
) -> str:
    """Return the SHA-256 of the demand and the terms of a decision."""
    inputs = {
        "now_gpus": now_gpus,
        "start_ms": series.start_ms,
        "step_ms": series.step_ms,
        "terms": terms.facts(),
        "rate": None if rate is None else [str(rate.per_gpu_hour), rate.currency],
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode())
    # Little-endian doubles in any case: the hash must be the same on every machine.
    digest.update(np.ascontiguousarray(series.values, dtype="<f8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class PendingOutcome:
    """A decision to be judged: it serves from `from_ms` until `until_ms`, when the next one does."""

    decision_id: int
    pool: str
    from_ms: int
    until_ms: int
    desired_gpus: float
    reactive_gpus: float


@dataclass(frozen=True)
class DecisionOutcome:
    """Result of a decision while it served, had it been followed, over the `known_ms` with known
    demand.

    Demand, wait (demand above the target) and waste (target above demand) in GPU-seconds, and the
    same of the best reactive setting.
    """

    from_ms: int
    until_ms: int
    known_ms: int
    demand_gpu_s: float
    wait_gpu_s: float
    waste_gpu_s: float
    reactive_wait_gpu_s: float
    reactive_waste_gpu_s: float


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision as it was recorded, with its outcome as far as it is known; None: not known yet.

    `notified_state` is that of the message to the hook that `notified` names, "" for none.
    """

    decision_id: int
    pool: str
    made_ms: int
    as_of_ms: int
    policy: str
    mode: str
    demand_gpus: float
    reactive_gpus: float
    wanted_gpus: float
    desired_gpus: float
    before_gpus: float | None
    quantile: float | None
    notified: str
    notified_state: str | None
    from_ms: int | None
    until_ms: int | None
    known_ms: int | None
    came_gpu_s: float | None
    wait_gpu_s: float | None
    waste_gpu_s: float | None
    reactive_wait_gpu_s: float | None
    reactive_waste_gpu_s: float | None
    currency: str | None
    waste_micro: int | None
    reason: str
    inputs_hash: str

    @property
    def waste(self) -> Money | None:
        """What its waste cost; None without a price."""
        if self.waste_micro is None or self.currency is None:
            return None
        return Money(self.waste_micro, self.currency)


def judge_decision(
    series: Series, from_ms: int, until_ms: int, desired: float, reactive: float
) -> DecisionOutcome:
    """Judge a target against the demand between two instants, as far as it is known."""
    at = series.start_ms + np.arange(len(series.values)) * series.step_ms
    seconds = (
        np.clip(np.minimum(at + series.step_ms, until_ms) - np.maximum(at, from_ms), 0, None) / 1000
    )
    known = np.isfinite(series.values) & (seconds > 0)
    demand, seconds = series.values[known], seconds[known]

    def total(gpus: Floats) -> float:
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

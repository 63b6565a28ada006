"""What pools allow their capacity to be: [[pool]] tables.

[[pool]]
name = "train"
min_gpus = 16
max_gpus = 96
node_gpus = 8
lead_time_s = 600              # from an order to the GPU that serves
step_up_gpus = 32
step_down_gpus = 8
cooldown_s = 900               # no decrease for so long after a change
stabilization_s = 1800         # not below the highest of so long
warm_gpus = 8                  # kept free above the demand
headroom = 0.1                 # or utilization = 0.8: kept above the demand at least
cost_cap = 1.25                # capacity at most, as a multiple of demand, in the back-test
money_per_hour = 240           # capacity at most, by its price
currency = "USD"
predict = true                 # false: react only
mode = "advice"                # or "act": call the webhook on each change
webhook = "capacity"
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.config.fields import Currency, Flag, Name, decimal, matching, one_of, refusal, whole
from gpuledger_collector.config.model import Declaration
from gpuledger_collector.insight.scaling.advice import ScalingLimits
from gpuledger_collector.insight.scaling.pools import ACT, ADVICE, DEFAULT_LEAD_MS, MODES, ScalingTerms

MAX_GPUS = 1_000_000
PLACES = 6
_DAY_S = 86_400
_Gpus = Annotated[Decimal, decimal(PLACES, MAX_GPUS)]
_SomeGpus = Annotated[Decimal, decimal(PLACES, MAX_GPUS, "0.01")]
_HOOK = matching("[A-Za-z0-9_-]{1,60}", "no name of a hook of the hooks_file")


class DeclaredPool(Declaration):
    """Limits of a pool's capacity, and how they are decided on."""

    pool: Name = Field(alias="name")
    mode: Annotated[str, one_of(MODES)] = ADVICE
    floor_gpus: _Gpus | None = Field(None, alias="min_gpus", validate_default=True)
    ceiling_gpus: _Gpus | None = Field(None, alias="max_gpus", validate_default=True)
    node_gpus: _SomeGpus = Decimal(1)
    lead_s: Annotated[int, whole(1, _DAY_S, "seconds")] = Field(DEFAULT_LEAD_MS // 1000, alias="lead_time_s")
    step_up_gpus: _SomeGpus | None = None
    step_down_gpus: _SomeGpus | None = None
    cooldown_s: Annotated[int, whole(0, _DAY_S, "seconds")] = 0
    stabilization_s: Annotated[int, whole(0, _DAY_S, "seconds")] = 0
    warm_gpus: _Gpus = Decimal(0)
    headroom: Annotated[Decimal, decimal(PLACES, 10)] | None = None
    utilization: Annotated[Decimal, decimal(PLACES, 1, "0.05")] | None = None
    cost_cap: Annotated[Decimal, decimal(PLACES, 10, "1")] = Decimal("1.25")
    money_per_hour: Annotated[Decimal, decimal(PLACES, 10**9, "0.000001")] | None = Field(None, validate_default=True)
    currency: Currency = Field("", validate_default=True)
    predict: Flag = True
    webhook: Annotated[str, _HOOK] = ""

    identity = ("pool",)

    @field_validator("floor_gpus", "ceiling_gpus", "money_per_hour")
    @classmethod
    def _limit_acting(cls, limit: Decimal | None, info: ValidationInfo) -> Decimal | None:
        if limit is None and info.data.get("mode") == ACT:
            raise refusal("empty", 'is required where mode = "act": a floor, a ceiling and a money limit')
        return limit

    @field_validator("ceiling_gpus")
    @classmethod
    def _reach_the_floor(cls, ceiling: Decimal | None, info: ValidationInfo) -> Decimal | None:
        if ceiling is not None and ceiling < (info.data.get("floor_gpus") or 0):
            raise refusal("order", "is less than min_gpus")
        return ceiling

    @field_validator("utilization")
    @classmethod
    def _say_it_once(cls, utilization: Decimal | None, info: ValidationInfo) -> Decimal | None:
        if utilization is not None and info.data.get("headroom") is not None:
            raise refusal("twice", "and headroom say the same thing: give one of them")
        return utilization

    @field_validator("currency")
    @classmethod
    def _belong_to_money(cls, currency: str, info: ValidationInfo) -> str:
        if "money_per_hour" in info.data and (info.data["money_per_hour"] is None) == bool(currency):
            raise refusal("bad_currency", "belongs to money_per_hour, and is an ISO 4217 code such as USD")
        return currency

    def to_value(self, source: str, position: int) -> ScalingTerms:  # noqa: ARG002
        """The terms; a target utilization u says the same as a headroom of 1/u - 1."""
        headroom = self.headroom or 0 if self.utilization is None else 1 / self.utilization - 1
        limits = ScalingLimits(
            floor_gpus=float(self.floor_gpus or 0),
            ceiling_gpus=_float(self.ceiling_gpus),
            node_gpus=float(self.node_gpus),
            cost_cap=float(self.cost_cap),
            step_up_gpus=_float(self.step_up_gpus),
            step_down_gpus=_float(self.step_down_gpus),
            cooldown_ms=1000 * self.cooldown_s,
            stabilise_ms=1000 * self.stabilization_s,
            warm_gpus=float(self.warm_gpus),
            headroom=float(headroom),
            predict=self.predict,
        )
        rest = {name: getattr(self, name) for name in ("mode", "money_per_hour", "currency", "webhook")}
        return ScalingTerms(self.pool, limits, 1000 * self.lead_s, **rest)

    @classmethod
    def from_value(cls, value: ScalingTerms) -> Self:
        """The declaration of terms in force."""
        limits = value.limits
        numbers = ("floor_gpus", "ceiling_gpus", "node_gpus", "step_up_gpus", "step_down_gpus", "warm_gpus", "cost_cap")
        fields = {name: getattr(value, name) for name in ("pool", "mode", "money_per_hour", "currency", "webhook")}
        fields |= {name: _rounded(getattr(limits, name)) for name in numbers} | _headroom(limits.headroom)
        return cls.model_construct(
            **fields,
            lead_s=value.lead_ms // 1000,
            cooldown_s=limits.cooldown_ms // 1000,
            stabilization_s=limits.stabilise_ms // 1000,
            predict=limits.predict,
        )


def _float(number: Decimal | None) -> float | None:
    return None if number is None else float(number)


def _rounded(number: float | None) -> Decimal | None:
    return None if number is None else round(Decimal(number), PLACES)


def _headroom(part: float) -> dict[str, Any]:
    """As it was declared: a headroom of six places, or the utilization that it was derived from."""
    if float(round(Decimal(part), PLACES)) == part:
        return {"headroom": _rounded(part)}
    return {"utilization": round(1 / (1 + Decimal(part)), PLACES)}

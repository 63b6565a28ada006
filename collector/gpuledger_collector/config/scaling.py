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

from dataclasses import fields
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from gpuledger_collector.config.fields import (
    Currency,
    Flag,
    Name,
    decimal,
    matching,
    one_of,
    read_bounded,
    refusal,
    whole,
)
from gpuledger_collector.config.model import Declaration
from gpuledger_collector.insight.scaling.advice import ScalingLimits
from gpuledger_collector.insight.scaling.pools import (
    ACT,
    ADVICE,
    DEFAULT_LEAD_MS,
    MODES,
    ScalingTerms,
)

MAX_GPUS = 1_000_000
PLACES = 6
_DAY_S = 86_400
_LIMITS = [
    field.name for field in fields(ScalingLimits) if field.name not in {"headroom", "money_gpus"}
]
_TERMS = ("pool", "lead_ms", "mode", "money_per_hour", "currency", "webhook")
_HOOK = matching("[A-Za-z0-9_-]{1,60}", "no name of a hook of the hooks_file")
_WRITE_NUMBER = PlainSerializer(lambda number: round(Decimal(number), PLACES))
_TO_MS, _WRITE_SECONDS = (
    AfterValidator(lambda seconds: 1000 * seconds),
    PlainSerializer(lambda ms: ms // 1000),
)


def _number(most: int, least: str = "0") -> PlainValidator:
    """Numbers that capacity is computed with: read as decimals, kept as floats."""
    return PlainValidator(lambda value: float(read_bounded(value, PLACES, most, least)))


_Gpus = Annotated[float, _number(MAX_GPUS), _WRITE_NUMBER]
_SomeGpus = Annotated[float, _number(MAX_GPUS, "0.01"), _WRITE_NUMBER]
_Seconds = Annotated[int, whole(0, _DAY_S, "seconds"), _TO_MS, _WRITE_SECONDS]


class DeclaredPool(Declaration):
    """Limits of a pool's capacity, and how they are decided on."""

    # `mode` decides which limits must be there
    pool: Name = Field(alias="name")
    mode: Annotated[str, one_of(MODES)] = ADVICE
    floor_gpus: _Gpus | None = Field(None, alias="min_gpus", validate_default=True)
    ceiling_gpus: _Gpus | None = Field(None, alias="max_gpus", validate_default=True)
    node_gpus: _SomeGpus = 1.0
    lead_ms: Annotated[int, whole(1, _DAY_S, "seconds"), _TO_MS, _WRITE_SECONDS] = Field(
        DEFAULT_LEAD_MS, alias="lead_time_s"
    )
    step_up_gpus: _SomeGpus | None = None
    step_down_gpus: _SomeGpus | None = None
    cooldown_ms: _Seconds = Field(0, alias="cooldown_s")
    stabilization_ms: _Seconds = Field(0, alias="stabilization_s")
    warm_gpus: _Gpus = 0.0
    headroom: Annotated[float, _number(10), _WRITE_NUMBER] | None = None
    utilization: Annotated[Decimal, decimal(PLACES, 1, "0.05")] | None = None
    cost_cap: Annotated[float, _number(10, "1"), _WRITE_NUMBER] = 1.25
    money_per_hour: Annotated[Decimal, decimal(PLACES, 10**9, "0.000001")] | None = Field(
        None, validate_default=True
    )
    currency: Currency = Field("", validate_default=True)
    predict: Flag = True
    webhook: Annotated[str, _HOOK] = ""

    identity = ("pool",)

    @field_validator("floor_gpus", "ceiling_gpus", "money_per_hour")
    @classmethod
    def _limit_acting(cls, limit: Any, info: ValidationInfo) -> Any:
        if limit is None and info.data.get("mode") == ACT:
            raise refusal(
                "empty", 'is required where mode = "act": a floor, a ceiling and a money limit'
            )
        return limit

    @field_validator("ceiling_gpus")
    @classmethod
    def _reach_the_floor(cls, ceiling: float | None, info: ValidationInfo) -> float | None:
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
        if "money_per_hour" in info.data and (info.data["money_per_hour"] is None) == bool(
            currency
        ):
            raise refusal(
                "bad_currency", "belongs to money_per_hour, and is an ISO 4217 code such as USD"
            )
        return currency

    def to_value(self, source: str, position: int) -> ScalingTerms:  # noqa: ARG002
        """The terms; a target utilization u says the same as a headroom of 1/u - 1."""
        headroom = (
            self.headroom or 0.0 if self.utilization is None else float(1 / self.utilization - 1)
        )
        limits = {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}
        return ScalingTerms(
            limits=ScalingLimits(headroom=headroom, **limits),
            **{name: getattr(self, name) for name in _TERMS},
        )

    @classmethod
    def from_value(cls, value: ScalingTerms) -> Self:
        """The declaration of terms in force, with the utilization of which a headroom was derived."""
        values = {name: getattr(value.limits, name) for name in _LIMITS}
        values |= {name: getattr(value, name) for name in _TERMS}
        headroom = value.limits.headroom
        # a headroom of more than six places can only have come from a utilization
        if float(round(Decimal(headroom), PLACES)) == headroom:
            return cls.model_construct(headroom=headroom, **values)
        return cls.model_construct(utilization=round(1 / (1 + Decimal(headroom)), PLACES), **values)

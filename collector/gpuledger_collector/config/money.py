"""Commitments, owned hardware, ways of buying and exchange rates.

[[commitment]]
name = "three years of H100"
pool = "train"
gpu_model = "H100"
gpus = 64
upfront = 1200000
rate_per_gpu_hour = 0.85          # recurring, paid for every committed GPU-hour
currency = "USD"
starts = 2026-01-01
ends = 2029-01-01

[[owned]]
name = "DGX of 2025"
node = "dgx1"
per = "node"                      # what the amounts are for: gpu or node
gpus = 8
capex = 280000
salvage = 28000
months = 48
watts = 10200
pue = 1.3
price_per_kwh = 0.19
opex_per_month = 900
currency = "EUR"
starts = 2025-07-01
count = 1                         # bought on that day: units of `per`, for the cash view

[[purchase]]
pool = "preemptible"
purchase = "spot"

[[exchange]]
from = "USD"
to = "EUR"
rate = 0.92
effective_from = 2026-10-01
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.exchange import ExchangeRate
from gpuledger_collector.accounting.owned_hardware import ENERGY, PER, Owned
from gpuledger_collector.accounting.pricing import PURCHASES, Price, PurchaseChoice
from gpuledger_collector.config.fields import (
    MAX_AMOUNT,
    Amount,
    Currency,
    DatedInstant,
    DayInstant,
    HourInstant,
    MicroAmount,
    Name,
    Rate,
    Text,
    decimal,
    end_after,
    one_of,
    refusal,
    whole,
)
from gpuledger_collector.config.model import Declaration

MAX_MONTHS = 600
ZERO = Decimal(0)


class _Place(Declaration):
    """Where something applies; an empty field matches any."""

    pool: Name = ""
    gpu_model: Name = ""
    node: Name = ""


class DeclaredCommitment(_Place):
    """A commitment from one whole hour (UTC) to a later one."""

    name: Text
    gpus: Annotated[int, whole(1, MAX_AMOUNT)]
    # the rate comes first: a missing upfront amount is a mistake only without it
    rate: Rate = Field(ZERO, alias="rate_per_gpu_hour")
    upfront_micro: MicroAmount = Field(0, alias="upfront", validate_default=True)
    currency: Currency
    starts_ms: HourInstant = Field(alias="starts")
    ends_ms: Annotated[HourInstant, end_after("starts_ms", "starts")] = Field(alias="ends")
    region: Text = ""

    value_type = Commitment
    identity = ("name",)

    @field_validator("upfront_micro")
    @classmethod
    def _cost_something(cls, upfront: int, info: ValidationInfo) -> int:
        if not upfront and info.data.get("rate") == ZERO:
            raise refusal(
                "free", "is missing, and so is rate_per_gpu_hour: a commitment costs something"
            )
        return upfront


class DeclaredHardware(_Place):
    """Owned hardware; amounts are per GPU or per node."""

    name: Text
    # `per` decides whether `gpus` is needed, and `salvage` is a part of `capex`
    per: Annotated[str, one_of(PER)] = PER[0]
    gpus: Annotated[int, whole(1, MAX_AMOUNT)] | None = Field(None, validate_default=True)
    capex: Amount
    salvage: Amount = ZERO
    months: Annotated[int, whole(1, MAX_MONTHS)]
    watts: Amount = ZERO
    pue: Annotated[Decimal, decimal(6, 10, "1")] = Decimal(1)
    price_per_kwh: Amount = ZERO
    opex_per_month: Amount = ZERO
    energy: Annotated[str, one_of(ENERGY)] = ENERGY[0]
    currency: Currency
    starts_ms: DatedInstant = Field(alias="starts")
    list_rate: Rate | None = None
    count: Annotated[int, whole(1, MAX_AMOUNT)] | None = None
    region: Text = ""

    identity = ("name",)

    @field_validator("gpus")
    @classmethod
    def _count_gpus_of_nodes(cls, gpus: int | None, info: ValidationInfo) -> int | None:
        per = info.data.get("per")
        if per == "node" and gpus is None:
            raise refusal("empty", 'is empty: per = "node" needs the GPUs of a node')
        if per == "gpu" and gpus not in {None, 1}:
            raise refusal("not_asked", 'is only for per = "node"')
        return gpus

    @field_validator("salvage")
    @classmethod
    def _lose_value(cls, salvage: Decimal, info: ValidationInfo) -> Decimal:
        if salvage > info.data.get("capex", salvage):
            raise refusal("out_of_range", "is more than capex")
        return salvage

    def to_value(self, source: str, position: int) -> list[Price]:  # noqa: ARG002
        """The prices that the hardware leads to; each says how it was derived."""
        owned = Owned(**vars(self) | {"gpus": self.gpus or 1})
        return [replace(price, source=source) for price in owned.prices()]


class DeclaredPurchase(_Place):
    """How accelerators of a place were bought; begins and ends on whole hours (UTC)."""

    name: Text = ""
    purchase: Annotated[str, one_of(PURCHASES)]
    tags: dict[str, Text] = Field({})
    effective_from_ms: HourInstant | None = Field(None, alias="effective_from")
    effective_to_ms: Annotated[
        HourInstant | None, end_after("effective_from_ms", "effective_from")
    ] = Field(None, alias="effective_to")

    value_type = PurchaseChoice


class DeclaredExchangeRate(Declaration):
    """An exchange rate; it begins at a midnight (UTC), because it converts whole days."""

    from_currency: Currency = Field(alias="from")
    to_currency: Currency = Field(alias="to")
    rate: Rate
    effective_from_ms: DayInstant = Field(alias="effective_from")

    value_type = ExchangeRate
    identity = ("from_currency", "to_currency", "effective_from_ms")
    conflict = ("rate", "line {line} gives the same day another rate")
    may_repeat = True

    @field_validator("to_currency")
    @classmethod
    def _differ(cls, to: str, info: ValidationInfo) -> str:
        if to == info.data.get("from_currency"):
            raise refusal("same", "is the same currency as from")
        return to

    @field_validator("rate")
    @classmethod
    def _not_zero(cls, rate: Decimal) -> Decimal:
        if not rate:
            raise refusal("out_of_range", "is 0")
        return rate

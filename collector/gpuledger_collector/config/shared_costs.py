"""Shared costs and carbon intensities: [[shared_cost]] and [[carbon]] tables.

    [[shared_cost]]
    name = "support"
    amount_per_month = 1200
    currency = "USD"
    key = "cost"

    [[shared_cost]]
    name = "idle capacity of the research pool"
    source = "unallocated"
    pool = "research"
    key = "weights"
    weights = { vision = 60, nlp = 40 }
    scope = { org = "acme" }

    [[carbon]]
    region = "eu-north"
    pool = "h100"
    grams_per_kwh = 24.5
    pue = 1.15
    effective_from = 2026-01-01

Dates are days of the bill, in its zone; `effective_to` is not included.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.accounting.shared_costs import AMOUNT, KEYS, SOURCES, SharedCost
from gpuledger_collector.config.attribution import check_level
from gpuledger_collector.config.fields import (
    Currency,
    Name,
    PositiveMicroAmount,
    Text,
    decimal,
    one_of,
    refusal,
    whole,
)
from gpuledger_collector.config.model import Dated

MAX_WEIGHT = 10**12


class DeclaredSharedCost(Dated):
    """A shared cost: an amount a month, or what GPU time in a state costs."""

    name: Text
    # `source` and `key` decide which of the fields after them are needed, allowed or refused
    source: Annotated[str, one_of(SOURCES)] = AMOUNT
    amount_micro: PositiveMicroAmount | None = Field(
        None, alias="amount_per_month", validate_default=True
    )
    currency: Currency | None = Field(None, validate_default=True)
    pool: Name = ""
    key: Annotated[str, one_of(KEYS)]
    level: Annotated[str, one_of(LEVELS)] = "team"
    weights: dict[str, Annotated[int, whole(0, MAX_WEIGHT)]] = Field({}, validate_default=True)
    scope: dict[str, Text] = Field({})

    value_type = SharedCost
    identity = ("name",)
    conflict = ("name", "line {line} declares this shared cost for some of these days already")

    @field_validator("amount_micro", "currency")
    @classmethod
    def _belong_to_an_amount(cls, value: Any, info: ValidationInfo) -> Any:
        source = info.data.get("source")
        if source == AMOUNT and value is None:
            raise refusal("empty", "is empty")
        if source not in {AMOUNT, None} and value is not None:
            raise refusal("not_an_amount", f"belongs to source = {AMOUNT!r}, not to {source!r}")
        return value

    @field_validator("pool")
    @classmethod
    def _belong_to_a_state(cls, pool: str, info: ValidationInfo) -> str:
        if pool and info.data.get("source") == AMOUNT:
            raise refusal("not_a_state", f"belongs to source = {', '.join(map(repr, SOURCES[1:]))}")
        return pool

    @field_validator("weights")
    @classmethod
    def _weigh_owners(cls, weights: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        key = info.data.get("key")
        if key == "weights" and not any(weights.values()):
            raise refusal(
                "bad_weights", "must be whole numbers by owner, such as { vision = 60, nlp = 40 }"
            )
        if key not in {"weights", None} and weights:
            raise refusal("not_weighed", 'belongs to key = "weights"')
        _check_owners(weights)
        return weights

    @field_validator("scope")
    @classmethod
    def _name_owners(cls, scope: dict[str, str]) -> dict[str, str]:
        for level in scope:
            check_level(level)
        if not all(scope.values()):
            raise refusal("bad_table", 'must name owners, such as { org = "acme" }')
        _check_owners(scope.values())
        return scope


def _check_owners(owners: Iterable[str]) -> None:
    for owner in owners:
        if is_reserved(owner):
            raise refusal("reserved_name", reserved_message(owner))


class DeclaredIntensity(Dated):
    """A carbon intensity, and the power usage effectiveness of the building."""

    region: Text = ""
    pool: Name = ""
    grams_per_kwh: Annotated[Decimal, decimal(3, 10_000)]
    pue: Annotated[Decimal, decimal(3, 10, "1")] = Decimal(1)

    value_type = Intensity
    identity = ("pool", "from_on")
    conflict = ("effective_from", "line {line} gives this pool an intensity from that day already")

"""Adjustments: [[adjustment]] tables.

[[adjustment]]
name = "platform fee"
kind = "markup"                    # or "discount": a percentage of the cost
percent = 7.5
effective_from = 2026-10-01

[[adjustment]]
name = "volume price of H100"
kind = "tiered"
gpu_model = "H100"
steps = { 0 = 2.50, 1000 = 2.20, 5000 = 1.90 }     # from that GPU-hour of the month on
per = "team"                       # whose hours count: an owner level, or "fleet"
currency = "USD"

[[adjustment]]
name = "outage of 7 October"
kind = "credit"                    # or "debit": an amount that is booked once
owner = { team = "vision" }
amount = 250
currency = "USD"
effective_from = 2026-10-07
effective_to = 2026-10-08
reason = "twelve hours without InfiniBand"
approver = "m.keller"

Dates are days of the bill, in its zone; `effective_to` is not included. `owner`, `pool` and
`gpu_model` restrict a markup, a discount or a tier. A true-up is booked from a provider's bill:
`gpuledger adjustments true-up`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.adjustments import (
    CREDIT,
    DEBIT,
    DISCOUNT,
    FLEET,
    MARKUP,
    PERCENT_DIGITS,
    POLICIES,
    TIERED,
    Adjustment,
    excessive_discounts,
)
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.attribution import check_level
from gpuledger_collector.config.fields import (
    MAX_AMOUNT,
    MAX_RATE,
    Currency,
    Day,
    Name,
    PositiveMicroAmount,
    Text,
    decimal,
    end_after,
    one_of,
    read_bounded,
    refusal,
)
from gpuledger_collector.config.model import Declaration, Record

MAX_PERCENT = 1000
PERCENTAGES = (MARKUP, DISCOUNT)
AMOUNTS = (CREDIT, DEBIT)
_NEEDS = {
    "percent": PERCENTAGES,
    "steps": (TIERED,),
    "amount": AMOUNTS,
    "currency": (TIERED, *AMOUNTS),
    "owner": AMOUNTS,
    "effective_from": AMOUNTS,
    "effective_to": AMOUNTS,
    "reason": AMOUNTS,
    "approver": AMOUNTS,
}
"""The kinds that cannot do without a key."""
_ONLY = ("percent", "steps", "amount", "currency")
"""Keys that mean nothing for other kinds than those that need them."""


class DeclaredAdjustment(Declaration):
    """A markup, discount or tier, or a credit or debit."""

    name: Text
    # `kind` decides which of the fields after it are needed, allowed or refused
    kind: Annotated[str, one_of((*POLICIES, *AMOUNTS))]
    owner: dict[str, Name] = Field({}, validate_default=True)
    pool: Name = ""
    gpu_model: Name = ""
    percent: Annotated[Decimal, decimal(PERCENT_DIGITS, MAX_PERCENT)] | None = Field(
        None, validate_default=True
    )
    steps: dict[str, Text] = Field({}, validate_default=True)
    per: Annotated[str, one_of((*LEVELS, FLEET))] = Field("", validate_default=False)
    amount_micro: PositiveMicroAmount | None = Field(None, alias="amount", validate_default=True)
    currency: Currency | None = Field(None, validate_default=True)
    from_on: Day | None = Field(None, alias="effective_from", validate_default=True)
    to_on: Annotated[Day | None, end_after("from_on", "effective_from")] = Field(
        None, alias="effective_to", validate_default=True
    )
    reason: Text = Field("", validate_default=True)
    approver: Text = Field("", validate_default=True)

    value_type = Adjustment
    identity = ("name",)

    @field_validator(
        "owner",
        "percent",
        "steps",
        "amount_micro",
        "currency",
        "from_on",
        "to_on",
        "reason",
        "approver",
    )
    @classmethod
    def _belong_to_the_kind(cls, value: Any, info: ValidationInfo) -> Any:
        kind, key = (
            info.data.get("kind"),
            cls.model_fields[info.field_name or ""].alias or info.field_name or "",
        )
        empty = value is None or value in ("", {})
        if kind in _NEEDS[key] and empty:
            raise refusal("empty", f"is empty: a {kind} needs it")
        if kind is not None and kind not in _NEEDS[key] and key in _ONLY and not empty:
            raise refusal(
                "not_asked",
                f"belongs to kind = {' or '.join(map(repr, _NEEDS[key]))}, not to {kind!r}",
            )
        return value

    @field_validator("owner")
    @classmethod
    def _name_owners(cls, owner: dict[str, str]) -> dict[str, str]:
        for level in owner:
            check_level(level)
        if not all(owner.values()):
            raise refusal("bad_table", 'must name owners, such as { team = "vision" }')
        return owner

    @field_validator("percent")
    @classmethod
    def _take_no_more_than_all(
        cls, percent: Decimal | None, info: ValidationInfo
    ) -> Decimal | None:
        if percent is not None and info.data.get("kind") == DISCOUNT and percent > 100:
            raise refusal(
                "out_of_range", f"{percent} is more than 100: nothing costs less than nothing"
            )
        return percent

    @field_validator("steps")
    @classmethod
    def _climb_from_zero(cls, steps: dict[str, str]) -> dict[str, str]:
        hours = [read_bounded(text, 6, MAX_AMOUNT) for text in steps]
        for rate in steps.values():
            read_bounded(rate, 9, MAX_RATE)
        if steps and (0 not in hours or len(set(hours)) != len(hours)):
            raise refusal(
                "bad_steps",
                "must begin at 0 and name each number once, as { 0 = 2.50, 1000 = 2.20 }",
            )
        return steps

    @field_validator("to_on")
    @classmethod
    def _stay_in_a_month(cls, end: dt.date | None, info: ValidationInfo) -> dt.date | None:
        start = info.data.get("from_on")
        if (
            info.data.get("kind") in AMOUNTS
            and start is not None
            and end is not None
            and end > start
        ):
            last = end - dt.timedelta(days=1)
            if (last.year, last.month) != (start.year, start.month):
                raise refusal("two_months", "lies in another month: write an entry for each month")
        return end

    @classmethod
    def collect(cls, records: Iterable[Record], problems: list[Problem]) -> list[Any]:
        """The values of all good tables; discounts that can meet take no more than all of the cost
        together.
        """
        records = list(records)
        values = super().collect(records, problems)
        excess = excessive_discounts([value for value in values if value.kind == DISCOUNT])
        if excess:
            *others, last = excess
            record = next(
                record for record in reversed(records) if record.cells.get("name") == last.name
            )
            names = " and ".join(f"{other.name!r} ({other.percent:f} %)" for other in others)
            total = sum(discount.percent or 0 for discount in excess)
            message = (
                f"with {names}, which can hold for the same time, {total:f} % are taken: at most"
                " 100 % can be"
            )
            problems.append(Problem("out_of_range", f"{record.source}:percent", message))
        return values

    def to_value(self, source: str, position: int) -> Adjustment:  # noqa: ARG002
        """The adjustment; a tier counts the hours of each team unless it says whose."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        per = self.per or ("team" if self.kind == TIERED else "")
        return Adjustment(id=None, **fields | {"per": per})

"""Budgets: [[budget]] tables.

[[budget]] name = "vision" team = "vision" period = "month" amount = 40000 currency = "USD"
recipients = ["lead@example.com"] measure = "direct" # or "total": with shares of common costs;
"gpu_hours": amount is in GPU-hours
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.budgets import (
    DIRECT,
    GPU_HOURS,
    MEASURES,
    PERIODS,
    RANGE,
    TOTAL,
    Budget,
    Terms,
)
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.config.fields import (
    Currency,
    DayInstant,
    Name,
    PositiveMicroAmount,
    QuietHours,
    Recipients,
    Text,
    end_after,
    one_of,
    refusal,
    whole,
)
from gpuledger_collector.config.model import Declaration

MAX_PERCENT = 1000
MAX_RECIPIENTS = 50
_Percent = Annotated[int, whole(1, MAX_PERCENT, "percent")]
_Percents = Annotated[
    tuple[_Percent, ...], AfterValidator(lambda percents: tuple(sorted(set(percents))))
]


def _few(recipients: tuple[str, ...]) -> tuple[str, ...]:
    if len(recipients) > MAX_RECIPIENTS:
        raise refusal(
            "too_many", f"has {len(recipients)} recipients; at most {MAX_RECIPIENTS} are notified"
        )
    return recipients


_FewRecipients = Annotated[Recipients, AfterValidator(_few)]


class DeclaredBudget(Declaration):
    """A budget; its owner is named by levels of the owner tree, each a key of its own."""

    name: Text
    org: Name = ""
    team: Name = ""
    project: Name = ""
    experiment: Name = ""
    run: Name = ""
    user: Name = ""
    # a period decides whether there must be days, so even missing ones are checked
    period: Annotated[str, one_of(PERIODS)]
    start_ms: DayInstant | None = Field(None, alias="from", validate_default=True)
    end_ms: Annotated[DayInstant | None, end_after("start_ms", "from")] = Field(
        None, alias="to", validate_default=True
    )
    # the measure decides whether there must be a currency
    measure: Annotated[str, one_of(MEASURES)] = DIRECT
    amount_micro: PositiveMicroAmount = Field(alias="amount")
    currency: Currency = Field("", validate_default=True)
    actual: _Percents = Terms().actual
    forecast: _Percents = Terms().forecast
    pace: _Percent | None = None
    recipients: _FewRecipients = ()
    escalate_to: _FewRecipients = ()
    escalate_hours: Annotated[int, whole(1, 1000)] = Field(
        Terms().escalate_hours, alias="escalate_after_hours"
    )
    quiet: QuietHours | None = None

    identity = ("name",)
    blank_is_refused = LEVELS

    @field_validator("name")
    @classmethod
    def _stay_on_one_line(cls, name: str) -> str:
        if any(ord(character) < 32 or ord(character) == 127 for character in name):
            raise refusal("bad_character", "must be one line")
        return name

    @field_validator("start_ms", "end_ms")
    @classmethod
    def _belong_to_a_range(cls, day: int | None, info: ValidationInfo) -> int | None:
        period = info.data.get("period")
        if period == RANGE and day is None:
            raise refusal("empty", "is empty")
        if period not in {RANGE, None} and day is not None:
            raise refusal("not_a_range", 'belongs to period = "range"')
        return day

    @field_validator("currency")
    @classmethod
    def _belong_to_money(cls, currency: str, info: ValidationInfo) -> str:
        measure = info.data.get("measure")
        if measure == GPU_HOURS and currency:
            raise refusal(
                "no_money",
                'belongs to money: with measure = "gpu_hours" the amount is in GPU-hours',
            )
        if measure in {DIRECT, TOTAL} and not currency:
            raise refusal("empty", "is empty")
        return currency

    def to_value(self, source: str, position: int) -> Budget:  # noqa: ARG002
        """The budget with its terms."""
        owner = {level: name for level in LEVELS if (name := getattr(self, level))}
        span = (
            None
            if self.start_ms is None or self.end_ms is None
            else Period(self.start_ms, self.end_ms)
        )
        terms = Terms(**{name: getattr(self, name) for name in Terms.__dataclass_fields__})
        # storage gives the id, and the billing zone's calendar when it reads the budget
        return Budget(
            0,
            self.name,
            owner,
            self.period,
            span,
            self.amount_micro,
            self.currency,
            terms,
            measure=self.measure,
        )

    @classmethod
    def from_value(cls, value: Budget) -> Self:
        """The declaration of a budget in force."""
        fields = {
            name: getattr(value, name) for name in ("name", "measure", "amount_micro", "currency")
        }
        fields |= {name: getattr(value.terms, name) for name in Terms.__dataclass_fields__}
        if value.span is not None:
            fields |= {"start_ms": value.span.start_ms, "end_ms": value.span.end_ms}
        return cls.model_construct(period=value.kind, **fields | dict(value.owner))

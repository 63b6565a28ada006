"""Teams' shares of pools: [[share]] tables.

    [[share]]
    team = "vision"
    pool = "h100"
    fraction = 0.4
    effective_from = 2026-10-01

    [[share]]
    team = "nlp"
    pool = "h100"
    gpus = 16

A share is a fraction of the pool's capacity or a number of GPUs. Dates are days of the bill, in its zone;
`effective_to` is not included.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.config.fields import Day, Text, after, decimal, refusal, whole
from gpuledger_collector.config.model import Declaration

MAX_GPUS = 10**7


class DeclaredShare(Declaration):
    """A team's share of a pool."""

    team: Text
    pool: Text
    fraction: Annotated[Decimal, decimal(6, 1)] | None = None
    gpus: Annotated[int, whole(0, MAX_GPUS)] | None = Field(None, validate_default=True)
    from_on: Day | None = Field(None, alias="effective_from")
    to_on: Annotated[Day | None, after("from_on", "effective_from")] = Field(None, alias="effective_to")

    value_type = PoolShare
    identity = ("team", "pool")
    conflict = ("team", "line {line} gives this team a share of the pool for some of these days already")

    @field_validator("team")
    @classmethod
    def _name_a_team(cls, team: str) -> str:
        if is_reserved(team):
            raise refusal("reserved_name", reserved_message(team))
        return team

    @field_validator("gpus")
    @classmethod
    def _give_one(cls, gpus: int | None, info: ValidationInfo) -> int | None:
        if (gpus is None) == (info.data.get("fraction") is None):
            raise refusal("one_of", "give a fraction of the pool, such as 0.25, or a number of gpus, not both")
        return gpus

    def conflicts(self, earlier: Self) -> bool:
        """Whether both hold on some day."""

        def ends_before(end: dt.date | None, start: dt.date | None) -> bool:
            return end is not None and start is not None and end <= start

        return not ends_before(self.to_on, earlier.from_on) and not ends_before(earlier.to_on, self.from_on)

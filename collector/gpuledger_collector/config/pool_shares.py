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

A share is a fraction of the pool's capacity or a number of GPUs. Dates are days of the bill, in its
zone; `effective_to` is not included.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.config.fields import Text, decimal, refusal, whole
from gpuledger_collector.config.model import Dated

MAX_GPUS = 10**7


class DeclaredShare(Dated):
    """A team's share of a pool."""

    team: Text
    pool: Text
    fraction: Annotated[Decimal, decimal(6, 1)] | None = None
    gpus: Annotated[int, whole(0, MAX_GPUS)] | None = Field(None, validate_default=True)

    value_type = PoolShare
    identity = ("team", "pool")
    conflict = (
        "team",
        "line {line} gives this team a share of the pool for some of these days already",
    )

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
            raise refusal(
                "one_of", "give a fraction of the pool, such as 0.25, or a number of gpus, not both"
            )
        return gpus

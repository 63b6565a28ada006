"""Which pool or node a line of a provider's bill is about: [[bill_match]] tables."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.provider_bill import BillMatch
from gpuledger_collector.config.fields import Flag, Name, Text, decimal, refusal
from gpuledger_collector.config.model import Declaration

MAX_GPUS = 100_000
PATTERNS = ("sku", "resource", "region", "service")


class DeclaredBillMatch(Declaration):
    """A match; all of its patterns must fit a line."""

    # `sku` and `pool` follow the fields that their checks read
    provider: Text = ""
    resource: Text = ""
    region: Text = ""
    service: Text = ""
    sku: Text = Field("", validate_default=True)
    node: Name = ""
    leave_out: Flag = False
    pool: Name = Field("", validate_default=True)
    gpus: Annotated[Decimal, decimal(6, MAX_GPUS)] | None = None

    value_type = BillMatch

    @field_validator("sku")
    @classmethod
    def _describe_a_line(cls, sku: str, info: ValidationInfo) -> str:
        if not sku and not any(info.data.get(name, True) for name in PATTERNS[1:]):
            raise refusal("empty", f"says nothing of the line: give one of {', '.join(PATTERNS)}")
        return sku

    @field_validator("pool")
    @classmethod
    def _lead_somewhere(cls, pool: str, info: ValidationInfo) -> str:
        if {"node", "leave_out"} <= info.data.keys() and bool(
            pool or info.data["node"]
        ) == info.data["leave_out"]:
            raise refusal("empty", "name a pool or a node, or say leave_out = true")
        return pool

    @field_validator("gpus")
    @classmethod
    def _count_some(cls, gpus: Decimal | None) -> Decimal | None:
        if gpus == 0:
            raise refusal(
                "out_of_range", "is 0: a line without GPUs is left out by leave_out = true"
            )
        return gpus

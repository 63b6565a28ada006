"""Node costs: [[node_cost]] tables.

[[node_cost]]
name = "CPU and memory"
pool = "train"
cores = 128                        # of a node
price_per_core_hour = 0.011
memory_gb = 2048                   # of a node
price_per_gb_hour = 0.0015
currency = "USD"
effective_from = 2026-10-01

[[node_cost]]
name = "local disk"
node = "dgx-*"                     # * as wildcard
price_per_node_hour = 0.35
currency = "USD"

A node costs all names that fit it; of several tables of one name the most specific. Dates are days
of the bill, in its zone; `effective_to` is not included.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.node_costs import ZERO, NodeCost
from gpuledger_collector.config.fields import Currency, Name, Rate, Text, refusal, whole
from gpuledger_collector.config.model import Dated

MAX_SIZE = 1_000_000
_PRICE_OF = {"cores": "per_core_hour", "memory_gb": "per_gb_hour"}
Size = Annotated[int, whole(1, MAX_SIZE)]


class DeclaredNodeCost(Dated):
    """What a node-hour costs beside the accelerators."""

    name: Text
    pool: Name = ""
    node: Name = ""
    # prices come before what they are multiplied by, and before the flat price, which is needed
    # only without them
    per_core_hour: Rate = Field(ZERO, alias="price_per_core_hour")
    cores: Size | None = Field(None, validate_default=True)
    per_gb_hour: Rate = Field(ZERO, alias="price_per_gb_hour")
    memory_gb: Size | None = Field(None, validate_default=True)
    per_node_hour: Rate = Field(ZERO, alias="price_per_node_hour", validate_default=True)
    currency: Currency

    value_type = NodeCost
    identity = ("name", "pool", "node")
    conflict = (
        "name",
        "line {line} declares this cost of the same nodes for some of these days already",
    )

    @field_validator("cores", "memory_gb")
    @classmethod
    def _belong_to_a_price(cls, size: int | None, info: ValidationInfo) -> int | None:
        price = _PRICE_OF[info.field_name or ""]
        if info.data.get(price) and size is None:
            raise refusal("empty", f"is empty: price_{price} needs how many a node has")
        if info.data.get(price) == ZERO and size is not None:
            raise refusal("not_asked", f"belongs to price_{price}")
        return size

    @classmethod
    def from_value(cls, value: NodeCost) -> Self:
        """The declaration of a value that is in force, without prices of zero."""
        given = {name: getattr(value, name) for name in cls.model_fields}
        return cls.model_construct(**{name: cell for name, cell in given.items() if cell != ZERO})

    @field_validator("per_node_hour")
    @classmethod
    def _cost_something(cls, flat: Decimal, info: ValidationInfo) -> Decimal:
        if not flat and all(info.data.get(price) == ZERO for price in _PRICE_OF.values()):
            raise refusal(
                "free",
                "is missing, and so are the prices of cores and memory: a node cost costs"
                " something",
            )
        return flat

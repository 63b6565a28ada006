"""Cost centers and GL codes of owners: [[cost_center]] tables.

[[cost_center]]
owner = { team = "vision" }
cost_center = "4711"
gl_code = "642000"
effective_from = 2026-10-01

They hold for the owner and all below it; the most specific declaration wins, code by code. Dates
are days of the bill, in its zone; `effective_to` is not included.
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.cost_centers import CostCenter
from gpuledger_collector.config.attribution import check_level
from gpuledger_collector.config.fields import Name, Text, refusal
from gpuledger_collector.config.model import Dated


class DeclaredCostCenter(Dated):
    """The codes of an owner."""

    owner: dict[str, Name]
    cost_center: Text = ""
    gl_code: Text = Field("", validate_default=True)

    value_type = CostCenter
    identity = ("owner_key",)
    conflict = ("owner", "line {line} gives this owner codes for some of these days already")

    @field_validator("owner")
    @classmethod
    def _name_owners(cls, owner: dict[str, str]) -> dict[str, str]:
        for level in owner:
            check_level(level)
        if not owner or not all(owner.values()):
            raise refusal("bad_table", 'must name owners, such as { team = "vision" }')
        return owner

    @field_validator("gl_code")
    @classmethod
    def _say_something(cls, gl_code: str, info: ValidationInfo) -> str:
        if not gl_code and not info.data.get("cost_center"):
            raise refusal("empty", "is empty, and so is cost_center: an owner needs one of them")
        return gl_code

    @property
    def owner_key(self) -> tuple[tuple[str, str], ...]:
        """The owner as something that can be compared by hash."""
        return tuple(sorted(self.owner.items()))

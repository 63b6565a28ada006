"""Attribution rules: [[rule]] tables.

[[rule]]
name = "slurm accounts"
match = { kind = "slurm", account = "ml-*" }
assign = { team = "{account}" }

Rules hold in the order of the file.
"""

from __future__ import annotations

from difflib import get_close_matches

from pydantic import Field, field_validator

from gpuledger_collector.accounting.attribution import Rule
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.reserved_names import escape_name, reserved_message
from gpuledger_collector.config.fields import DatedInstant, EffectiveTo, Scalar, Text, refusal
from gpuledger_collector.config.model import Declaration


class DeclaredRule(Declaration):
    """An attribution rule."""

    name: Text = ""
    match: dict[str, Scalar] = Field({})
    assign: dict[str, Scalar]
    effective_from_ms: DatedInstant | None = Field(None, alias="effective_from")
    effective_to_ms: EffectiveTo = Field(None, alias="effective_to")

    value_type = Rule

    @field_validator("assign")
    @classmethod
    def _name_owners(cls, assign: dict[str, str]) -> dict[str, str]:
        for level, owner in assign.items():
            check_level(level)
            # attribution escapes such a name once more, so that no report would show the owner as
            # declared
            if escape_name(owner) != owner:
                raise refusal("reserved_name", reserved_message(owner))
        if not assign:
            raise refusal("empty", "assigns nothing")
        return assign


def check_level(level: str) -> None:
    """Refuse what is no level of the owner tree, with the nearest one."""
    if level not in LEVELS:
        near = get_close_matches(level, LEVELS, 1)
        hint = f"is it {near[0]!r}?" if near else f"levels are {', '.join(LEVELS)}"
        raise refusal("bad_level", f"{level!r} is no level of the owner tree; {hint}")

"""Parameters that tools share: flat scalars with their bounds and formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from gpuledger_collector.accounting.chargeback import DIMENSIONS
from gpuledger_collector.mcp.answers import DEFAULT_ROWS, MAX_ROWS
from gpuledger_collector.mcp.ledger import Refused
from gpuledger_collector.mcp.periods import EXAMPLES

TEXT_LENGTH = 500
MAX_DIMENSIONS = 3

Period = Annotated[
    str, Field(max_length=40, description=f"{EXAMPLES}; empty: this month, or start and end.")
]
Start = Annotated[
    str, Field(max_length=40, description="First day, as 2026-10-01, in the zone of the bill.")
]
End = Annotated[str, Field(max_length=40, description="Day after the last one, as 2026-11-01.")]
GroupBy = Annotated[
    str,
    Field(
        max_length=TEXT_LENGTH,
        description=f"One to {MAX_DIMENSIONS} of {', '.join(DIMENSIONS)}, separated by commas.",
    ),
]
Where = Annotated[
    str,
    Field(
        max_length=TEXT_LENGTH,
        description=(
            "Only these: DIMENSION=VALUE of the same dimensions, separated by commas, such as"
            " team=vision."
        ),
    ),
]
Limit = Annotated[
    int, Field(ge=1, le=MAX_ROWS, description="Most rows in the answer; totals are always whole.")
]
Cursor = Annotated[
    str,
    Field(max_length=20, description="next_cursor of the previous answer; empty: the first rows."),
]
LIMIT = DEFAULT_ROWS


def dimensions(text: str) -> tuple[str, ...]:
    """The dimensions of `group_by`, each once. Raises Refused."""
    return split_names("group_by", text, DIMENSIONS, "team,model")


def split_names(parameter: str, text: str, known: Sequence[str], example: str) -> tuple[str, ...]:
    """The names in a parameter, each once. Raises Refused."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not 1 <= len(names) <= MAX_DIMENSIONS:
        raise Refused(
            f"{parameter}: give one to {MAX_DIMENSIONS} of {', '.join(known)}, such as {example}"
        )
    return names


def conditions(text: str) -> Mapping[str, str]:
    """The conditions of `where` by dimension. Raises Refused."""
    wanted: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name.strip() not in DIMENSIONS or "\0" in value or not value.strip():
            raise Refused(
                f"where: give DIMENSION=VALUE, such as team=vision, of {', '.join(DIMENSIONS)}"
            )
        wanted[name.strip()] = value.strip()
    if len(wanted) > MAX_DIMENSIONS:
        raise Refused(f"where: give at most {MAX_DIMENSIONS} conditions")
    return wanted

"""The tool about shared model servers: who used a model, and what that cost."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gpuledger_collector.accounting.inference_lines import KEYS, GroupedLine
from gpuledger_collector.export.site import MODELS
from gpuledger_collector.mcp import periods
from gpuledger_collector.mcp.answers import (
    Answer,
    Model,
    Money,
    name,
    notices,
    typed_money,
)
from gpuledger_collector.mcp.ledger import Ledger, Page, Refused
from gpuledger_collector.mcp.tools.parameters import (
    LIMIT,
    MAX_DIMENSIONS,
    TEXT_LENGTH,
    Cursor,
    End,
    Limit,
    Period,
    Start,
    split_names,
)
from gpuledger_collector.services.inference_costs import Chosen, NoHours, read_inference

NO_LINES = "no shared model server was asked in this period, by these names and for this token"


class Asked(Model):
    """Tokens as gateways counted them, and their part of what the servers were charged."""

    currency: Annotated[str | None, Field(description="null: without a price.")]
    input_tokens: int
    cached_tokens: Annotated[int, Field(description="Contained in input_tokens.")]
    output_tokens: int
    requests: int
    cost: Annotated[Money | None, Field(description="Beside an unchanged bill; null: no price.")]
    cost_used: Annotated[Money | None, Field(description="Of time in which GPUs worked.")]
    cost_idle: Annotated[Money | None, Field(description="Of idle time, by the server's rule.")]


class AskedTotal(Asked):
    """A currency's total."""


class AskedRow(Asked):
    """What a group asked for."""

    names: Annotated[
        dict[str, str],
        Field(
            description=(
                "Names by key, as gateways and users chose them. (nobody): tokens that only the"
                " server counted; (idle): idle time that no tenant pays."
            )
        ),
    ]
    paid_by: Annotated[
        dict[str, str], Field(description="Levels of the owner tree; empty: no owner pays.")
    ]
    trust: Annotated[
        str, Field(description="authenticated, or a claim of the caller; empty: both, or neither.")
    ]


def get_inference_cost(
    ledger: Ledger,
    period: Period = "",
    start: Start = "",
    end: End = "",
    model: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH,
            description="Only models with this text in their name, in any case; empty: all.",
        ),
    ] = "",
    server: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH,
            description="Only servers with this text in their name, in any case; empty: all.",
        ),
    ] = "",
    group_by: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH,
            description=f"One to {MAX_DIMENSIONS} of {', '.join(KEYS)}, separated by commas.",
        ),
    ] = "tenant,model",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[AskedRow, AskedTotal]:
    """Who used which model of shared model servers: tokens and cost by tenant, dearest first.

    Whole servers also have (nobody) and (idle), so that rows add up to what they were charged.
    """
    page, keys = Page(limit, cursor), split_names("group_by", group_by, KEYS, "tenant,model")
    with ledger.snapshot() as snapshot:
        span = snapshot.period(period, start, end)
        try:
            answer = read_inference(
                snapshot.connection, span, keys, ledger.reader.owner, Chosen(server, model)
            )
        except NoHours as error:
            raise Refused(f"group_by: {error}") from None
        first, after = periods.dates(snapshot.calendar, span)
        words = " ".join(filter(None, (server, model)))
        return page.answer(
            answer.lines,
            _row,
            link=ledger.link(MODELS, {"from": first, "to": after, "q": words}),
            evidence=snapshot.evidence(span),
            totals=[AskedTotal(**_asked(line)) for line in answer.totals],
            notices=notices(answer.notes),
            empty=NO_LINES,
            next_step=(
                "" if answer.lines else "describe_ledger says which months there are; ask for one"
            ),
        )


def _row(line: GroupedLine) -> AskedRow:
    return AskedRow(
        names={key: name(value) for key, value in line.keys.items()},
        paid_by={level: name(value) for level, value in line.owner.items()},
        trust=line.trust,
        **_asked(line),
    )


def _asked(line: GroupedLine) -> dict[str, Any]:
    return {
        "currency": None if line.cost is None else line.cost.currency,
        "input_tokens": line.tokens.input,
        "cached_tokens": line.tokens.cached,
        "output_tokens": line.tokens.output,
        "requests": line.tokens.requests,
        "cost": typed_money(line.cost),
        "cost_used": typed_money(line.used),
        "cost_idle": typed_money(line.idle),
    }

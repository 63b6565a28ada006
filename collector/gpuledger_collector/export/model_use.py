"""Models on shared servers that an owner asked, as a list of its statement."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from gpuledger_collector.accounting.model_use import ModelUse
from gpuledger_collector.export.report import Column, Kind, Report


def _price(at: int) -> Callable[[ModelUse], Decimal | None]:
    return lambda use: use.prices[at]


MODEL_USE: Report[ModelUse] = Report(
    "model_use",
    (
        Column("server", lambda use: use.server),
        Column("model", lambda use: use.model),
        Column("input_tokens", lambda use: use.line.tokens.input, Kind.COUNT),
        Column(
            "cached_tokens",
            lambda use: use.line.tokens.cached,
            Kind.COUNT,
            about="Contained in input_tokens.",
        ),
        Column("output_tokens", lambda use: use.line.tokens.output, Kind.COUNT),
        Column("cost", lambda use: use.line.cost, Kind.MONEY),
        Column("cost_idle", lambda use: use.line.idle, Kind.MONEY, about="Contained in cost."),
        Column(
            "cost_charged",
            lambda use: use.line.charged,
            Kind.MONEY,
            about="How much of cost is charged; the rest is only shown.",
        ),
        Column("currency", lambda use: use.line.cost and use.line.cost.currency),
        *(
            Column(
                f"{kind}_price",
                _price(at),
                Kind.DECIMAL,
                about=f"What a million {kind} tokens cost the owner, idle cost included.",
            )
            for at, kind in enumerate(("input", "cached", "output"))
        ),
        Column(
            "coverage",
            lambda use: use.coverage,
            Kind.DECIMAL,
            about="Tokens of gateways over those of the server.",
        ),
    ),
)

"""What a million tokens of each model cost on the shared servers that answered it in a period.

A price is written only where it is known: of a model that one server answered, in one currency.
What has no price is said in a sentence, and is never zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.inference_lines import (
    InferenceLine,
    ServerLine,
    summarize_servers,
)

HELD, USED = "held", "used"
COSTS = (HELD, USED)
"""At all of a server's cost, or without idle time."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Prices of a million input, cached and output tokens of a model, as its gateway calls it."""

    model: str
    server: str
    input: Decimal
    cached: Decimal
    output: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """Prices by model, and in sentences which models have none."""

    prices: Sequence[ModelPrice]
    notes: Sequence[str]


def list_model_prices(
    lines: Sequence[InferenceLine],
    servers: Sequence[ServerLine],
    cost: str = HELD,
    server: str = "",
) -> ModelPrices:
    """Prices of the models that tenants asked for, of one server (empty: of each that is the only
    one to answer the model), at held or used cost.
    """
    prices = _Prices(lines, servers, cost)
    answered_by: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.claimant.is_tenant and line.weighted and server in ("", line.server):
            answered_by[line.claimant.model].add(line.server)
    found, notes = [], []
    for model, names in sorted(answered_by.items()):
        if len(names) > 1:
            notes.append(
                f"{model}: no price, since {' and '.join(sorted(names))} answered it; choose one"
                " of them"
            )
            continue
        (name,) = names
        reason = prices.reason_without(name)
        if reason:
            notes.append(f"{model}: no price, since {reason}")
            continue
        (input_price, cached, output), currency = prices.of[name]
        found.append(ModelPrice(model, name, input_price, cached, output, currency))
    return ModelPrices(found, notes)


class _Prices:
    """Prices of servers, and why some have none."""

    def __init__(
        self, lines: Sequence[InferenceLine], servers: Sequence[ServerLine], cost: str
    ) -> None:
        self.of: dict[str, tuple[list[Decimal], str]] = {}
        self._currencies: dict[str, set[str]] = defaultdict(set)
        for day in servers:
            # A day without a price is none of what the others cost.
            if day.currency:
                self._currencies[day.server].add(day.currency)
        for summary in summarize_servers(servers, lines):
            values = summary.held_prices if cost == HELD else summary.used_prices
            known = [value for value in values if value is not None]
            if summary.cost is not None and len(known) == len(values) and any(known):
                self.of[summary.server] = known, summary.cost.currency

    def reason_without(self, server: str) -> str:
        """Why a server has no price; empty: it has one."""
        if not self._currencies[server]:
            return f"nothing of {server} was charged"
        if len(self._currencies[server]) > 1:
            return f"{server} costs in {' and '.join(sorted(self._currencies[server]))}"
        return "" if server in self.of else f"its tokens cost nothing on {server}"

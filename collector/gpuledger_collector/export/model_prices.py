"""Prices of models: as a list, and as LiteLLM takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

from gpuledger_collector.accounting.model_prices import ModelPrice
from gpuledger_collector.export.prices import trim_zeros
from gpuledger_collector.export.report import Column, Kind, Report

LITELLM_CURRENCY = "USD"
"""What LiteLLM calls all costs, whatever they are."""
_MILLION_DIGITS = 6

MODEL_PRICES: Report[ModelPrice] = Report(
    "model_prices",
    (
        Column("model", lambda price: price.model, about="As the gateway calls it."),
        Column("server", lambda price: price.server),
        Column(
            "input_price", lambda price: price.input, Kind.DECIMAL, about="Of a million tokens."
        ),
        Column("cached_price", lambda price: price.cached, Kind.DECIMAL),
        Column("output_price", lambda price: price.output, Kind.DECIMAL),
        Column("currency", lambda price: price.currency),
    ),
)


def litellm_text(prices: Sequence[ModelPrice]) -> str:
    """A JSON object by model, as `litellm.register_model` takes it; each value also stands in the
    `litellm_params` of a deployment.

    Numbers are exact and without an exponent: YAML reads `1e-06` as a text.
    """
    entries = [
        f"  {json.dumps(price.model)}: {{\n"
        f'    "input_cost_per_token": {_per_token(price.input)},\n'
        f'    "output_cost_per_token": {_per_token(price.output)},\n'
        f'    "cache_read_input_token_cost": {_per_token(price.cached)}\n'
        "  }"
        for price in prices
    ]
    return "{\n" + ",\n".join(entries) + "\n}\n" if entries else "{}\n"


def currency_notes(prices: Sequence[ModelPrice]) -> list[str]:
    """That LiteLLM calls another currency dollars."""
    others = sorted({price.currency for price in prices} - {LITELLM_CURRENCY})
    return [
        f"prices are in {currency}: LiteLLM shows what it spends as {LITELLM_CURRENCY}"
        for currency in others
    ]


def _per_token(per_million: Decimal) -> str:
    return trim_zeros(f"{per_million.scaleb(-_MILLION_DIGITS):f}")

"""Prices of models as LiteLLM reads them."""

import json
from decimal import Decimal

from gpuledger_collector.accounting.model_prices import ModelPrice
from gpuledger_collector.export.model_prices import currency_notes, litellm_text


def test_litellm_reads_exact_numbers_without_an_exponent():
    text = litellm_text(
        [
            ModelPrice('q"\n', "a", Decimal("1.964600"), Decimal("0.000001"), Decimal(0), "USD"),
            ModelPrice("r", "a", Decimal(2_000_000), Decimal(1), Decimal("1.5"), "EUR"),
        ]
    )
    assert json.loads(text, parse_float=Decimal) == {
        'q"\n': {
            "input_cost_per_token": Decimal("0.0000019646"),
            "output_cost_per_token": 0,
            "cache_read_input_token_cost": Decimal("0.000000000001"),
        },
        "r": {
            "input_cost_per_token": 2,
            "output_cost_per_token": Decimal("0.0000015"),
            "cache_read_input_token_cost": Decimal("0.000001"),
        },
    }
    assert "e-" not in text.casefold()
    assert json.loads(litellm_text([])) == {}


def test_litellm_calls_every_currency_dollars():
    price = ModelPrice("r", "a", Decimal(2), Decimal(1), Decimal(3), "EUR")
    assert currency_notes([price, price]) == [
        "prices are in EUR: LiteLLM shows what it spends as USD"
    ]

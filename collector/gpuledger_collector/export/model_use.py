"""Models on shared servers that an owner asked, as its statement lists them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.model_use import ModelUse
from gpuledger_collector.export.model_servers import percent, price_text


def use_facts(use: ModelUse) -> Mapping[str, object]:
    """What was asked of a model, for the template, as the page of models says it."""
    return {
        "use": use,
        "prices": [price_text(price) for price in use.prices],
        "coverage": "" if use.coverage is None else percent(use.coverage),
    }

"""Shared servers beside the declared prices of APIs."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger_collector.accounting.api_prices import compare_with_apis
from gpuledger_collector.accounting.inference_lines import InferenceLine, ServerSummary
from gpuledger_collector.storage.billing import inference
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


def add_api_prices(
    connection: Connection, summaries: Iterable[ServerSummary], lines: Iterable[InferenceLine]
) -> tuple[list[ServerSummary], list[str]]:
    """Sums of servers with what their tokens would have cost at an API, and in sentences which have
    no such price.
    """
    prices = inference.API_PRICES.in_force(connection)
    return compare_with_apis(summaries, lines, prices, zones.calendar(connection))

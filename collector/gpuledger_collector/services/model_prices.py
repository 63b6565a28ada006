"""What tokens of each model cost in a period: for gateways that price requests."""

from __future__ import annotations

from gpuledger_collector.accounting.model_prices import HELD, ModelPrices, list_model_prices
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.inference_costs import read_days
from gpuledger_collector.storage.locks import Connection


class UnknownServer(ValueError):
    """No such server answered in the period; the message names those that did."""


def read_model_prices(
    connection: Connection, period: Period, cost: str = HELD, server: str = ""
) -> ModelPrices:
    """Prices of the models that were asked for in a period, and in sentences what has none.

    Raises UnknownServer.
    """
    days = read_days(connection, period)
    names = sorted({day.server for day in days.servers})
    if server and server not in names:
        known = f"; known are {', '.join(names)}" if names else ""
        raise UnknownServer(f"no server {server!r} cost or answered anything then{known}")
    answer = list_model_prices(days.lines, days.servers, cost, server)
    return ModelPrices(answer.prices, [*answer.notes, *days.notes])

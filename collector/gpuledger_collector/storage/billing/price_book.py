"""The price book in force."""

from __future__ import annotations

from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.storage.billing import commitments, locations, prices
from gpuledger_collector.storage.locks import Connection


def current(connection: Connection) -> PriceBook:
    """Prices and purchase choices in force; hours are not cut where attribution rules change."""
    return PriceBook(
        prices.current(connection),
        commitments.CHOICES.in_force(connection),
        locations=locations.current(connection),
    )

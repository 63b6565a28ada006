"""The price book and what is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.storage.billing import commitments, locations, prices
from gpuledger_collector.storage.database import Database


@dataclass(frozen=True, slots=True)
class PriceList:
    """The rates in force, oldest first, commitments and choices; and regions that they name, in
    which no pool stands.
    """

    prices: Sequence[Price]
    commitments: Sequence[Commitment]
    choices: Sequence[PurchaseChoice]
    unknown_regions: Sequence[str]


def list_prices(database: Database) -> PriceList:
    """List what is in force."""
    with database.transaction() as connection:
        return PriceList(
            prices.current(connection),
            commitments.COMMITMENTS.in_force(connection),
            commitments.CHOICES.in_force(connection),
            locations.unknown_regions(connection),
        )

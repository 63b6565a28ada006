"""Who provides which pool, in Postgres: superseded rather than edited."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.providers import PoolProvider, ProviderNames
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.ledger.dated_rows import DatedTable
from gpuledger_collector.storage.locks import Connection

PROVIDERS = DatedTable("pool_provider", PoolProvider, "pool, id")
"""No charge changes by them: exports name them."""


def by_month(connection: Connection, period: Period) -> Mapping[str, Mapping[str, ProviderNames]]:
    """The providers by pool of each month of a period; of a closed month those in force when it was
    closed.
    """
    instants = periods.declarations_at(connection, zones.calendar(connection), period)
    return {
        name: {
            provider.pool: provider.names for provider in PROVIDERS.in_force(connection, closed_ms)
        }
        for name, closed_ms in instants.items()
    }

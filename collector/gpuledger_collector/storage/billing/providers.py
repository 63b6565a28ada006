"""Who provides which pool, in Postgres: superseded rather than edited."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.providers import PoolProvider, ProviderNames
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.ledger import dated_rows, zones
from gpuledger_collector.storage.locks import Connection

_COLUMNS = ("pool", "provider", "publisher")


def current(connection: Connection, at: dt.datetime | None = None) -> list[PoolProvider]:
    """The providers in force, now or at an instant, by pool."""
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM pool_provider WHERE {dated_rows.IN_FORCE} ORDER BY"
        " pool, id",
        {"at": at},
    )
    return [PoolProvider(*row) for row in rows]


def replace(
    connection: Connection, wanted: Sequence[PoolProvider], now: dt.datetime
) -> ImportOutcome:
    """The providers become these. No charge changes: exports name them."""
    rows = [{name: getattr(provider, name) for name in _COLUMNS} for provider in wanted]
    return dated_rows.replace_rows(
        connection, "pool_provider", _COLUMNS, rows, dated_rows.after_closes(connection, now)
    )


def by_month(connection: Connection, period: Period) -> Mapping[str, Mapping[str, ProviderNames]]:
    """The providers by pool of each month of a period; of a closed month those in force when it was
    closed.
    """
    instants = periods.declarations_at(connection, zones.calendar(connection), period)
    return {
        name: {provider.pool: provider.names for provider in current(connection, at)}
        for name, at in instants.items()
    }

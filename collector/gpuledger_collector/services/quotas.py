"""Settles what heavy senders have used of their quotas, for all workers and collectors of one
database.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import quota_use

Uses = Mapping[tuple[str, str], float]
"""Units that a payer has used of a quota, by both names."""


def settle_quotas(
    database: Database, used: Uses, rates: Mapping[str, float], *, expire: bool = False
) -> Uses:
    """Add what this process has admitted, and return what all have.

    `rates`: units a second that flow back, by quota. `expire` deletes buckets that are full again.
    """
    with database.connect() as connection:
        if expire:
            quota_use.expire(connection)
        if not used:
            return {}
        uses = [
            quota_use.Use(payer, quota, units, rates[quota])
            for (payer, quota), units in used.items()
        ]
        settled = quota_use.settle(connection, uses)
    return {(use.payer, use.quota): use.used for use in settled}

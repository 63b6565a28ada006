"""What the ledger charges for some days, by owner: read before and after a decision, it says what
that changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.usage import UNAVAILABLE
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.locks import Connection

Costs = Mapping[tuple[OwnerPath | None, str], int]
"""Micro-units by owner (None: unavailable time) and currency."""


def charged(connection: Connection, days: Sequence[Period]) -> Costs:
    """What owners pay for these days, and what unavailable time costs, with all corrections."""
    columns = "day_ms, owner_id, state, currency, cost_micro"
    levels = ", ".join(f"coalesce({column}, '')" for column in LEVEL_COLUMNS.values())
    rows = connection.execute(
        f"SELECT o.id IS NULL, {levels}, l.currency, sum(l.cost_micro)::bigint FROM (SELECT"
        f" {columns} FROM ledger_day UNION ALL SELECT {columns} FROM correction) l LEFT JOIN owner"
        " o ON o.id = l.owner_id WHERE l.day_ms = ANY(%s) AND l.currency IS NOT NULL AND (o.id IS"
        " NOT NULL OR l.state = %s) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8",
        ([day.start_ms for day in days], UNAVAILABLE),
    )
    return {
        (None if nobody else OwnerPath(*path), currency): micro
        for nobody, *path, currency, micro in rows
    }


def change(
    before: Costs, after: Costs, to: OwnerPath | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Compare two readings: by currency, what the others pay less, and what `to` pays more."""
    loss: dict[str, int] = {}
    gain: dict[str, int] = {}
    for owner, currency in sorted({**before, **after}, key=lambda key: key[1]):
        micro = after.get((owner, currency), 0) - before.get((owner, currency), 0)
        side, sign = (gain, 1) if owner == to else (loss, -1)
        side[currency] = side.get(currency, 0) + sign * micro
    return loss, gain

"""Node costs in Postgres: superseded rather than edited, since charges name the version that they
follow from.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.node_costs import NodeCost
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing.prices import request_dated_days
from gpuledger_collector.storage.ledger.dated_rows import DatedTable
from gpuledger_collector.storage.locks import Connection, Lock

NODE_COSTS = DatedTable(
    "node_cost", NodeCost, "name, pool, node, from_on NULLS FIRST, id", is_read_at_closes=False
)


def list_holding(connection: Connection, day_on: dt.date) -> list[NodeCost]:
    """Read the node costs that hold on a day of the bill."""
    return [cost for cost in NODE_COSTS.in_force(connection) if cost.holds_on(day_on)]


def replace_node_costs(
    connection: Connection, wanted: Sequence[NodeCost], now_ms: int
) -> ImportOutcome:
    """Replace the node costs in force; the days of those that came or went are marked for rating."""
    locks.take(connection, Lock.LEDGER)
    before = NODE_COSTS.in_force(connection)
    outcome = NODE_COSTS.replace(connection, wanted, now_ms)
    different = set(before) ^ set(NODE_COSTS.in_force(connection))
    if not different:
        return outcome
    # Once from the first day to the last: what changed together overlaps.
    starts = [cost.from_on for cost in different if cost.from_on is not None]
    ends = [cost.to_on for cost in different if cost.to_on is not None]
    first = min(starts) if len(starts) == len(different) else None
    last = max(ends) if len(ends) == len(different) else None
    return dataclasses.replace(
        outcome, days_to_recompute=request_dated_days(connection, first, last, now_ms)
    )

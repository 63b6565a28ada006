"""What people declare about shares and codes of costs: shared costs, shares of pools, cost centers
and carbon. No charge changes by them: reports compute and look up.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.cost_centers import CostCenter
from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.storage.ledger.dated_rows import DatedTable
from gpuledger_collector.storage.locks import Connection

_BY_DATE = "from_on NULLS FIRST, id"
SHARED_COSTS = DatedTable("shared_cost", SharedCost, f"name, {_BY_DATE}")
POOL_SHARES = DatedTable("pool_share", PoolShare, f"pool, team, {_BY_DATE}")
COST_CENTERS = DatedTable("cost_center", CostCenter, f"owner, {_BY_DATE}")
CARBON = DatedTable("carbon_intensity", Intensity, f"pool, {_BY_DATE}")


def declared_shares(connection: Connection) -> list[PoolShare]:
    """Read the declared shares in force."""
    return [share for share in POOL_SHARES.in_force(connection) if not share.read_from]


def replace_shares(
    connection: Connection,
    wanted: Sequence[PoolShare],
    now_ms: int,
    read_from: str = "",
    on_row: OnRow = tell_nobody,
) -> ImportOutcome:
    """Replace the shares in force of one scheduler and pool, or the declared ones.

    `on_row` is told how far it is.
    """
    known = POOL_SHARES.in_force(connection)
    others = [share for share in known if share.read_from != read_from]
    outcome = POOL_SHARES.replace(connection, [*others, *wanted], now_ms, on_row)
    return ImportOutcome(outcome.added, outcome.updated, outcome.unchanged - len(others))

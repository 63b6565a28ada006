"""Store the plan of every pool to the end of the quarter each day, for the demand board."""

from __future__ import annotations

from gpuledger_collector.services.capacity_plan import plans_of_pools
from gpuledger_collector.storage.capacity import plans
from gpuledger_collector.storage.database import Database


def store_capacity_plans(database: Database, now_ms: int) -> int:
    """Plan every pool and replace what is stored; return the number of plans."""
    with database.connect() as connection:
        records = {
            priced.plan.pool.name: priced.record() for priced in plans_of_pools(connection, now_ms)
        }
    with database.transaction() as connection:
        plans.replace(connection, records, now_ms)
    return len(records)

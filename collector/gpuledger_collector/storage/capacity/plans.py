"""The latest capacity plan of each pool, for dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from gpuledger_collector.storage.locks import Connection


def pools_planned_since(connection: Connection, since_ms: int) -> frozenset[str]:
    """Return the names of the pools whose plan was made at that instant or later."""
    rows = connection.execute("SELECT pool FROM capacity_plan WHERE made_ms >= %s", (since_ms,))
    return frozenset(pool for (pool,) in rows)


def delete_before(connection: Connection, before_ms: int) -> None:
    """Delete the plans that were made before an instant."""
    connection.execute("DELETE FROM capacity_plan WHERE made_ms < %s", (before_ms,))


def upsert(connection: Connection, plans: Mapping[str, Mapping[str, Any]], now_ms: int) -> None:
    """Store plans by the names of their pools, each in place of an earlier one."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO capacity_plan (pool, made_ms, plan) VALUES (%s, %s, %s) ON CONFLICT (pool) DO"
            " UPDATE SET made_ms = excluded.made_ms, plan = excluded.plan",
            [(pool, now_ms, Jsonb(plan)) for pool, plan in plans.items()],
        )

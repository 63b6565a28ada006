"""The latest capacity plan of each pool, for dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from gpuledger_collector.storage.locks import Connection


def replace(connection: Connection, plans: Mapping[str, Mapping[str, Any]], now_ms: int) -> None:
    """Store the plans by pool in place of all earlier ones, in the caller's transaction."""
    connection.execute("DELETE FROM capacity_plan")
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO capacity_plan (pool, made_ms, plan) VALUES (%s, %s, %s)",
            [(pool, now_ms, Jsonb(plan)) for pool, plan in plans.items()],
        )

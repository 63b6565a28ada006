"""Workloads in Postgres: the facts that attribution looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from gpuledger_collector.accounting.attribution import WorkloadFacts

Connection = psycopg.Connection[tuple[Any, ...]]


def facts(connection: Connection, ids: Sequence[int]) -> dict[int, WorkloadFacts]:
    """Facts of these workloads, by id; pool and node belong to what they hold and are left empty."""
    rows = connection.execute(
        "SELECT id, kind, user_name, account, name, tags FROM workload WHERE id = ANY(%s)", (list(ids),)
    )
    return {
        row[0]: WorkloadFacts(
            id=row[0], kind=row[1], user=row[2], account=row[3], name=row[4], tags=row[5], pool="", node=""
        )
        for row in rows
    }

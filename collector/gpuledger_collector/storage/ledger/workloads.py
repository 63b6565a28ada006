"""Workloads in Postgres: the facts that attribution looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.storage.locks import Connection


def facts(connection: Connection, ids: Sequence[int]) -> dict[int, WorkloadFacts]:
    """What was reported last of these workloads, by id; pool and node belong to what they hold and
    are left empty.
    """
    rows = connection.execute(
        "SELECT id, kind, user_name, account, name, tags, key FROM workload WHERE id = ANY(%s)",
        (list(ids),),
    )
    return {row[0]: _facts(row) for row in rows}


def names(connection: Connection, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The name and the user of workloads as reported last, by key; empty where neither was."""
    rows = connection.execute(
        "SELECT key, name, user_name FROM workload WHERE key = ANY(%s)", (list(keys),)
    )
    return {key: (name or "", user or "") for key, name, user in rows}


def attributes(connection: Connection, ids: Sequence[int]) -> dict[int, WorkloadFacts]:
    """What was reported of workloads, by number of the report; pool and node as above."""
    # OFFSET 0: looked up one by one, for a day's workloads are few of all that there ever were.
    rows = connection.execute(
        "SELECT w.id, w.kind, t.user_name, t.account, t.name, t.tags, w.key, t.id FROM"
        " unnest(%s::bigint[]) AS n (id) CROSS JOIN LATERAL (SELECT * FROM workload_attributes"
        " WHERE id = n.id OFFSET 0) t CROSS JOIN LATERAL (SELECT id, kind, key FROM workload WHERE"
        " id = t.workload_id OFFSET 0) w",
        (list(ids),),
    )
    return {row[7]: _facts(row) for row in rows}


def _facts(row: Sequence[Any]) -> WorkloadFacts:
    number, kind, user, account, name, tags, key = row[:7]
    return WorkloadFacts(
        id=number, kind=kind, user=user, account=account, name=name, tags=tags, key=key
    )

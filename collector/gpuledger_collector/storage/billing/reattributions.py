"""Decisions of disputes in Postgres, as rating honors them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpuledger_collector.accounting.owner_tree import path_of
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reattribution import Reattribution
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, to_object
from gpuledger_common.instants import to_datetime


def read_decisions(connection: Connection, period: Period) -> list[Reattribution]:
    """The decisions about time in the period."""
    # A collector of the version before writes no contested owner: it is the one of the dispute.
    return [
        to_object(Reattribution, row, owner=None if row.owner is None else path_of(row.owner))
        for row in select(
            connection,
            "SELECT r.id, r.workload_id, r.accelerator_id, r.start_ms, r.end_ms, r.state, r.owner, "
            "coalesce(r.contested, d.owner) AS contested FROM reattribution r JOIN dispute d ON"
            " d.id"
            " = r.dispute_id "
            "WHERE r.start_ms < %s AND r.end_ms > %s ORDER BY r.id",
            (period.end_ms, period.start_ms),
        )
    ]


def insert(
    connection: Connection, dispute_id: int, decisions: Sequence[Reattribution], now_ms: int
) -> int:
    """Keep these decisions of a dispute under numbers of their own; how many rated days are to be
    rated again.
    """
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO reattribution (dispute_id, start_ms, end_ms, accelerator_id, workload_id,"
            " state, owner, contested, recorded_at) VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb,"
            " %s::jsonb, %s)",
            [
                (
                    dispute_id,
                    decision.start_ms,
                    decision.end_ms,
                    decision.accelerator_id,
                    decision.workload_id,
                    decision.state,
                    None if decision.owner is None else json.dumps(decision.owner.levels()),
                    json.dumps(dict(decision.contested)),
                    to_datetime(now_ms),
                )
                for decision in decisions
            ],
        )
    return connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT DISTINCT p.day_ms FROM conservation_check p JOIN"
        " reattribution r ON r.start_ms < p.until_ms AND r.end_ms > p.day_ms WHERE r.dispute_id"
        " = %s",
        (dispute_id,),
    ).rowcount

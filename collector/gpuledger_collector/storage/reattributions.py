"""Decisions of disputes in Postgres, as rating honours them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import psycopg

from gpuledger_collector.accounting.disputes import Remedy
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reattribution import Key, Reattribution
from gpuledger_collector.accounting.tags import path_of
from gpuledger_collector.accounting.usage import HELD, UNAVAILABLE

Connection = psycopg.Connection[tuple[Any, ...]]


def of(connection: Connection, period: Period) -> list[Reattribution]:
    """The decisions about time in the period."""
    rows = connection.execute(
        "SELECT id, workload_id, accelerator_id, start_ms, end_ms, state, owner FROM reattribution "
        "WHERE start_ms < %s AND end_ms > %s ORDER BY id",
        (period.end_ms, period.start_ms),
    )
    return [
        Reattribution(number, workload, accelerator, start, end, state, None if owner is None else path_of(owner))
        for number, workload, accelerator, start, end, state, owner in rows
    ]


def add(
    connection: Connection, dispute_id: int, remedy: Remedy, spans: Sequence[tuple[Key, Period]], now: dt.datetime
) -> int:
    """Decide these spans; how many rated days are to be rated again for it."""
    owner = None if remedy.owner is None else json.dumps(dict(remedy.owner))
    state = UNAVAILABLE if owner is None else HELD
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO reattribution (dispute_id, start_ms, end_ms, accelerator_id, workload_id, state, owner, "
            "recorded_at) VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s)",
            [
                (dispute_id, span.start_ms, span.end_ms, accelerator_id, workload_id, state, owner, now)
                for (workload_id, accelerator_id), span in spans
            ],
        )
    return connection.execute(
        "INSERT INTO dirty_day (day_ms) SELECT DISTINCT p.day_ms FROM day_proof p JOIN reattribution r "
        "ON r.start_ms < p.until_ms AND r.end_ms > p.day_ms WHERE r.dispute_id = %s",
        (dispute_id,),
    ).rowcount

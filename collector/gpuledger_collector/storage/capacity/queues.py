"""Readings of queues in Postgres: one row for a source and an instant, what waits summed by whose and where it is.

Beside what waits stands its sum by pool, because weeks of it are read at every question for capacity. `summed_at` is
the `received_at` of the reading that was summed: where it is another one, or none, an older collector wrote the reading
and the sums do not count. They can always be made again of what waits.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage.capacity.queue_rows import QueueRow
from gpuledger_collector.storage.ledger.rows import ImportOutcome

Connection = psycopg.Connection[tuple[Any, ...]]
KEEP_MS = 400 * DAY_MS
SUMMED_DAYS = 60
"""How far back missing sums are made: nothing that is asked all the time looks back further."""


def summed_by(name: str) -> str:
    """SQL for `names`, what a reading's items have under this name, and `micro`, the GPUs of each in millionths."""
    return f"""SELECT coalesce(array_agg(name ORDER BY name), '{{}}') AS names,
            coalesce(array_agg(micro ORDER BY name), '{{}}') AS micro
        FROM (SELECT coalesce(item->>'{name}', '') AS name,
                coalesce(sum((item->>'gpu_micro')::bigint), 0)::bigint AS micro
            FROM jsonb_array_elements(CASE jsonb_typeof(waiting) WHEN 'array' THEN waiting ELSE '[]' END) AS item
            GROUP BY 1) AS items"""


_ADD = f"""INSERT INTO queue_reading AS old
        (source, at_ms, workloads, gpu_micro, received_at, waiting, pools, pool_gpu_micro, summed_at)
    SELECT read.*, summed.*, read.received_at
    FROM (SELECT %s::text, %s::bigint, %s::int, %s::bigint, %s::timestamptz AS received_at,
            %s::jsonb AS waiting) AS read, LATERAL ({summed_by("pool")}) AS summed
    ON CONFLICT (source, at_ms) DO UPDATE SET workloads = excluded.workloads, gpu_micro = excluded.gpu_micro,
        received_at = excluded.received_at, waiting = excluded.waiting, pools = excluded.pools,
        pool_gpu_micro = excluded.pool_gpu_micro, summed_at = excluded.summed_at
    WHERE old.waiting IS DISTINCT FROM excluded.waiting RETURNING xmax = 0"""


def add(connection: Connection, rows: Sequence[QueueRow], now: dt.datetime) -> ImportOutcome:
    """Keep these readings; the same again changes nothing, another of the same source and instant replaces it.

    Commits nothing.
    """
    added = updated = 0
    for row in rows:
        sums = _summed(row)
        found = connection.execute(
            _ADD,
            (row.source, row.at_ms, len(row.waiting), sum(one.gpu_micro for one in row.waiting), now, json.dumps(sums)),
        ).fetchone()
        added += found is not None and bool(found[0])
        updated += found is not None and not found[0]
    return ImportOutcome(added, updated, len(rows) - added - updated)


def sum_missing(connection: Connection, now_ms: int) -> int:
    """Make the sums of readings that have none, of the last SUMMED_DAYS, a day at a time; how many were made.

    On a connection that commits by itself no lock is held for longer than a day takes.
    """
    count = 0
    today_ms = now_ms - now_ms % DAY_MS
    for day_ms in range(today_ms, today_ms - SUMMED_DAYS * DAY_MS, -DAY_MS):
        made = connection.execute(
            f"UPDATE queue_reading SET (pools, pool_gpu_micro) = ({summed_by('pool')}), summed_at = received_at "
            "WHERE at_ms >= %s AND at_ms < %s AND summed_at IS DISTINCT FROM received_at",
            (day_ms, day_ms + DAY_MS),
        )
        count += made.rowcount
    return count


def forget_old(connection: Connection, now_ms: int) -> None:
    """Let readings go that are older than KEEP_MS: a scheduler's queue may be read every minute."""
    connection.execute("DELETE FROM queue_reading WHERE at_ms < %s", (now_ms - KEEP_MS,))


def _summed(row: QueueRow) -> list[dict[str, object]]:
    sums: dict[tuple[str, ...], list[int]] = {}
    oldest: dict[tuple[str, ...], int | None] = {}
    for one in row.waiting:
        key = (one.pool, one.gpu_model, one.team, one.user, one.account)
        entry = sums.setdefault(key, [0, 0])
        entry[0] += one.gpu_micro
        entry[1] += 1
        known = [at for at in (oldest.get(key), one.submitted_ms) if at is not None]
        oldest[key] = min(known, default=None)
    return [
        {
            "pool": key[0],
            "gpu_model": key[1],
            "team": key[2],
            "user": key[3],
            "account": key[4],
            "gpu_micro": micro,
            "workloads": workloads,
            "oldest_ms": oldest[key],
        }
        for key, (micro, workloads) in sorted(sums.items())
    ]

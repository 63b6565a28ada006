"""Readings of queues in Postgres: one row for a source and an instant, what waits summed by whose and where it is."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.ports import ImportOutcome
from gpuledger_collector.accounting.queue import QueueRow

Connection = psycopg.Connection[tuple[Any, ...]]
KEEP_MS = 400 * DAY_MS


def add(connection: Connection, rows: Sequence[QueueRow], now: dt.datetime) -> ImportOutcome:
    """Keep these readings; the same again changes nothing, another of the same source and instant replaces it.

    Commits nothing.
    """
    added = updated = 0
    for row in rows:
        sums = _summed(row)
        found = connection.execute(
            "INSERT INTO queue_reading AS old (source, at_ms, workloads, gpu_micro, waiting, received_at) "
            "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (source, at_ms) DO UPDATE SET workloads = excluded.workloads, "
            "gpu_micro = excluded.gpu_micro, waiting = excluded.waiting, received_at = excluded.received_at "
            "WHERE old.waiting IS DISTINCT FROM excluded.waiting RETURNING xmax = 0",
            (row.source, row.at_ms, len(row.waiting), sum(one.gpu_micro for one in row.waiting), json.dumps(sums), now),
        ).fetchone()
        added += found is not None and bool(found[0])
        updated += found is not None and not found[0]
    return ImportOutcome(added, updated, len(rows) - added - updated)


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
        {"pool": key[0], "gpu_model": key[1], "team": key[2], "user": key[3], "account": key[4], "gpu_micro": micro,
         "workloads": workloads, "oldest_ms": oldest[key]}
        for key, (micro, workloads) in sorted(sums.items())
    ]  # fmt: skip

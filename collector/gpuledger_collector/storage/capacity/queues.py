"""Queue readings: one row for a source and an instant, with the waiting GPUs summed by owner and
place.

A row also has sums by pool, because every question about capacity reads weeks of them. `summed_at`
is the `received_at` of the reading that was summed; when they differ the sums are outdated, and are
computed again from the items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpuledger_collector.accounting.import_progress import OnRow, RowStages, tell_nobody
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.insight.queue_rows import QueueRow
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_value
from gpuledger_common.instants import to_datetime

KEEP_MS = 400 * DAY_MS
SUMMED_DAYS = 60
"""How far back missing sums are computed: no frequent query reads further back."""


def summed_by(name: str, of_pool: bool = False) -> str:
    """SQL for `names`, what a reading's items have under this name, and `micro`, the GPUs of each
    in millionths; of the items of all pools, or of that of the parameter `pool`.
    """
    items = "WHERE coalesce(item->>'pool', '') = %(pool)s" if of_pool else ""
    return f"""SELECT coalesce(array_agg(name ORDER BY name), '{{}}') AS names,
            coalesce(array_agg(micro ORDER BY name), '{{}}') AS micro
        FROM (SELECT coalesce(item->>'{name}', '') AS name,
                coalesce(sum((item->>'gpu_micro')::bigint), 0)::bigint AS micro
            FROM jsonb_array_elements(CASE jsonb_typeof(waiting) WHEN 'array' THEN waiting ELSE '[]' END) AS item
            {items} GROUP BY 1) AS items"""


_ADD = f"""INSERT INTO queue_reading AS old
        (source, at_ms, workloads, gpu_micro, received_at, waiting, pools, pool_gpu_micro, summed_at)
    SELECT read.*, summed.*, read.received_at
    FROM (SELECT %s::text, %s::bigint, %s::int, %s::bigint, %s::timestamptz AS received_at,
            %s::jsonb AS waiting) AS read, LATERAL ({summed_by("pool")}) AS summed
    ON CONFLICT (source, at_ms) DO UPDATE SET workloads = excluded.workloads, gpu_micro = excluded.gpu_micro,
        received_at = excluded.received_at, waiting = excluded.waiting, pools = excluded.pools,
        pool_gpu_micro = excluded.pool_gpu_micro, summed_at = excluded.summed_at
    WHERE old.waiting IS DISTINCT FROM excluded.waiting RETURNING xmax = 0"""


def add(
    connection: Connection, rows: Sequence[QueueRow], now_ms: int, on_row: OnRow = tell_nobody
) -> ImportOutcome:
    """Store readings; one of the same source and instant is replaced. Commits nothing.

    `on_row` is told how far it is.
    """
    stages = RowStages(rows, 1, on_row)
    outcomes = [upsert(connection, row, row.sums_json(), now_ms) for row in stages.one_by_one()]
    return ImportOutcome(
        added=outcomes.count("added"),
        updated=outcomes.count("updated"),
        unchanged=outcomes.count("unchanged"),
    )


def upsert(
    connection: Connection, row: QueueRow, sums: str, now_ms: int
) -> Literal["added", "updated", "unchanged"]:
    """Store a reading with its sums, as `QueueRow.sums_json` returns them. Commits nothing."""
    gpu_micro = sum(item.gpu_micro for item in row.waiting)
    values = (row.source, row.at_ms, len(row.waiting), gpu_micro, to_datetime(now_ms), sums)
    is_new = select_value(connection, _ADD, values)
    if is_new is None:
        return "unchanged"
    return "added" if is_new else "updated"


def sum_missing(connection: Connection, now_ms: int) -> int:
    """Compute the missing sums of readings of the last SUMMED_DAYS; return how many.

    In autocommit mode each day is a transaction, so that no lock is held for longer than a day
    takes.
    """
    count = 0
    today_ms = now_ms - now_ms % DAY_MS
    for day_ms in range(today_ms, today_ms - SUMMED_DAYS * DAY_MS, -DAY_MS):
        result = connection.execute(
            f"UPDATE queue_reading SET (pools, pool_gpu_micro) = ({summed_by('pool')}), summed_at ="
            " received_at WHERE at_ms >= %s AND at_ms < %s AND summed_at IS DISTINCT FROM"
            " received_at",
            (day_ms, day_ms + DAY_MS),
        )
        count += result.rowcount
    return count


def expire(connection: Connection, now_ms: int) -> None:
    """Delete readings older than KEEP_MS: a queue may be read every minute."""
    connection.execute("DELETE FROM queue_reading WHERE at_ms < %s", (now_ms - KEEP_MS,))


def pools_with_capacity(connection: Connection, period: Period) -> set[str]:
    """Names of the pools that had an accelerator in the period."""
    return {
        row.pool
        for row in select(
            connection,
            "SELECT DISTINCT pool FROM capacity WHERE in_ms < %s AND (out_ms IS NULL OR out_ms >"
            " %s)",
            (period.end_ms, period.start_ms),
        )
    }


def waiting_by_team(
    connection: Connection, period: Period, step_ms: int
) -> dict[int, dict[tuple[str, str], int]]:
    """Read the GPUs waited for, in millionths, by step, pool and team; a step without a valid
    reading is absent.

    A step takes the newest reading of each source of the hour before its end.
    """
    rows = select(
        connection,
        """
        WITH newest AS (
            SELECT DISTINCT ON (q.source, step) step, q.waiting FROM queue_reading q,
                generate_series(q.at_ms / %(step)s * %(step)s, q.at_ms + %(valid)s - 1, %(step)s) AS step
            WHERE q.at_ms >= %(start)s - %(valid)s AND q.at_ms < %(end)s AND step >= %(start)s AND step < %(end)s
            ORDER BY q.source, step, q.at_ms DESC
        )
        SELECT step, coalesce(item->>'pool', '') AS pool, coalesce(item->>'team', '') AS team,
            coalesce(sum((item->>'gpu_micro')::bigint), 0)::bigint AS micro
        FROM newest LEFT JOIN LATERAL
            jsonb_array_elements(CASE jsonb_typeof(waiting) WHEN 'array' THEN waiting ELSE '[]' END) item ON true
        GROUP BY 1, 2, 3
        """,
        {"step": step_ms, "start": period.start_ms, "end": period.end_ms, "valid": HOUR_MS},
    )
    waiting: dict[int, dict[tuple[str, str], int]] = {}
    for row in rows:
        waiting.setdefault(row.step, {})[row.pool, row.team] = row.micro
    return waiting

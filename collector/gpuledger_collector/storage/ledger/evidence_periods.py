"""From when to when evidence says that somebody held an accelerator, or that nobody did: to the
second, while charges speak of whole hours.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.evidence_periods import EvidencePeriod
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as, select_row
from gpuledger_collector.storage.telemetry import usage_evidence

PAUSE_MS = 60_000
"""Evidence that is less apart is one period: agents push by the minute, and start anew."""
_INTERVALS = usage_evidence.overlapping("%(start)s", "%(end)s")


def list_periods(
    connection: Connection, accelerator_ids: Sequence[int], period: Period
) -> list[EvidencePeriod]:
    """List what evidence says of some accelerators, each holder and state by itself, by its begin."""
    return select_as(
        connection,
        EvidencePeriod,
        f"""
        WITH s AS MATERIALIZED (
            SELECT accelerator_id, workload_id, state, start_ms, end_ms FROM {_INTERVALS} AS evidence
            WHERE accelerator_id = ANY(%(accelerators)s) AND end_ms > %(start)s
        ), marked AS (
            SELECT s.*, coalesce(start_ms > max(end_ms) OVER before + {PAUSE_MS}, true) AS is_first FROM s
            WINDOW before AS (PARTITION BY accelerator_id, workload_id, state ORDER BY start_ms, end_ms
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        ), numbered AS (
            SELECT marked.*, count(*) FILTER (WHERE is_first) OVER (
                PARTITION BY accelerator_id, workload_id, state ORDER BY start_ms, end_ms) AS number FROM marked
        ), joined AS (
            SELECT accelerator_id, workload_id, state, min(start_ms) AS start_ms, max(end_ms) AS end_ms
            FROM numbered GROUP BY accelerator_id, workload_id, state, number
        )
        SELECT a.uuid, coalesce(w.key, '') AS workload, j.state, j.start_ms, j.end_ms
        FROM joined j JOIN accelerator a ON a.id = j.accelerator_id
        LEFT JOIN workload w ON w.id = j.workload_id ORDER BY j.start_ms, a.uuid
        """,
        {
            "accelerators": list(accelerator_ids),
            "start": period.start_ms,
            "end": period.end_ms,
        },
    )


def extent_of_workload(
    connection: Connection, workload_id: int, accelerator_ids: Sequence[int], period: Period
) -> Period | None:
    """From when to when evidence, or records that were imported, say that a workload held anything
    in a period; None: they say nothing.
    """
    row = select_row(
        connection,
        f"""
        WITH s AS MATERIALIZED (
            SELECT start_ms, end_ms FROM {_INTERVALS} AS evidence
            WHERE accelerator_id = ANY(%(accelerators)s) AND workload_id = %(workload)s AND state = 'held'
                AND end_ms > %(start)s
        )
        SELECT min(start_ms) AS start_ms, max(end_ms) AS end_ms FROM (
            SELECT start_ms, end_ms FROM s
            UNION ALL SELECT start_ms, coalesce(end_ms, %(end)s) FROM imported_usage
            WHERE workload_id = %(workload)s AND start_ms < %(end)s AND coalesce(end_ms, %(end)s) > %(start)s
        ) AS known
        """,
        {
            "accelerators": list(accelerator_ids),
            "workload": workload_id,
            "start": period.start_ms,
            "end": period.end_ms,
        },
    )
    return None if row.start_ms is None else Period(row.start_ms, row.end_ms).clip(period)

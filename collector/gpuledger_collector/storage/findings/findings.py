"""Findings: written by the detectors, read by commands, pages and mails."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from gpuledger_collector.insight.findings import Finding, NamedFinding
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import columns_of, select_as, select_number

_COLUMNS = columns_of(Finding)
_NAMES = _COLUMNS.split(", ")


def upsert(connection: Connection, findings: Iterable[Finding]) -> int:
    """Insert findings, or replace those with the same key except for when they were opened; return
    how many.
    """
    updates = ", ".join(
        f"{name} = excluded.{name}" for name in _NAMES if name not in {"key", "opened_ms"}
    )
    rows = [_row(finding) for finding in findings]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO finding ({_COLUMNS}) VALUES ({', '.join(['%s'] * len(_NAMES))}) "
            f"ON CONFLICT (key) DO UPDATE SET {updates}",
            rows,
        )
    return len(rows)


def _row(finding: Finding) -> tuple[object, ...]:
    cells = [getattr(finding, name) for name in _NAMES]
    return tuple(json.dumps(cell) if isinstance(cell, Mapping) else cell for cell in cells)


def overlapping(
    connection: Connection,
    kind: str,
    start_ms: int,
    end_ms: int,
    accelerator_ids: Sequence[int] | None = None,
) -> list[Finding]:
    """Findings of a kind that were seen in the period or are ongoing, by start; of these
    accelerators, or all of them.
    """
    return select_as(
        connection,
        Finding,
        f"SELECT {_COLUMNS} FROM finding WHERE kind = %(kind)s AND since_ms < %(end)s"
        " AND (resolved_ms IS NULL OR until_ms >= %(start)s) AND (%(ids)s::bigint[] IS NULL OR"
        " accelerator_id = ANY(%(ids)s)) ORDER BY since_ms, key",
        {"kind": kind, "start": start_ms, "end": end_ms, "ids": accelerator_ids},
    )


def of_workload(connection: Connection, workload_id: int) -> list[Finding]:
    """Idle findings of a workload, by start."""
    return select_as(
        connection,
        Finding,
        f"SELECT {_COLUMNS} FROM finding WHERE kind = 'idle' AND workload_id = %s "
        "ORDER BY since_ms, key",
        (workload_id,),
    )


def drop(connection: Connection, keys: Sequence[str]) -> None:
    """Delete findings that a new run of their detector no longer sees."""
    connection.execute("DELETE FROM finding WHERE key = ANY(%s)", (list(keys),))


def progress(connection: Connection, kind: str) -> int | None:
    """Up to when the detector of this kind has run (unix ms)."""
    return select_number(
        connection, "SELECT until_ms FROM finding_progress WHERE kind = %s", (kind,)
    )


def set_progress(connection: Connection, kind: str, until_ms: int) -> None:
    """Record up to when the detector of this kind has run."""
    connection.execute(
        "INSERT INTO finding_progress (kind, until_ms) VALUES (%s, %s) "
        "ON CONFLICT (kind) DO UPDATE SET until_ms = excluded.until_ms",
        (kind, until_ms),
    )


_NAMED = f"""
    SELECT {", ".join(f"f.{name}" for name in _NAMES)}, a.model, a.gpu_index, a.gpu_micro, w.external_id AS workload,
        w.name AS workload_name, w.user_name, w.key AS workload_key, a.health, a.health_cause
    FROM finding f LEFT JOIN accelerator a ON a.id = f.accelerator_id LEFT JOIN workload w ON w.id = f.workload_id
    WHERE f.kind = %s AND f.since_ms < %s AND (f.resolved_ms IS NULL OR f.until_ms > %s)
    ORDER BY (f.resolved_ms IS NULL) DESC, f.cost_micro DESC NULLS LAST, f.key
"""


def list_named(connection: Connection, kind: str, start_ms: int, end_ms: int) -> list[NamedFinding]:
    """Findings of a kind in a period with readable names, ongoing ones first, then by falling cost."""
    return select_as(connection, NamedFinding, _NAMED, (kind, end_ms, start_ms))

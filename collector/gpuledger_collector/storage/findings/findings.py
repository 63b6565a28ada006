"""Findings: written by the detectors, read by commands, pages and mails."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from gpuledger_collector.accounting.period import HOUR_MS
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


def _late(kind: str) -> str:
    return f"{kind}_late"


def _again(kind: str) -> str:
    return f"{kind}_again"


def _changes(kind: str) -> str:
    return f"{kind}_changes"


def late_evidence(connection: Connection, kind: str) -> int | None:
    """Start of the first hour that got evidence after the detector of this kind had passed it, and
    that it has not searched again yet (unix ms).
    """
    return select_number(
        connection,
        "SELECT min(until_ms) FROM finding_progress WHERE kind IN (%s, %s)",
        (_late(kind), _again(kind)),
    )


def take_late_evidence(connection: Connection, kind: str) -> int | None:
    """Begin to search again, also what an interrupted search has left: the start of the first hour
    (unix ms).

    What arrives from now on is noted apart, so that clearing this does not forget it.
    """
    connection.execute(
        "WITH late AS (DELETE FROM finding_progress WHERE kind = %s RETURNING until_ms) INSERT INTO"
        " finding_progress AS old (kind, until_ms) SELECT %s, until_ms FROM late ON CONFLICT (kind)"
        " DO UPDATE SET until_ms = least(old.until_ms, excluded.until_ms)",
        (_late(kind), _again(kind)),
    )
    return progress(connection, _again(kind))


def note_late_evidence(connection: Connection, kind: str, hour_ms: int) -> None:
    """Record that evidence of an hour changed, if the detector of this kind has passed that hour:
    it goes back.
    """
    connection.execute(
        "INSERT INTO finding_progress AS old (kind, until_ms) SELECT %s, %s WHERE EXISTS (SELECT"
        " FROM finding_progress WHERE kind = %s AND until_ms >= %s) ON CONFLICT (kind) DO UPDATE"
        " SET until_ms = excluded.until_ms WHERE old.until_ms > excluded.until_ms",
        (_late(kind), hour_ms, kind, hour_ms + HOUR_MS),
    )
    connection.execute(
        "INSERT INTO finding_progress AS old (kind, until_ms) SELECT %s, 1 WHERE EXISTS (SELECT"
        " FROM finding_progress WHERE kind = %s AND until_ms >= %s) ON CONFLICT (kind) DO UPDATE"
        " SET until_ms = old.until_ms + 1",
        (_changes(kind), kind, hour_ms + HOUR_MS),
    )


def late_changes(connection: Connection, kind: str) -> int:
    """How often evidence was late for the detector of this kind: what it has read of past hours
    holds as long as this number.
    """
    return progress(connection, _changes(kind)) or 0


def clear_late_evidence(connection: Connection, kind: str, hour_ms: int) -> None:
    """Record that everything from an hour on was searched again."""
    connection.execute(
        "DELETE FROM finding_progress WHERE kind = %s AND until_ms = %s", (_again(kind), hour_ms)
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

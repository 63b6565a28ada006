"""The queue CSV: `at,workload_id,gpus`, a row for each workload that waited at an instant.

Optional: pool, gpu_model, team, user, account, submitted, source. All rows of one source and instant are its whole
queue then; a row without a workload says that the queue was read and nothing waited.
"""

from __future__ import annotations

from pathlib import Path

from gpuledger_collector.config.table import (
    DECLARED,
    Instants,
    Parsed,
    RowReader,
    missing_columns,
    read_text,
    rows_of,
    unknown_columns,
)
from gpuledger_collector.storage.capacity.queue_rows import QueueRow, WaitingRow

REQUIRED = ("at", "workload_id", "gpus")
TEXTS = ("pool", "gpu_model", "team", "user", "account")
OPTIONAL = (*TEXTS, "submitted", "source")
MOST_GPUS = 1_000_000
MICRO = 1_000_000


def read_queue(path: Path, source: str = "file", pool: str = "", instants: Instants = DECLARED) -> Parsed[QueueRow]:
    """Every reading of the file, or the problems of all bad rows. `source`, `pool`: of rows that name none."""
    parsed: Parsed[QueueRow] = Parsed()
    text, parsed.problems = read_text(path)
    if parsed.problems:
        return parsed
    header, rows = rows_of(path, text, parsed.problems, instants)
    parsed.problems.extend(missing_columns(path, header, REQUIRED))
    if parsed.problems:
        return parsed
    parsed.notes.extend(unknown_columns(header, (*REQUIRED, *OPTIONAL)))
    found: dict[tuple[str, int], dict[str, WaitingRow]] = {}
    for row in rows:
        at_ms = row.instant("at", required=True)
        name, waiting = row.text("source") or source, _waiting(row, pool)
        if row.bad or at_ms is None:
            continue
        queue = found.setdefault((name, at_ms), {})
        if waiting is not None and queue.setdefault(waiting.workload_id, waiting) != waiting:
            row.refuse(
                "workload_id", "double", f"{waiting.workload_id} stands twice in this reading, with other values"
            )
    parsed.rows = [QueueRow(name, at_ms, tuple(queue.values())) for (name, at_ms), queue in sorted(found.items())]
    return parsed


def _waiting(row: RowReader, pool: str) -> WaitingRow | None:
    workload, gpus = row.text("workload_id"), row.decimal("gpus", digits=6, most=MOST_GPUS)
    submitted_ms = row.instant("submitted")
    texts = {name: row.text(name) for name in TEXTS}
    if not workload:
        if gpus:
            row.refuse("workload_id", "empty", "is empty, and somebody waits for GPUs")
        return None
    if not gpus and not row.bad:
        row.refuse("gpus", "out_of_range", "must be more than nothing")
    if row.bad or gpus is None:
        return None
    return WaitingRow(
        workload, int(gpus * MICRO), **{**texts, "pool": texts["pool"] or pool}, submitted_ms=submitted_ms
    )

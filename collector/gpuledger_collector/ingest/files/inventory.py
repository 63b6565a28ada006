"""The inventory CSV: `node,uuid,gpu_model,pool,in_at,out_at`, a row for each stay of an accelerator."""

from __future__ import annotations

from pathlib import Path

from gpuledger_collector.accounting.ports import InventoryRow
from gpuledger_collector.config.table import (
    DECLARED,
    LATEST_MS,
    Instants,
    Parsed,
    RowReader,
    missing_columns,
    read_text,
    rows_of,
    unknown_columns,
)

COLUMNS = ("node", "uuid", "gpu_model", "pool", "in_at", "out_at")


def read_inventory(path: Path, instants: Instants = DECLARED) -> Parsed[InventoryRow]:
    """Every stay of the file, or the problems of all bad rows; stays of one accelerator may not overlap."""
    parsed: Parsed[InventoryRow] = Parsed()
    text, parsed.problems = read_text(path)
    if parsed.problems:
        return parsed
    header, rows = rows_of(path, text, parsed.problems, instants)
    parsed.problems.extend(missing_columns(path, header, COLUMNS))
    if parsed.problems:
        return parsed
    parsed.notes.extend(unknown_columns(header, COLUMNS))
    placements: dict[str, list[InventoryRow]] = {}
    for row in rows:
        placement = _placement(row)
        if placement is None:
            continue
        others = placements.setdefault(placement.uuid, [])
        if any(_same(placement, other) for other in others):
            continue
        clash = next((other for other in others if _overlap(placement, other)), None)
        if clash is not None:
            row.refuse("in_at", "overlap", f"{placement.uuid} is also there by line {clash.line} at that time")
            continue
        others.append(placement)
        parsed.rows.append(placement)
    return parsed


def _placement(row: RowReader) -> InventoryRow | None:
    in_ms = row.instant("in_at", required=True, dates=True)
    out_ms = row.instant("out_at", dates=True)
    if in_ms is not None and out_ms is not None and out_ms <= in_ms:
        row.refuse("out_at", "order", "does not lie after in_at")
    texts = {name: row.name(name, required=name in ("node", "uuid")) for name in COLUMNS[:4]}
    if row.bad or in_ms is None:
        return None
    return InventoryRow(
        row.line, texts["node"], texts["uuid"], texts["gpu_model"], texts["pool"] or "default", in_ms, out_ms
    )


def _same(a: InventoryRow, b: InventoryRow) -> bool:
    return (a.node, a.uuid, a.gpu_model, a.pool, a.in_ms, a.out_ms) == (
        b.node,
        b.uuid,
        b.gpu_model,
        b.pool,
        b.in_ms,
        b.out_ms,
    )


def _overlap(a: InventoryRow, b: InventoryRow) -> bool:
    return a.in_ms < (b.out_ms or LATEST_MS) and b.in_ms < (a.out_ms or LATEST_MS)

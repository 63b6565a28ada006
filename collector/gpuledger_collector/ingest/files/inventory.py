"""The inventory CSV: `node,uuid,gpu_model,pool,in_at,out_at`, a row for each placement of an
accelerator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.ledger_rows import InventoryRow
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import Parsed, read_rows
from gpuledger_collector.config.fields import (
    DECLARED,
    LATEST_MS,
    DatedInstant,
    Instants,
    Name,
    end_after,
)
from gpuledger_collector.config.model import Row


class _Placement(Row):
    node: Name
    uuid: Name
    gpu_model: Name = ""
    pool: Name = "default"
    in_ms: DatedInstant = Field(alias="in_at")
    out_ms: Annotated[DatedInstant | None, end_after("in_ms", "in_at")] = Field(
        None, alias="out_at"
    )

    blank_columns = ("gpu_model", "pool", "out_at")


def read_inventory(
    path: Path, instants: Instants = DECLARED, on_line: OnRow = tell_nobody
) -> Parsed[InventoryRow]:
    """Every placement of the file, or the problems of all bad rows; those of one accelerator may
    not overlap.
    """
    parsed: Parsed[InventoryRow] = Parsed()
    placements: dict[str, list[tuple[_Placement, int]]] = {}
    for record, placement in read_rows(path, _Placement, parsed, instants, on_line):
        others = placements.setdefault(placement.uuid, [])
        if any(placement == other for other, _ in others):
            continue  # a repeated row
        line = next((line for other, line in others if _overlap(placement, other)), None)
        if line is not None:
            message = f"{placement.uuid} is also there by line {line} at that time"
            parsed.problems.append(Problem("overlap", f"{record.source}:in_at", message))
            continue
        others.append((placement, record.line))
        parsed.rows.append(InventoryRow(record.line, **vars(placement)))
    return parsed


def _overlap(a: _Placement, b: _Placement) -> bool:
    return a.in_ms < (b.out_ms or LATEST_MS) and b.in_ms < (a.out_ms or LATEST_MS)

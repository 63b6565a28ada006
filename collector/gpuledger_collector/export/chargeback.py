"""The chargeback as a table for a terminal, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from gpuledger_collector.accounting.chargeback import Report, Row
from gpuledger_collector.accounting.period import Period, format_instant
from gpuledger_collector.export.cells import MEASURES, header, measures, neutral


def as_csv(report: Report) -> str:
    """Rows as CSV: the `by` columns, then gpu_hours,gpu_hours_idle,cost,cost_idle,currency. LF, UTF-8, no total."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header(report.by))
    for row in report.rows:
        writer.writerow([*(neutral(key) for key in row.keys), *measures(row)])
    return out.getvalue()


def as_json(report: Report, period: Period, notes: Sequence[str]) -> str:
    """Rows and totals as JSON: amounts as printed (text), and exact (`gpu_ns`, `cost_micro`, integers)."""
    content = {
        "from": format_instant(period.start_ms),
        "to": format_instant(period.end_ms),
        "by": list(report.by),
        "rows": [_object(row, report.by) for row in report.rows],
        "totals": [_object(row, ()) for row in report.totals],
        "notes": list(notes),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _object(row: Row, by: Sequence[str]) -> dict[str, object]:
    amounts = zip(MEASURES, (text or None for text in measures(row)), strict=True)
    return {
        **dict(zip(by, row.keys, strict=False)),
        **dict(amounts),
        "gpu_ns": row.gpu_ns,
        "idle_gpu_ns": row.idle_ns,
        "cost_micro": row.cost_micro,
        "idle_cost_micro": row.idle_cost_micro,
    }


def as_table(report: Report, width: int | None) -> str:
    """A table for a terminal of `width` columns (None: as wide as it needs); totals last, one per currency."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in report.by:
        table.add_column(name, overflow="fold")
    for name in MEASURES:
        table.add_column(name, justify="left" if name == "currency" else "right", no_wrap=True)
    for row in report.rows:
        table.add_row(*(Text(cell) for cell in [*row.keys, *measures(row)]))
    table.add_section()
    for total in report.totals:
        name = "total" if total.currency is not None else "unpriced"
        table.add_row(*(Text(cell) for cell in [name, *[""] * (len(report.by) - 1), *measures(total)]))
    out = io.StringIO()
    Console(file=out, width=width or 400, color_system=None, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

"""gpuledger accelerators: what each accelerator did."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import Config, Dsn, database, period_of
from gpuledger_collector.cli.terminal import print_table

if TYPE_CHECKING:
    from gpuledger_collector.storage.telemetry.activity import Activity

COLUMNS = (
    "node",
    "index",
    "uuid",
    "model",
    "mig_instance",
    "pool",
    "held_h",
    "busy_h",
    "idle_h",
    "unknown_h",
    "unallocated_h",
    "unavailable_h",
    "busy_percent",
    "energy_kwh",
)


class Order(enum.StrEnum):
    """How the accelerators are sorted."""

    node = "node"
    busiest = "busiest"
    idlest = "idlest"


class Shape(enum.StrEnum):
    """How they are printed."""

    table = "table"
    csv = "csv"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger accelerators`."""
    example = "Example: gpuledger accelerators --from 2026-10-01 --to 2026-11-01 --sort idlest --top 10"
    root.command(epilog=example)(accelerators)


def accelerators(
    start: str = typer.Option(..., "--from", metavar="DATE", help="First day, included."),
    end: str = typer.Option(..., "--to", metavar="DATE", help="Last day, not included."),
    sort: Order = typer.Option(Order.node, "--sort", help="Order of the rows."),
    top: int = typer.Option(0, "--top", min=0, help="Print only the first N; 0 prints all."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List accelerators with their held, busy, idle and unallocated hours (held and known activity only)."""
    from gpuledger_collector.storage.telemetry.activity import activity

    period = period_of(None, start, end)
    with database(dsn, config) as opened, opened.connect() as connection:
        found = activity(connection, period.start_ms, period.end_ms)
    chosen = ordered(found, sort)
    emit(chosen[:top] if top else chosen, shape)


def ordered(found: list[Activity], sort: Order) -> list[Activity]:
    """Sorted for the question asked; accelerators without known activity stay out of busiest and idlest."""
    if sort is Order.node:
        return found
    known = [entry for entry in found if entry.busy_permille is not None]
    if sort is Order.busiest:
        return sorted(known, key=lambda entry: (-(entry.busy_permille or 0), -entry.busy_ms, entry.uuid))
    return sorted(known, key=lambda entry: (-entry.idle_ms, entry.uuid))


def cells(entry: Activity) -> list[str]:
    """One row as text, in the order of COLUMNS; what is not known is empty."""
    from decimal import Decimal

    def hours(milliseconds: int) -> str:
        return str((Decimal(milliseconds) / 3_600_000).quantize(Decimal("0.001")))

    busy = "" if entry.busy_permille is None else f"{entry.busy_permille // 10}.{entry.busy_permille % 10}"
    energy = "" if entry.energy_mj is None else str((Decimal(entry.energy_mj) / 3_600_000_000).quantize(Decimal("0.1")))
    index = "" if entry.gpu_index is None else str(entry.gpu_index)
    spans = (entry.held_ms, entry.busy_ms, entry.idle_ms, entry.unknown_ms, entry.unallocated_ms, entry.unavailable_ms)
    return [
        entry.node,
        index,
        entry.uuid,
        entry.model,
        entry.mig_instance or "",
        entry.pool,
        *[hours(span) for span in spans],
        busy,
        energy,
    ]


def emit(chosen: list[Activity], shape: Shape) -> None:
    """Print the rows."""
    rows = [cells(entry) for entry in chosen]
    if shape is Shape.table:
        from gpuledger_collector.export.tables import Table

        shown = [column for column in COLUMNS if column not in {"uuid", "unknown_h"}]
        table = Table(*shown, box=None, header_style="bold", padding=(0, 2, 0, 0))
        for row in rows:
            table.add_row(*[cell for column, cell in zip(COLUMNS, row, strict=True) if column in shown])
        print_table(table, 160)
        return
    if shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import harmless

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([COLUMNS, *map(harmless, rows)])
        return
    import json

    print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))

"""gpuledger runs: what each run held, wasted and produced, what a unit of its output cost, and what held it back."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import Config, DryRun, Dsn, database, owner_levels, refuse, untouched
from gpuledger_collector.cli.terminal import say

if TYPE_CHECKING:
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.accounting.unit_cost import UnitCost
    from gpuledger_collector.storage.ledger.runs import RunRow

WEEKS_DAYS = 28
COLUMNS = (
    "run",
    "name",
    "user",
    "team",
    "model",
    "gpus",
    "from",
    "to",
    "gpu_hours",
    "gpu_hours_idle",
    "cost",
    "cost_idle",
    "currency",
    "kwh",
    "unit",
    "unit_cost",
    "units",
    "coverage",
)

app = typer.Typer(
    name="runs",
    help="What runs cost, wasted and produced.",
    invoke_without_command=True,
    epilog="Example: gpuledger runs --owner team=vision --sort waste",
)


class Shape(enum.StrEnum):
    """Forms of a list."""

    table = "table"
    csv = "csv"
    json = "json"


class ReportShape(enum.StrEnum):
    """Forms of a report."""

    table = "table"
    csv = "csv"
    json = "json"
    html = "html"


class Order(enum.StrEnum):
    """What a list is sorted by."""

    cost = "cost"
    waste = "waste"
    unit = "unit"
    newest = "newest"


class Bucket(enum.StrEnum):
    """Usage intervals of time: hours of UTC, days and months of the bill."""

    hour = "hour"
    day = "day"
    month = "month"


Start = Annotated[str | None, typer.Option("--from", metavar="DATE", help="First day (of the billing zone), included.")]
End = Annotated[str | None, typer.Option("--to", metavar="DATE", help="Last day (of the billing zone), not included.")]
Workload = Annotated[str, typer.Argument(metavar="RUN", help="Its key, its id at the scheduler, or its name.")]


def register(root: typer.Typer) -> None:
    """Add `gpuledger runs`."""
    root.add_typer(app)


@app.callback()
def runs(
    context: typer.Context,
    start: Start = None,
    end: End = None,
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="LEVEL=VALUE", help="Only this owner's, such as team=vision.")
    ] = None,
    sort: Annotated[Order, typer.Option("--sort", help="Largest first by this.")] = Order.cost,
    top: Annotated[int, typer.Option("--top", min=0, help="Only so many; 0: all.")] = 50,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List runs of a period (the last four weeks) with their cost, their waste and the cost of a unit of their output.

    A unit's cost is of the time that its counters cover; `coverage` says how much of the charged time that is.
    """
    if context.invoked_subcommand is not None:
        return
    levels = owner_levels(owner or [])
    with database(dsn, config) as opened:
        from gpuledger_collector.export.runs import run_json
        from gpuledger_collector.services.run_report import chief_unit_costs
        from gpuledger_collector.storage.ledger import runs as stored

        connection, period, _ = _ready(opened.dsn, start, end)
        with connection:
            rows = stored.listed(connection, period, levels)
            if sort is not Order.unit:
                rows.sort(key=_ranks(sort))
                rows = rows[: top or None]
            units = chief_unit_costs(connection, rows, period)
    if sort is Order.unit:
        rows = sorted(rows, key=lambda row: -(_unit_cost(units.get((row.workload_id, row.currency))) or 0))
        rows = rows[: top or None]
    chosen = [(row, units.get((row.workload_id, row.currency))) for row in rows]
    if shape is Shape.json:
        from gpuledger_collector.export.cells import json_text

        print(json_text([run_json(*one) for one in chosen]))
    else:
        _emit([row_of(*one) for one in chosen], shape)


def _ready(dsn: str, start: str | None, end: str | None, *, everything: bool = False) -> tuple[Any, Period, int]:
    """A connection to a ledger that is up to date for the period (or for all of time), the period, and now."""
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.cli.progress import bar
    from gpuledger_collector.services.hourly_usage import ALWAYS
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.database import Database
    from gpuledger_collector.storage.ledger import zones
    from gpuledger_collector.wiring import now

    now_ms = round(now().timestamp() * 1000)
    opened = Database(dsn)
    with opened.transaction() as connection:
        calendar = zones.calendar(connection)
    today = calendar.day_of(now_ms)
    first = calendar.date_of(calendar.days_before(today.start_ms, WEEKS_DAYS)).isoformat()
    try:
        period = calendar.date_range(start or first, end or calendar.date_of(today.end_ms).isoformat())
    except ValueError as error:
        refuse(str(error))
    with bar("rating") as on_day:
        due = ALWAYS if everything else Period(period.start_ms, min(period.end_ms, today.end_ms))
        refresh(opened, due, now_ms, on_day)
    return opened.connect(), period, now_ms


def _ranks(sort: Order) -> Any:
    if sort is Order.waste:
        return lambda row: (-(row.idle_cost_micro or 0), -row.idle_ns, row.key)
    if sort is Order.newest:
        return lambda row: (-row.start_ms, row.key)
    return lambda row: (-(row.cost_micro or 0), -row.gpu_ns, row.key)


def _unit_cost(unit: UnitCost | None) -> Any:
    return None if unit is None else unit.cost


def row_of(row: RunRow, unit: UnitCost | None) -> dict[str, str]:
    """A run as people read it, by COLUMNS; empty where something is not known or not priced."""
    from gpuledger_collector.accounting.period import format_instant
    from gpuledger_collector.accounting.quantity import hours_decimal
    from gpuledger_collector.cli.recommend import money
    from gpuledger_collector.export.html import unit_price
    from gpuledger_collector.export.runs import UNITS

    held, idle = hours_decimal([row.gpu_ns, row.idle_ns], 2)
    return {
        "run": row.key,
        "name": row.called,
        "user": row.user or "",
        "team": row.team,
        "model": row.gpu_model,
        "gpus": str(row.accelerators),
        "from": format_instant(row.start_ms),
        "to": format_instant(row.end_ms),
        "gpu_hours": str(held),
        "gpu_hours_idle": "" if row.unknown_ns == row.gpu_ns else str(idle),
        "cost": money(row.cost_micro, row.currency),
        "cost_idle": money(row.idle_cost_micro, row.currency),
        "currency": row.currency or "",
        "kwh": "" if row.energy_mj is None else f"{row.energy_mj / 3.6e9:.3f}",
        "unit": "" if unit is None else UNITS[unit.counter],
        "unit_cost": "" if unit is None else unit_price(unit.cost),
        "units": "" if unit is None else str(unit.units),
        "coverage": "" if unit is None else f"{unit.coverage:.1%}",
    }


def _emit(rows: Sequence[dict[str, str]], shape: Shape) -> None:
    if shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import neutral

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([[neutral(row[name]) for name in COLUMNS] for row in rows])
        return
    if not rows:
        print("no run was charged in this period")
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console

    from gpuledger_collector.export.tables import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    shown = (
        "run",
        "name",
        "team",
        "gpus",
        "from",
        "gpu_hours",
        "gpu_hours_idle",
        "cost",
        "cost_idle",
        "currency",
        "unit_cost",
        "unit",
        "coverage",
    )
    right = {"gpus", "gpu_hours", "gpu_hours_idle", "cost", "cost_idle", "unit_cost", "coverage"}
    for name in shown:
        table.add_column(name.replace("_", " "), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(row[name][:16] if name == "from" else row[name] for name in shown))
    Console(width=None if sys.stdout.isatty() else 240, color_system=None, legacy_windows=False).print(table)


@app.command(epilog="Example: gpuledger runs show 4711 --format html -o 4711.html")
def show(
    workload: Workload,
    start: Start = None,
    end: End = None,
    by: Annotated[Bucket | None, typer.Option("--by", help="Unit costs by this usage interval of time, too.")] = None,
    shape: Annotated[ReportShape, typer.Option("--format", help="Form of the output.")] = ReportShape.table,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")] = None,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Report one run: what it held, used, wasted and produced, what a unit cost, what held it back, and its like.

    The page of `--format html` needs nothing else; `csv` has the unit costs. Without dates, all of its time counts.
    """
    if output is not None and not output.parent.is_dir():
        refuse(f"{output.parent} is no folder to write to")
    if (start is None) != (end is None):
        refuse("say both --from and --to, or neither")
    with database(dsn, config) as opened:
        from gpuledger_collector.export import runs as forms
        from gpuledger_collector.services.run_report import report_run

        connection, period, now_ms = _ready(opened.dsn, start, end, everything=start is None)
        with connection:
            number, key = _called(connection, workload)
            bucket = None if by is None else by.value
            if bucket is None and shape is ReportShape.html:
                bucket = "day"
            made = report_run(connection, number, bucket, now_ms, None if start is None else period)
    if made is None:
        refuse(f"{key} was charged nothing{'' if start is None else ' in this period'}")
    if shape is ReportShape.html:
        text = forms.as_html(made)
    elif shape is ReportShape.json:
        text = forms.as_json(made)
    elif shape is ReportShape.csv:
        text = forms.as_csv(made.by or made.units)
    else:
        text = forms.as_text(made)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8", newline="")


def _called(connection: Any, name: str) -> tuple[int, str]:
    from gpuledger_collector.storage.findings.recommendations import workloads_called

    found = workloads_called(connection, name)
    if not found:
        refuse(f"no run has the key, the id or the name {name!r}")
    if len(found) > 1:
        refuse(
            f"{name!r} is not the only one of its name; name one by its key: {', '.join(one[1] for one in found[:5])}"
        )
    return found[0][0], found[0][1]


@app.command(epilog="Example: gpuledger runs report 4711 --steps 12000 --tokens 50331648000")
def report(
    workload: Workload,
    steps: Annotated[int | None, typer.Option("--steps", min=0, help="Steps since it began.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=0, help="Tokens since it began.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=0, help="Samples since it began.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="INSTANT", help="RFC 3339 with zone; default: now.")] = None,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say how far a run has come, in totals that only grow: what a step or a token cost is counted from it.

    The same as POST /v1/runs/RUN/progress, for whoever can reach the database.
    """
    from gpuledger_collector.accounting.period import parse_instant

    told = {"steps": steps, "tokens": tokens, "samples": samples}
    try:
        at_ms = None if at is None else parse_instant(at)
    except ValueError as error:
        refuse(f"--at: {error}")
    with database(dsn, config) as opened:
        from gpuledger_collector.services.run_report import record_progress
        from gpuledger_collector.wiring import now

        with opened.transaction(dry_run=dry_run) as connection:
            number, key = _called(connection, workload)
            try:
                values = {name: value for name, value in told.items() if value is not None}
                record_progress(connection, number, values, at_ms, None, round(now().timestamp() * 1000))
            except ValueError as error:
                refuse(str(error))
    said = ", ".join(f"{value} {name}" for name, value in told.items() if value is not None)
    say(f"{key}: {said}" + untouched(dry_run))

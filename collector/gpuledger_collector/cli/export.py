"""gpuledger export: what the ledger holds, as files for other programs."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import LACKING, Config, Dsn, database, refuse

if TYPE_CHECKING:
    from gpuledger_collector.accounting.period import Period

app = typer.Typer(name="export", help="What the ledger holds, as files.", no_args_is_help=True)


class Shape(enum.StrEnum):
    """Forms of the output."""

    csv = "csv"
    parquet = "parquet"


def register(root: typer.Typer) -> None:
    """Add `gpuledger export`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger export samples --node gpu-01 --from 2026-10-01 --to 2026-10-02 > samples.csv")
def samples(
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Date (UTC) or instant, included.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Date (UTC) or instant, not included.")],
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Accelerators of this node.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="UUID", help="This accelerator.")] = None,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.csv,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")] = None,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Write raw samples, recent and packed ones alike; `gpuledger import samples` reads the file.

    An empty cell is an absent reading. Of a node, accelerators count while the inventory has them there.
    """
    if (node is None) == (gpu is None):
        refuse("name the accelerators with either --node or --gpu")
    period = _period(start, end)
    if shape is Shape.parquet:
        _require_parquet(output)
    with database(dsn, config) as opened:
        from gpuledger_collector.cli.progress import over
        from gpuledger_collector.export import samples as forms
        from gpuledger_collector.storage.database import open_connection
        from gpuledger_collector.storage.telemetry import archive

        with open_connection(opened.dsn) as connection:
            placements = archive.accelerator_periods(connection, period, node, gpu)
            if not placements:
                refuse(f"--gpu: no accelerator is called {gpu}" if gpu else f"--node: nothing was on {node} then")
            found = (
                (placement.uuid, part)
                for placement in over("reading samples", placements)
                for _, part in archive.readings(connection, [placement.accelerator_id], placement.period)
            )
            if shape is Shape.parquet and output is not None:
                from gpuledger_collector.export import parquet

                parquet.write_samples(found, output, archive.KINDS)
            elif output is None:
                forms.write_csv(found, sys.stdout, archive.KINDS)
            else:
                with output.open("w", encoding="utf-8", newline="") as file:
                    forms.write_csv(found, file, archive.KINDS)


def _require_parquet(output: Path | None) -> None:
    from gpuledger_collector.export import parquet

    if output is None:
        refuse("--format parquet needs a file to write to: -o samples.parquet")
    try:
        parquet.arrow()
    except parquet.ArrowMissing as error:
        refuse(str(error), LACKING)


@app.command(epilog="Example: gpuledger export config -o ledger.toml && gpuledger apply ledger.toml --dry-run")
def config(
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")] = None,
    dsn: Dsn = None,
    settings_file: Config = None,
) -> None:
    """Write what is applied as a TOML file: `gpuledger apply` takes it back unchanged, here or in another ledger.

    Rules, prices, commitments, budgets, shared costs, carbon intensities, the billing zone, letters and pools are in
    it. Rates of [[owned]] hardware are in it as the prices that they led to.
    """
    if output is not None and not output.parent.is_dir():
        refuse(f"{output.parent} is no folder to write to")
    with database(dsn, settings_file) as opened:
        from gpuledger_collector.config.declared import export_declared

        with opened.transaction(read_only=True) as connection:
            text = export_declared(connection)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")


def _period(start: str, end: str) -> Period:
    from gpuledger_collector.accounting.period import Period, parse_date, parse_instant

    bounds = []
    for option, text in (("--from", start), ("--to", end)):
        try:
            bounds.append(parse_date(text) if len(text) == len("2026-10-01") and "-" in text else parse_instant(text))
        except ValueError as error:
            refuse(f"{option}: {error}")
    if bounds[1] <= bounds[0]:
        refuse("--to: must be after --from")
    return Period(*bounds)

"""gpuledger export: what the ledger holds, as files for other programs."""

from __future__ import annotations

import enum
from typing import Annotated

from typer import Option

from gpuledger_collector.accounting.period import Period, parse_date, parse_instant
from gpuledger_collector.cli import options
from gpuledger_collector.cli.chargeback import require_parquet, text_file
from gpuledger_collector.cli.common import new_app, refuse, require_folder, time_range
from gpuledger_collector.cli.output import write_text
from gpuledger_collector.cli.progress import over
from gpuledger_collector.cli.session import open_database, open_session
from gpuledger_collector.config.declared import export_declared
from gpuledger_collector.export import parquet
from gpuledger_collector.export.samples import write_csv
from gpuledger_collector.storage.telemetry import archive

app = new_app(name="export", help="What the ledger holds, as files.", no_args_is_help=True)
DATE_LENGTH = len("2026-10-01")


class SampleFormat(enum.StrEnum):
    """Forms of raw samples."""

    csv = "csv"
    parquet = "parquet"


@app.command(epilog="Example: gpuledger export samples --node gpu-01 --from 2026-10-01 --to 2026-10-02 > samples.csv")
def samples(
    period: options.PeriodName = None,
    start: Annotated[str | None, Option("--from", metavar="TIME", help="Or: date (UTC) or instant, included.")] = None,
    end: Annotated[str | None, Option("--to", metavar="TIME", help="Date (UTC) or instant, not included.")] = None,
    days: options.LastDays = None,
    node: Annotated[str | None, Option("--node", metavar="NAME", help="Accelerators of this node.")] = None,
    gpu: Annotated[str | None, Option("--gpu", metavar="UUID", help="This accelerator.")] = None,
    form: Annotated[SampleFormat, Option("--format", help="Form of the output.")] = SampleFormat.csv,
    output: options.Output = None,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Write raw samples, recent and packed ones alike; `gpuledger import samples` reads the file.

    An empty cell is an absent reading. Of a node, accelerators count while the inventory has them there.
    """
    if (node is None) == (gpu is None):
        refuse("name the accelerators with either --node or --gpu")
    exact = None
    if start is not None and end is not None and period is None and days is None:
        exact = _instants(start, end)
    asked = time_range(period, *((start, end) if exact is None else (None, None)), days)
    if form is SampleFormat.parquet:
        require_parquet(output, "samples")
    with open_session(dsn, config) as session:
        span = exact or asked.resolve(session.calendar, session.now_ms)
        with session.database.transaction() as connection:
            placements = archive.accelerator_periods(connection, span, node, gpu)
            if not placements:
                refuse(f"--gpu: no accelerator is called {gpu}" if gpu else f"--node: nothing was on {node} then")
            parts = (
                (placement.uuid, part)
                for placement in over("reading samples", placements, len(placements))
                for _, part in archive.readings(connection, [placement.accelerator_id], placement.period)
            )
            if form is SampleFormat.parquet and output is not None:
                parquet.write_samples(parts, output, archive.KINDS)
            else:
                with text_file(output) as file:
                    write_csv(parts, file, archive.KINDS)


def _instants(start: str, end: str) -> Period:
    bounds = []
    for option, text in (("--from", start), ("--to", end)):
        try:
            bounds.append(parse_date(text) if len(text) == DATE_LENGTH and "-" in text else parse_instant(text))
        except ValueError as error:
            refuse(f"{option}: {error}")
    if bounds[1] <= bounds[0]:
        refuse("--to: must be after --from")
    return Period(*bounds)


@app.command(epilog="Example: gpuledger export config -o ledger.toml && gpuledger apply ledger.toml --dry-run")
def config(output: options.Output = None, dsn: options.Dsn = None, settings_file: options.Config = None) -> None:
    """Write what is applied as a TOML file: `gpuledger apply` takes it back unchanged, here or in another ledger.

    It holds rules, prices, commitments, budgets, shared costs, carbon intensities, the billing zone, notification rules
    and pools. Rates of [[owned]] hardware are in it as the prices derived from them.
    """
    require_folder(output)
    with open_database(dsn, settings_file) as database, database.transaction(read_only=True) as connection:
        text = export_declared(connection)
    write_text(text, output)

"""gpuledger export: what the ledger holds, as files for other programs."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from typer import Option

from gpuledger_collector.accounting.period import Period, parse_date, parse_instant
from gpuledger_collector.accounting.problems import shorten_problems
from gpuledger_collector.cli import options
from gpuledger_collector.cli.chargeback import require_parquet, text_file
from gpuledger_collector.cli.common import new_app, refuse, require_folder, time_range
from gpuledger_collector.cli.output import write_text
from gpuledger_collector.cli.progress import show_progress
from gpuledger_collector.cli.session import Session, ledger_command, open_database
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.declared import export_declared
from gpuledger_collector.config.erp_template import read_template
from gpuledger_collector.export import erp as erp_export
from gpuledger_collector.export import parquet
from gpuledger_collector.export.samples import write_csv
from gpuledger_collector.services.erp import post_month
from gpuledger_collector.services.samples import METRICS, accelerators_named, stream_samples
from gpuledger_common.plurals import plural

app = new_app(name="export", help="What the ledger holds, as files.", no_args_is_help=True)
DATE_LENGTH = len("2026-10-01")


class SampleFormat(enum.StrEnum):
    """Forms of raw samples."""

    csv = "csv"
    parquet = "parquet"


@app.command(
    epilog=(
        "Example: gpuledger export samples --node gpu-01 --from 2026-10-01 --to 2026-10-02 >"
        " samples.csv"
    )
)
@ledger_command
def samples(
    session: Session,
    period: options.PeriodName = None,
    start: Annotated[
        str | None, Option("--from", metavar="TIME", help="Or: date (UTC) or instant, included.")
    ] = None,
    end: Annotated[
        str | None, Option("--to", metavar="TIME", help="Date (UTC) or instant, not included.")
    ] = None,
    days: options.LastDays = None,
    node: Annotated[
        str | None, Option("--node", metavar="NAME", help="Accelerators of this node.")
    ] = None,
    gpu: Annotated[str | None, Option("--gpu", metavar="UUID", help="This accelerator.")] = None,
    zone: options.BillingZone = None,
    form: Annotated[
        SampleFormat, Option("--format", help="Form of the output.")
    ] = SampleFormat.csv,
    output: options.Output = None,
) -> None:
    """Write raw samples, recent and packed ones alike; `gpuledger import samples` reads the file.

    An empty cell is an absent reading. Of a node, accelerators count while the inventory has them
    there.
    """
    if (node is None) == (gpu is None):
        refuse("name the accelerators with either --node or --gpu")
    exact = None
    if start is not None and end is not None and period is None and days is None:
        exact = _instants(start, end)
    asked = time_range(period, *((start, end) if exact is None else (None, None)), days)
    if form is SampleFormat.parquet:
        require_parquet(output, "samples")
    session.require_zone(zone)
    span = exact or asked.resolve(session.calendar, session.now_ms)
    with session.database.transaction() as connection:
        placements = accelerators_named(connection, span, node=node, uuid=gpu)
        if not placements:
            refuse(
                f"--gpu: no accelerator is called {gpu}"
                if gpu
                else f"--node: nothing was on {node} then"
            )
        parts = stream_samples(
            connection, show_progress("reading samples", placements, len(placements))
        )
        if form is SampleFormat.parquet and output is not None:
            parquet.write_samples(parts, output, METRICS)
        else:
            with text_file(output) as file:
                write_csv(parts, file, METRICS)


def _instants(start: str, end: str) -> Period:
    bounds = []
    for option, text in (("--from", start), ("--to", end)):
        try:
            bounds.append(
                parse_date(text)
                if len(text) == DATE_LENGTH and "-" in text
                else parse_instant(text)
            )
        except ValueError as error:
            refuse(f"{option}: {error}")
    if bounds[1] <= bounds[0]:
        refuse("--to: must be after --from")
    return Period(*bounds)


@app.command(
    epilog=(
        "Example: gpuledger export config -o ledger.toml && gpuledger apply ledger.toml --dry-run"
    )
)
def config(
    output: options.Output = None, dsn: options.Dsn = None, settings_file: options.Config = None
) -> None:
    """Write what is applied as a TOML file: `gpuledger apply` takes it back unchanged, here or in
    another ledger.

    It holds rules, prices, locations, commitments, budgets, shared costs, carbon intensities, the
    billing zone, notification rules and pools. Rates of [[owned]] hardware are in it as the prices
    derived from them.
    """
    require_folder(output)
    # No session: what is declared is the same on a read replica, which a session would name.
    with (
        open_database(dsn, settings_file) as database,
        database.transaction(read_only=True) as connection,
    ):
        text = export_declared(connection)
    write_text(text, output)


@app.command(
    epilog="Example: gpuledger export erp --template erp.toml --period 2026-10 -o postings.csv"
)
@ledger_command
def erp(
    session: Session,
    template: Annotated[
        Path, Option("--template", metavar="FILE.toml", help="The columns of the file.")
    ],
    period: options.Month = None,
    output: options.Output = None,
) -> None:
    """Write a month's invoices for the import of an ERP, laid out by a template: columns with a
    field or a constant.

    Amounts add up to the invoices, owner by owner. Cost centers and GL codes are those of
    [[cost_center]].
    """
    asked = time_range(period, None, None)
    layout = read_template(template)
    if isinstance(layout, list):
        for sentence in shorten_problems(layout):
            say(sentence, error=True)
        refuse(f"{template}: {plural(len(layout), 'problem')}, nothing was written")
    require_folder(output)
    span = session.rate_range(asked)
    name = session.calendar.month_of(span.start_ms)
    if session.calendar.month(name) != span and period is not None:
        refuse("--period: invoices are of a month; write it as 2026-10")
    month = post_month(session.database, name, layout.level, layout.naming, session.now_ms)
    with text_file(output) as file:
        erp_export.write(month, layout, file)
    if month.closed_on is None:
        say(f"gpuledger: {name} is not closed: its invoices may still change", error=True)
    owners = erp_export.without_codes(month.postings)
    if owners:
        say(
            f"gpuledger: no cost center is declared for {', '.join(owners)} ([[cost_center]])",
            error=True,
        )

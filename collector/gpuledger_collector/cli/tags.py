"""gpuledger tags: which tags and rules attribute usage, and which usage has no owner."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, new_app, require_level, time_range
from gpuledger_collector.cli.output import Column, emit, number
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.export.tag_check import as_rows, as_text
from gpuledger_collector.services.tag_check import check_tags
from gpuledger_collector.storage.billing import reports
from gpuledger_collector.storage.locks import Lock

app = new_app(name="tags", no_args_is_help=True)
COLUMNS = (
    Column("what"),
    Column("name"),
    number("workloads"),
    number("gpu_hours"),
    number("cost"),
    Column("currency"),
)


@app.callback()
def tags() -> None:
    """Tags and attribution rules."""


@app.command(epilog="Example: gpuledger tags check --period 2026-10")
def check(
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    level: Annotated[str, Option("--level", help="The level that should be attributed.")] = "team",
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Say which tags and rules match which usage, what stays unattributed, and which tag may be a
    misspelt level.

    Ends with 1 when some usage has no owner at that level.
    """
    require_level(level)
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        span = session.rated(asked)
        with session.database.transaction(Lock.LEDGER) as connection:
            result = check_tags(connection, reports.held_by(connection, span), level)
    if form is options.Format.table:
        sys.stdout.write(as_text(result, level))
    else:
        names = [column.name for column in COLUMNS]
        rows = as_rows(result)
        emit(form, COLUMNS, [dict(zip(names, row, strict=True)) for row in rows])
    if result.unattributed:
        raise typer.Exit(FINDINGS)

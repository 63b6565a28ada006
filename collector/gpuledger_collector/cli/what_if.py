"""gpuledger what-if: a period under another price book, without touching the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import column_names, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.config.prices import read_prices
from gpuledger_collector.export.what_if import what_if_report
from gpuledger_collector.services.what_if import DIMENSIONS, compare_prices

app = new_app()


@app.command("what-if", epilog="Example: gpuledger what-if --prices new.csv --period 2026-10")
@ledger_command
def what_if(
    session: Session,
    prices: Annotated[
        Path, Option("--prices", metavar="FILE", help="The other price book, as CSV.")
    ],
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    by: Annotated[
        str, Option("--by", help="Columns: levels of the owner tree, pool, model, node.")
    ] = "team",
    form: options.Form = options.Format.table,
) -> None:
    """Price a period with another price book, next to what was charged. The ledger is not changed.

    The file replaces the price book: usage that none of its rates covers is unpriced.
    """
    names = column_names(by, DIMENSIONS)
    asked = time_range(period, start, end, days)
    parsed = read_prices(prices)
    if parsed.problems:
        refuse("; ".join(f"{problem.source}: {problem.message}" for problem in parsed.problems[:3]))
    span = session.rate_range(asked)
    rows = compare_prices(session.database, span, parsed.rows, session.now_ms, names)
    totals = [row for row in rows if row.keys is None] if form is options.Format.table else []
    emit_report(
        form,
        what_if_report(names),
        [row for row in rows if row.keys is not None or not totals],
        ["nothing was changed in the ledger"],
        totals,
    )

"""gpuledger chargeback: who pays for what, for a range of days."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, TextIO

from typer import Option

from gpuledger_collector.accounting.cash import AMORTIZED, CASH
from gpuledger_collector.accounting.chargeback import DIMENSIONS, Report, ReportRow
from gpuledger_collector.accounting.fair_share import list_lines
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.waste import WholeWaste
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import (
    UNAVAILABLE,
    TimeRange,
    column_names,
    end_with,
    new_app,
    refuse,
    require_folder,
    time_range,
)
from gpuledger_collector.cli.output import (
    report_text,
    table_text,
    terminal_width,
    write_pieces,
    write_text,
)
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export import beancount, focus, parquet
from gpuledger_collector.export.chargeback import (
    as_json,
    cash_line,
    csv_rows,
    table_columns,
    unbilled_line,
    waste_line,
)
from gpuledger_collector.export.fair_share import SHARES
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.export.report import Column
from gpuledger_collector.export.shortened import MOST_TERMINAL_ROWS, shorten_report
from gpuledger_collector.services.bill_exports import (
    FocusExport,
    FocusVersion,
    export_focus,
    read_journal,
)
from gpuledger_collector.services.chargeback import read_priced_bill
from gpuledger_collector.services.fair_share import compare_shares

app = new_app()
SHARE = "share"


class ChargebackFormat(enum.StrEnum):
    """Forms of the chargeback."""

    table = "table"
    csv = "csv"
    json = "json"
    focus = "focus"
    beancount = "beancount"
    parquet = "parquet"


LISTS = {ChargebackFormat.table, ChargebackFormat.csv, ChargebackFormat.json}


class View(enum.StrEnum):
    """What the cost of a chargeback is."""

    amortized = AMORTIZED
    cash = CASH


@app.command(epilog="Example: gpuledger chargeback --period 2026-10 --by team,project")
@ledger_command
def chargeback(
    session: Session,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    by: Annotated[
        str,
        Option(
            "--by",
            help=(
                "Columns: levels of the owner tree, workload, job, queue, pool, model, node, region;"
                " or share."
            ),
        ),
    ] = "team",
    form: Annotated[
        ChargebackFormat, Option("--format", help="Form of the output.")
    ] = ChargebackFormat.table,
    focus_version: Annotated[
        FocusVersion,
        Option(
            "--focus-version", help="For focus: 1.2, or 1.4 with the columns of split allocation."
        ),
    ] = FocusVersion.v1_2,
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write to a file; focus into FILE.parquet is Parquet.",
        ),
    ] = None,
    currency: Annotated[
        str,
        Option(
            "--currency",
            metavar="CODE",
            help="In another currency, at the declared [[exchange]] rates.",
        ),
    ] = "",
    view: Annotated[
        View,
        Option(
            "--view", help="Cost as it is borne hour by hour, or as it is paid on its day (cash)."
        ),
    ] = View.amortized,
    zone: options.BillingZone = None,
    exit_code: options.ExitCode = False,
) -> None:
    """Say who pays for what; time that nobody held, that nobody is known to pay or that has no rate
    has its own rows.

    `--by share` compares what teams held with their shares of pools: lent, borrowed, and waited for
    while it was lent. With --exit-code it ends with 1 when some usage has no price.

    From 10,000 GPUs on the present day is as the collector rated it in the last minutes, and says up
    to when; what was declared or imported since is in it in any case.
    """
    asked = time_range(period, start, end, days)
    _require_fitting(form, currency, output, view)
    if by == SHARE:
        if view is View.cash:
            refuse("--by share has no --view cash: it compares what was charged for the time")
        _write_shares(session, asked, form, currency, output, zone)
        return
    names = column_names(by, DIMENSIONS)
    level = next((name for name in names if name in LEVELS), "team")
    session.require_zone(zone)
    span, now_ms = session.rate_report(asked), session.now_ms
    with session.database.transaction(read_only=True) as connection:
        try:
            bill = read_priced_bill(connection, span, names, now_ms, view.value, currency)
        except ValueError as error:
            refuse(f"--currency: {error}")
        if form is ChargebackFormat.focus:
            _write_focus(export_focus(connection, span, level, now_ms, focus_version), output)
        elif form is ChargebackFormat.beancount:
            journal = read_journal(connection, span, level, now_ms)
            with text_file(output) as file:
                beancount.write(journal, file)
        elif output is not None and form is ChargebackFormat.parquet:
            parquet.write_chargeback(bill.report, bill.notices, output)
        else:
            width = terminal_width() if output is None else None
            pieces = list_pieces(
                bill.report,
                span,
                options.Format(form.value),
                width,
                notices=bill.notices,
                notes=bill.notes,
                waste=bill.waste,
            )
            is_table = form is ChargebackFormat.table
            heading = range_line(span, session.calendar) if is_table else ""
            write_pieces(chain([heading], pieces), output)
    for note in bill.notes:
        say(f"gpuledger: {note}", error=True)
    end_with(bill.report.has_unpriced, exit_code)


def _write_shares(
    session: Session,
    asked: TimeRange,
    form: ChargebackFormat,
    currency: str,
    output: Path | None,
    zone: str | None,
) -> None:
    """Write what teams held of their shares of pools."""
    if form not in LISTS or currency:
        refuse("--by share is a table, csv or json, in the ledger's currencies")
    session.require_zone(zone)
    answer = compare_shares(session.database, session.rate_range(asked))
    width = terminal_width() if output is None else None
    lines = list(list_lines(answer.uses))
    write_text(report_text(options.Format(form.value), SHARES, lines, width), output)
    for note in answer.notes:
        say(f"gpuledger: {note}", error=True)


def range_line(period: Period, calendar: Calendar) -> str:
    """The days that a table is about."""
    days = (
        f"{calendar.date_of(period.start_ms)} to {calendar.date_of(period.end_ms)} (not included)"
    )
    return f"{days}, days of {calendar.zone_at(period.start_ms).name}\n"


def list_pieces(
    bill: Report,
    period: Period,
    form: options.Format,
    width: int | None,
    *,
    notices: Sequence[str] = (),
    notes: Sequence[str] = (),
    waste: Sequence[WholeWaste] = (),
) -> Iterator[str]:
    """A chargeback in pieces, as CSV, JSON or a table of at most `width` columns."""
    if form is options.Format.csv:
        return csv_pieces(csv_rows(bill, notices))
    if form is options.Format.json:
        return as_json(bill, period, notes, waste)
    return table_pieces(bill, width, waste)


def table_pieces(
    bill: Report, width: int | None, waste: Sequence[WholeWaste] = ()
) -> Iterator[str]:
    """A chargeback as a table of at most `width` columns, in pieces, totals and the whole waste
    last.
    """
    # A terminal lists the dearest rows, a pipe or a file all of them.
    rows = bill.rows if width is None else shorten_report(bill, MOST_TERMINAL_ROWS).rows
    shown = table_columns(bill)
    if bill.has_no_price:
        shown = [
            column for column in shown if any(column.value(row) is not None for row in bill.rows)
        ]
    columns = [*(_key_column(bill, at) for at in range(len(bill.by))), *shown]
    lines = [
        cash_line(bill, total) for total in bill.totals if bill.view == CASH and total.currency
    ]
    lines += [waste_line(one) for one in waste if one.minor is not None]
    lines += filter(None, (unbilled_line(bill, total) for total in bill.totals))
    yield table_text(columns, rows, width, bill.totals)
    yield from (f"{line}\n" for line in lines)


def _key_column(bill: Report, at: int) -> Column[ReportRow]:
    """A column of keys; the first of them names the totals."""
    totals = {id(total) for total in bill.totals}

    def value(row: ReportRow) -> str:
        if id(row) not in totals:
            return row.keys[at]
        if at:
            return ""
        return "unpriced" if row.currency is None and not bill.has_no_price else "total"

    return Column(bill.by[at], value)


def _require_fitting(
    form: ChargebackFormat, currency: str, output: Path | None, view: View
) -> None:
    """Refuse options that do not go together, before any work is done."""
    if view is View.cash and (
        currency or form in {ChargebackFormat.focus, ChargebackFormat.beancount}
    ):
        refuse(
            "--view cash is in the ledger's currencies"
            if currency
            else (
                "--view: FOCUS has both views in every row, BilledCost and EffectiveCost"
                if form is ChargebackFormat.focus
                else "--view cash: the journal books what is borne"
            )
        )
    if currency and form not in LISTS:
        refuse(
            f"--currency is a view of the table, csv and json; {form.value} has the ledger's"
            " currencies"
        )
    require_folder(output)
    if form is not ChargebackFormat.parquet and (output is None or output.suffix != ".parquet"):
        return
    if form not in {ChargebackFormat.parquet, ChargebackFormat.focus}:
        refuse(f"-o {output}: only --format parquet and --format focus write Parquet")
    require_parquet(output, "chargeback")


def require_parquet(output: Path | None, example: str) -> None:
    """Refuse to write Parquet to standard output, or without its library."""
    if output is None:
        refuse(f"--format parquet needs a file to write to: -o {example}.parquet")
    try:
        parquet.arrow()
    except parquet.ArrowMissing as error:
        refuse(str(error), UNAVAILABLE)


@contextmanager
def text_file(output: Path | None) -> Iterator[TextIO]:
    """The file to write to, or standard output."""
    if output is None:
        yield sys.stdout
        return
    with output.open("w", encoding="utf-8", newline="") as file:
        yield file


def _write_focus(export: FocusExport, output: Path | None) -> None:
    if output is not None and output.suffix == ".parquet":
        parquet.write(export.rows, output, parquet.focus_kinds(export.columns))
        return
    with text_file(output) as file:
        focus.write(export.rows, file, export.columns)

"""gpuledger chargeback: who pays for what, for a range of days."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, TextIO

from typer import Option

from gpuledger_collector.accounting.cash import AMORTIZED, CASH
from gpuledger_collector.accounting.chargeback import DIMENSIONS, Report, ReportRow
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.waste import WholeWaste, whole_waste
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
    Column,
    table_text,
    terminal_width,
    write_pieces,
    write_text,
)
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export import beancount, focus, focus_split, parquet
from gpuledger_collector.export.cells import rows_as
from gpuledger_collector.export.chargeback import (
    NUMBERED,
    as_json,
    cash_line,
    csv_rows,
    shared_notes,
    table_columns,
    texts,
    unbilled_line,
    waste_line,
)
from gpuledger_collector.export.fair_share import COLUMNS as SHARE_COLUMNS
from gpuledger_collector.export.fair_share import share_rows
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.export.shortened import MOST_TERMINAL_ROWS, shortened
from gpuledger_collector.services.chargeback import (
    convert_chargeback,
    no_price_note,
    notices,
    notices_by_month,
    read_before_prices,
    read_cash,
    read_chargeback,
)
from gpuledger_collector.services.fair_share import read_share_use, roll_up_period, share_notes
from gpuledger_collector.storage.billing import cash, locations, periods, providers, reports
from gpuledger_collector.storage.billing.allocation import shares
from gpuledger_collector.storage.billing.cost_centers import BilledCodes
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

app = new_app()
SHARE = "share"
ALWAYS_SHOWN = {"gpu_hours", "cost", "currency"}


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


class FocusVersion(enum.StrEnum):
    """Versions of FOCUS that are written."""

    v1_2 = "1.2"
    v1_4 = "1.4"


@app.command(epilog="Example: gpuledger chargeback --period 2026-10 --by team,project")
def chargeback(
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    by: Annotated[
        str,
        Option(
            "--by",
            help=(
                "Columns: levels of the owner tree, workload, pool, model, node, region; or share."
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
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Say who pays for what; time that nobody held, that nobody is known to pay or that has no rate
    has its own rows.

    `--by share` compares what teams held with their shares of pools: lent, borrowed, and waited for
    while it was lent. With --exit-code it ends with 1 when some usage has no price.
    """
    asked = time_range(period, start, end, days)
    _require_fitting(form, currency, output, view)
    if by == SHARE:
        if view is View.cash:
            refuse("--by share has no --view cash: it compares what was charged for the time")
        _write_shares(asked, form, currency, output, zone, dsn, config)
        return
    names = column_names(by, DIMENSIONS)
    with open_session(dsn, config) as session:
        session.require_zone(zone)
        now_ms, span = session.now_ms, session.rated(asked)
        with session.database.transaction(read_only=True) as connection:
            bill, said, notes = _read_bill(connection, span, names, view, currency, now_ms)
            if form is ChargebackFormat.focus:
                _write_focus(connection, span, _owner_level(names), now_ms, focus_version, output)
            elif form is ChargebackFormat.beancount:
                _write_journal(connection, span, _owner_level(names), now_ms, output)
            elif output is not None and form is ChargebackFormat.parquet:
                lines = csv_rows(bill, said)
                columns = list(map(str, next(lines)))
                rows = (dict(zip(columns, map(str, line), strict=True)) for line in lines)
                parquet.write(rows, output, parquet.chargeback_kinds(columns, bill.by))
            else:
                heading = (
                    range_line(span, session.calendar) if form is ChargebackFormat.table else ""
                )
                write_pieces(
                    chain([heading], _list_text(connection, bill, span, form, notes, said, output)),
                    output,
                )
    for note in notes:
        say(f"gpuledger: {note}", error=True)
    end_with(bool(bill.unpriced), exit_code)


def _list_text(
    connection: Connection,
    bill: Report,
    span: Period,
    form: ChargebackFormat,
    notes: list[str],
    said: list[str],
    output: Path | None,
) -> Iterator[str]:
    """The chargeback as table, CSV or JSON."""
    width = terminal_width() if output is None else None
    waste = whole_waste(
        bill.rows,
        reports.has_capacity(connection, span),
        zones.calendar(connection).months_of(span),
    )
    return report_text(bill, span, options.Format(form.value), notes, width, waste, said)


def _read_bill(
    connection: Connection,
    period: Period,
    names: tuple[str, ...],
    view: View,
    currency: str,
    now_ms: int,
) -> tuple[Report, list[str], list[str]]:
    """The report, the notes that change how a number is read, and all notes."""
    read = read_cash if view is View.cash else read_chargeback
    bill = read(connection, period, names, now_ms).report
    said = notices(connection, period, now_ms, bill)
    notes = said + shared_notes(bill.shared)
    if bill.has_no_price and view is View.amortized:
        bill = read_before_prices(connection, period, names)
        notes.append(no_price_note(period))
    if currency:
        try:
            bill, missing = convert_chargeback(connection, period, names, currency, now_ms)
        except ValueError as error:
            refuse(f"--currency: {error}")
        said, notes = said + missing, notes + missing
    return bill, said, notes


def _write_shares(
    asked: TimeRange,
    form: ChargebackFormat,
    currency: str,
    output: Path | None,
    zone: str | None,
    dsn: str | None,
    config: Path | None,
) -> None:
    """Write what teams held of their shares of pools."""
    if form not in LISTS or currency:
        refuse("--by share is a table, csv or json, in the ledger's currencies")
    with open_session(dsn, config) as session:
        session.require_zone(zone)
        span = session.rated(asked)
        roll_up_period(session.database, span)
        with session.database.transaction(read_only=True) as connection:
            uses, notes = read_share_use(connection, span), share_notes(connection, span)
    if not uses:
        notes.append(
            "no team has a share of a pool; declare [[share]] tables, or run gpuledger import"
            " shares FILE --pool POOL"
        )
    rows = share_rows(uses)
    columns = [
        (
            Column(name)
            if name in {"pool", "team", "currency"}
            else Column(name, name, is_number=True, is_optional=True)
        )
        for name in SHARE_COLUMNS
    ]
    if form is ChargebackFormat.table:
        text = table_text(columns, rows, terminal_width() if output is None else None, [])
    else:
        text = rows_as(form.value, SHARE_COLUMNS, [list(row.values()) for row in rows])
    write_text(text, output)
    for note in notes:
        say(f"gpuledger: {note}", error=True)


def range_line(period: Period, calendar: Calendar) -> str:
    """The days that a table is about."""
    days = (
        f"{calendar.date_of(period.start_ms)} to {calendar.date_of(period.end_ms)} (not included)"
    )
    return f"{days}, days of {calendar.zone_at(period.start_ms).name}\n"


def report_text(
    bill: Report,
    period: Period,
    form: options.Format,
    notes: list[str],
    width: int | None,
    waste: Sequence[WholeWaste] = (),
    said: Sequence[str] = (),
) -> Iterator[str]:
    """A chargeback in pieces, as CSV, JSON or a table of at most `width` columns, totals and the
    whole waste last.

    `said` are those of the notes that change how a number is read.
    """
    if form is options.Format.csv:
        return csv_pieces(csv_rows(bill, said))
    if form is options.Format.json:
        return as_json(bill, period, notes, waste)
    # A terminal lists the dearest rows, a pipe or a file all of them.
    rows = bill.rows if width is None else shortened(bill, MOST_TERMINAL_ROWS).rows
    shown = table_columns(bill)
    if bill.has_no_price:
        known = [texts(row) for row in bill.rows]
        shown = [name for name in shown if any(row.get(name) for row in known)]
    columns = [*map(Column, bill.by), *map(_measure_column, shown)]
    totals = [
        {
            **texts(total),
            bill.by[0]: "unpriced" if total.currency is None and not bill.has_no_price else "total",
        }
        for total in bill.totals
    ]
    lines = [
        cash_line(bill, total) for total in bill.totals if bill.view == CASH and total.currency
    ]
    lines += [waste_line(one) for one in waste if one.minor is not None]
    lines += filter(None, (unbilled_line(bill, total) for total in bill.totals))
    table = table_text(columns, [_table_row(row, bill) for row in rows], width, totals)
    return chain([table], (f"{line}\n" for line in lines))


def _table_row(row: ReportRow, bill: Report) -> dict[str, str]:
    return {**dict(zip(bill.by, row.keys, strict=True)), **texts(row)}


def _measure_column(name: str) -> Column:
    return Column(name, name, is_number=name in NUMBERED, is_optional=name not in ALWAYS_SHOWN)


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


def _owner_level(names: tuple[str, ...]) -> str:
    return next((name for name in names if name in LEVELS), "team")


@contextmanager
def text_file(output: Path | None) -> Iterator[TextIO]:
    """The file to write to, or standard output."""
    if output is None:
        yield sys.stdout
        return
    with output.open("w", encoding="utf-8", newline="") as file:
        yield file


def _write_focus(
    connection: Connection,
    period: Period,
    level: str,
    now_ms: int,
    version: FocusVersion,
    output: Path | None,
) -> None:
    closed = {closed_period.name for closed_period in periods.closed(connection)}
    make_lines: Callable[..., Iterator[dict[str, str]]]
    make_lines, columns = (
        (focus.lines, focus.COLUMNS)
        if version is FocusVersion.v1_2
        else (focus_split.lines, focus_split.COLUMNS)
    )
    calendar = zones.calendar(connection)
    shared = shares(connection, period, level, now_ms)
    charges = BilledCodes(connection).tagged(reports.charges(connection, period))
    payments = cash.payments(connection, period, now_ms)
    lines = make_lines(
        charges,
        level,
        focus.Issuer(),
        closed,
        calendar,
        shared,
        payments,
        providers.by_month(connection, period),
        notices_by_month(connection, period, now_ms),
        locations.by_month(connection, period),
    )
    if output is not None and output.suffix == ".parquet":
        parquet.write(lines, output, parquet.focus_kinds(columns))
        return
    with text_file(output) as file:
        focus.write(lines, file, columns)


def _write_journal(
    connection: Connection, period: Period, level: str, now_ms: int, output: Path | None
) -> None:
    calendar = zones.calendar(connection)
    days = [
        (day, reports.charged_lines(connection, day, (level,))) for day in calendar.days(period)
    ]
    shared = shares(connection, period, level, now_ms)
    codes = BilledCodes(connection).of_owners(period, level)
    with text_file(output) as file:
        beancount.write(days, level, file, calendar, shared, codes)

"""gpuledger chargeback: who bears what, for a range of days."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import (
    FINDINGS,
    LACKING,
    Config,
    Dsn,
    FirstDay,
    LastDay,
    Month,
    database,
    period_of,
    refuse,
)
from gpuledger_collector.cli.terminal import say

if TYPE_CHECKING:
    from gpuledger_collector.accounting.chargeback import Report
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.storage.locks import Connection


class Shape(enum.StrEnum):
    """Forms of the chargeback."""

    table = "table"
    csv = "csv"
    json = "json"
    focus = "focus"
    beancount = "beancount"
    parquet = "parquet"


class FocusVersion(enum.StrEnum):
    """Versions of FOCUS that are written."""

    v1_2 = "1.2"
    v1_4 = "1.4"


def register(root: typer.Typer) -> None:
    """Add `gpuledger chargeback`."""
    root.command(epilog="Example: gpuledger chargeback --period 2026-10 --by team,project")(chargeback)


def chargeback(
    period: Month = None,
    start: FirstDay = None,
    end: LastDay = None,
    by: Annotated[str, typer.Option("--by", help="Columns: levels of the owner tree, workload, pool, model, node.")] = (
        "team"
    ),
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    focus_version: Annotated[
        FocusVersion,
        typer.Option("--focus-version", help="For focus: 1.2, or 1.4 with the columns of split allocation."),
    ] = FocusVersion.v1_2,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to a file; focus into FILE.parquet is Parquet."),
    ] = None,
    currency: Annotated[
        str,
        typer.Option(
            "--currency", metavar="CODE", help="See it in another currency, at the declared [[exchange]] rates."
        ),
    ] = "",
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say who bears what; what nobody held, nobody is known to pay or no rate covers has rows of its own.

    Ends with 1 when some usage has no price.
    """
    from gpuledger_collector.accounting.chargeback import DIMENSIONS

    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    unknown = [name for name in names if name not in DIMENSIONS]
    if unknown or not names:
        refuse(f"--by: {unknown[0] if unknown else by!r} is none of {', '.join(DIMENSIONS)}")
    days = period_of(period, start, end)
    _require_fitting(shape, currency, output)
    with database(dsn, config) as opened:
        from gpuledger_collector.cli.progress import bar
        from gpuledger_collector.services.chargeback import chargeback_notes, convert_chargeback, read_chargeback
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.ledger import zones
        from gpuledger_collector.wiring import now

        now_ms = int(now().timestamp() * 1000)
        with opened.transaction() as connection:
            days = zones.in_zone(connection, days)
        with bar("rating") as on_day:
            refresh(opened, days, now_ms, on_day)
        with opened.transaction(read_only=True) as connection:
            made = read_chargeback(connection, days, names, now_ms).report
            notes = chargeback_notes(connection, days, now_ms, made)
            if currency:
                try:
                    made, missing = convert_chargeback(connection, days, names, currency, now_ms)
                except ValueError as error:
                    refuse(f"--currency: {error}")
                notes += missing
            if shape is Shape.focus:
                _write_focus(connection, days, names, now_ms, focus_version, output)
            elif shape is Shape.beancount:
                _write_journal(connection, days, names, now_ms, output)
            elif shape is Shape.parquet:
                _write_parquet(made, output)
            else:
                _emit(_text(made, days, shape, notes), output)
    for note in notes:
        say(f"gpuledger: {note}", error=True)
    if made.unpriced:
        raise typer.Exit(FINDINGS)


def _text(made: Report, period: Period, shape: Shape, notes: list[str]) -> str:
    from gpuledger_collector.export import chargeback as forms

    if shape is Shape.csv:
        return forms.as_csv(made)
    if shape is Shape.json:
        return forms.as_json(made, period, notes)
    terminal = sys.stdout.isatty()
    if terminal:
        import shutil

        return forms.as_table(made, shutil.get_terminal_size().columns)
    return forms.as_table(made, None)


def _emit(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8", newline="")


def _require_fitting(shape: Shape, currency: str, output: Path | None) -> None:
    """Refuses what does not go together, before any work is done."""
    if currency and shape not in {Shape.table, Shape.csv, Shape.json}:
        refuse(f"--currency is a view of the table, csv and json; {shape.value} has the ledger's currencies")
    if output is not None and not output.parent.is_dir():
        refuse(f"{output.parent} is no folder to write to")
    if shape is Shape.parquet or (output is not None and output.suffix == ".parquet"):
        _require_parquet(shape, output)


def _require_parquet(shape: Shape, output: Path | None) -> None:
    """Refuses what cannot be written as Parquet, before any work is done."""
    from gpuledger_collector.export import parquet

    if output is None:
        refuse("--format parquet needs a file to write to: -o chargeback.parquet")
    if shape not in {Shape.parquet, Shape.focus}:
        refuse(f"-o {output}: only --format parquet and --format focus write Parquet")
    try:
        parquet.arrow()
    except parquet.ArrowMissing as error:
        refuse(str(error), LACKING)


def _write_parquet(made: Report, output: Path | None) -> None:
    import csv
    import io

    from gpuledger_collector.export import chargeback, parquet

    rows = csv.DictReader(io.StringIO(chargeback.as_csv(made), newline=""))
    assert output is not None
    parquet.write(rows, output, parquet.chargeback_kinds(rows.fieldnames or (), made.by))


def _write_focus(
    connection: Connection,
    period: Period,
    names: tuple[str, ...],
    now_ms: int,
    version: FocusVersion,
    output: Path | None,
) -> None:
    from gpuledger_collector.accounting.owner_tree import LEVELS
    from gpuledger_collector.export import focus, focus_split, parquet
    from gpuledger_collector.storage.billing import periods
    from gpuledger_collector.storage.billing.allocation import shares
    from gpuledger_collector.storage.ledger import reports, zones

    level = next((name for name in names if name in LEVELS), "team")
    closed = {one.name for one in periods.closed(connection)}
    form, columns = (
        (focus.lines, focus.COLUMNS) if version is FocusVersion.v1_2 else (focus_split.lines, focus_split.COLUMNS)
    )
    days = zones.calendar(connection)
    borne = shares(connection, period, level, now_ms)
    lines = form(reports.charges(connection, period), level, focus.Issuer(), closed, days, borne)
    if output is None:
        focus.write(lines, sys.stdout, columns)
    elif output.suffix == ".parquet":
        parquet.write(lines, output, parquet.focus_kinds(columns))
    else:
        with output.open("w", encoding="utf-8", newline="") as file:
            focus.write(lines, file, columns)


def _write_journal(
    connection: Connection, period: Period, names: tuple[str, ...], now_ms: int, output: Path | None
) -> None:
    from gpuledger_collector.accounting.owner_tree import LEVELS
    from gpuledger_collector.export import beancount
    from gpuledger_collector.storage.billing.allocation import shares
    from gpuledger_collector.storage.ledger import reports, zones

    level = next((name for name in names if name in LEVELS), "team")
    calendar = zones.calendar(connection)
    days = [(day, reports.charged_lines(connection, day, (level,))) for day in calendar.days(period)]
    borne = shares(connection, period, level, now_ms)
    if output is None:
        beancount.write(days, level, sys.stdout, calendar, borne)
        return
    with output.open("w", encoding="utf-8", newline="") as file:
        beancount.write(days, level, file, calendar, borne)

"""Lists as a table, CSV or JSON: columns are declared once, and every command prints through here."""

from __future__ import annotations

import csv
import io
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from gpuledger_collector.cli import options
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.cells import json_text, to_minute
from gpuledger_collector.export.report import Item, Kind, Report
from gpuledger_common.escapes import escape_text, neutral

Row = Mapping[str, Any]
GAP = 2
"""Spaces between the columns of a table."""
MIN_TEXT = 8
"""Texts are folded to no less than this many characters before optional columns are left out."""


def plain(value: Any) -> str:
    """A value as text; empty when it is not known."""
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return "" if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """A column: its name in CSV and JSON, its heading in a table, and how a table shows it."""

    name: str
    heading: str = ""
    is_number: bool = False
    """Numbers align right and are never folded, however narrow the terminal is."""
    is_optional: bool = False
    """Left out of a table that is wider than the terminal; the last one first."""
    in_table: bool = True
    show: Callable[[Any], str] = plain
    in_csv: bool = True


number = partial(Column, is_number=True)
hidden = partial(Column, in_table=False)
"""A column of CSV only."""


def emit(
    form: options.Format,
    columns: Sequence[Column],
    rows: Sequence[Row],
    footer: Iterable[str] = (),
    totals: Sequence[Row] = (),
) -> None:
    """Print a list.

    `footer`: lines below the table; `totals`: its last rows. Neither is part of CSV and JSON.

    JSON has all keys of a row, also those that are no column.
    """
    sys.stdout.write(list_text(form, columns, rows, terminal_width(), totals))
    if form is options.Format.table:
        for line in footer:
            say(line)


def list_text(
    form: options.Format,
    columns: Sequence[Column],
    rows: Sequence[Row],
    width: int | None,
    totals: Sequence[Row] = (),
) -> str:
    """A list as text; a table of at most `width` columns."""
    if form is options.Format.csv:
        return csv_text(columns, rows)
    if form is options.Format.table:
        return table_text(columns, rows, width, totals)
    names = [column.name for column in columns]
    objects = [{name: row[name] for name in names if name in row} | dict(row) for row in rows]
    return f"{json_text(objects)}\n"


def columns_of(report: Report[Any]) -> tuple[Column, ...]:
    """The columns of a report as a table shows them: instants to the minute."""
    return tuple(
        Column(
            column.name,
            column.heading,
            column.is_number,
            column.is_optional,
            column.in_table,
            to_minute if column.kind is Kind.INSTANT else plain,
            column.in_csv,
        )
        for column in report.columns
    )


def emit_report(
    form: options.Format,
    report: Report[Item],
    items: Iterable[Item],
    footer: Iterable[str] = (),
    totals: Sequence[Row] = (),
    *,
    is_exact: bool = False,
) -> None:
    """Print a list by what its report says of its columns.

    `is_exact`: JSON has numbers, lists and null instead of texts.
    """
    cells = report.exact if is_exact and form is options.Format.json else report.texts
    emit(form, columns_of(report), [cells(item) for item in items], footer, totals)


def report_text(
    form: options.Format, report: Report[Item], items: Iterable[Item], width: int | None
) -> str:
    """A list as text, by what its report says of its columns."""
    return list_text(form, columns_of(report), list(map(report.texts, items)), width)


def print_json(content: object) -> None:
    """Print an indented JSON document; invisible characters are escapes in it."""
    print(json_text(content))


def csv_text(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Rows as CSV: LF, unknown values empty, texts neutralized against spreadsheet formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [column for column in columns if column.in_csv]
    writer.writerow(column.name for column in columns)
    for row in rows:
        values = [(column, row.get(column.name)) for column in columns]
        # A number may be negative; an apostrophe before its sign would make it a text.
        writer.writerow(
            plain(value) if column.is_number else neutral(plain(value)) for column, value in values
        )
    return text.getvalue()


def terminal_width() -> int | None:
    """Columns of the terminal; None where standard output is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_text(
    columns: Sequence[Column], rows: Sequence[Row], width: int | None, totals: Sequence[Row] = ()
) -> str:
    """A table of at most `width` columns (None: as wide as it needs), if its numbers fit; ''
    without rows.
    """
    if not rows and not totals:
        return ""
    shown = [column for column in columns if column.in_table]
    # Escaped before they are measured: an escape is longer than the invisible character that it
    # stands for.
    cells = {
        column.name: [escape_text(column.show(row.get(column.name))) for row in (*rows, *totals)]
        for column in shown
    }
    needs = {
        column.name: max(map(cell_len, [_heading(column), *cells[column.name]])) for column in shown
    }
    if width is None:
        return "\n".join(_plain_lines(shown, cells, needs)) + "\n"
    from rich.console import Console  # a pipe needs neither colors nor folding

    from gpuledger_collector.export.tables import Table

    shown = _fit(shown, needs, width)
    table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
    for column in shown:
        table.add_column(
            _heading(column),
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold",
            width=needs[column.name],
        )
    for index in range(len(rows)):
        table.add_row(*(cells[column.name][index] for column in shown))
    for index in range(len(rows), len(rows) + len(totals)):
        table.add_row(*(cells[column.name][index] for column in shown), style="bold")
    text = io.StringIO()
    needed = sum(needs[column.name] + GAP for column in shown)
    Console(
        file=text,
        width=max(needed, 1),
        force_terminal=sys.stdout.isatty(),
        markup=False,
        emoji=False,
        highlight=False,
    ).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _plain_lines(
    columns: Sequence[Column], cells: Mapping[str, Sequence[str]], needs: Mapping[str, int]
) -> Iterator[str]:
    """The heading and each row, every column as wide as it needs."""
    lines = [
        [_heading(column) for column in columns],
        *zip(*(cells[column.name] for column in columns), strict=True),
    ]
    for line in lines:
        parts = []
        for column, cell in zip(columns, line, strict=True):
            blank = " " * (needs[column.name] - cell_len(cell))
            parts.append(blank + cell if column.is_number else cell + blank)
        yield (" " * GAP).join(parts).rstrip()


def _heading(column: Column) -> str:
    return column.heading or column.name.replace("_", " ")


def _fit(columns: list[Column], needs: dict[str, int], width: int) -> list[Column]:
    """The columns that fit, with the widths of texts in `needs` made narrower until they do."""
    shown = list(columns)
    while True:
        # Narrow the widest text by one, as long as that can suffice; else leave out the last
        # optional column and look again; with none left, narrow every text as far as it goes.
        # Numbers keep their width throughout.
        excess = sum(needs[column.name] + GAP for column in shown) - GAP - width
        texts = [
            column.name
            for column in shown
            if not column.is_number and needs[column.name] > MIN_TEXT
        ]
        if excess <= 0:
            return shown
        if texts and sum(needs[name] - MIN_TEXT for name in texts) >= excess:
            needs[max(texts, key=needs.__getitem__)] -= 1
        elif any(column.is_optional for column in shown):
            shown.remove([column for column in shown if column.is_optional][-1])
        elif texts:
            for name in texts:
                needs[name] = MIN_TEXT
        else:
            return shown


def write_text(text: str, output: Path | None) -> None:
    """Write a text to a file, or to standard output."""
    write_pieces([text], output)


def write_pieces(pieces: Iterable[str], output: Path | None) -> None:
    """Write a text to a file, or to standard output, piece by piece."""
    if output is None:
        sys.stdout.writelines(pieces)
        return
    with output.open("w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)

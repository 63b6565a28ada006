"""Lists as a table, CSV or JSON by their reports: every command prints through here."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len

from gpuledger_collector.cli import options
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.cells import json_text
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.export.report import Column, Item, Kind, Report
from gpuledger_collector.export.table_cells import ROUNDED, are_rounded, table_cells

GAP = 2
"""Spaces between the columns of a table."""
MIN_TEXT, LONGEST_WORD = 8, 24
"""Texts are folded to no less than this many characters, nor within a word that is no longer than
that, before optional columns are left out.
"""
OPEN_FILES = {Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd")}
"""Folders whose names stand for devices and for files that a process has open."""


def emit_report(
    form: options.Format,
    report: Report[Item],
    items: Iterable[Item],
    footer: Iterable[str] = (),
    totals: Sequence[Item] = (),
    *,
    is_exact: bool = False,
) -> None:
    """Print a list by what its report says of its columns.

    `footer`: lines below the table; `totals`: its last rows. Neither is part of CSV and JSON.
    `is_exact`: JSON has numbers, lists and null instead of texts.
    """
    width = terminal_width()
    sys.stdout.write(report_text(form, report, items, width, totals, is_exact=is_exact))
    if form is options.Format.table:
        for line in footer:
            say(line)


def report_text(
    form: options.Format,
    report: Report[Item],
    items: Iterable[Item],
    width: int | None,
    totals: Sequence[Item] = (),
    *,
    is_exact: bool = False,
) -> str:
    """A list as text; a table of at most `width` columns."""
    if form is options.Format.csv:
        return "".join(csv_pieces(report.csv_rows(items)))
    if form is options.Format.table:
        return table_text(report.columns, list(items), width, totals)
    cells = report.exact if is_exact else report.texts
    return f"{json_text(list(map(cells, items)))}\n"


def print_json(content: object) -> None:
    """Print an indented JSON document; invisible characters are escapes in it."""
    print(json_text(content))


def terminal_width() -> int | None:
    """Columns of the terminal; None where standard output is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_text(
    columns: Sequence[Column[Item]],
    rows: Sequence[Item],
    width: int | None,
    totals: Sequence[Item] = (),
) -> str:
    """A table of at most `width` columns (None: as wide as it needs), if its numbers fit, for
    people; '' without rows.
    """
    if not rows and not totals:
        return ""
    shown = [column for column in columns if column.in_table]
    items = (*rows, *totals)
    cells = {column.name: table_cells(column, items) for column in shown}
    note = f"{ROUNDED}\n" if totals and are_rounded(shown, cells, items) else ""
    needs = {
        column.name: max(map(cell_len, [column.title, *cells[column.name]])) for column in shown
    }
    if width is None:
        return "\n".join(_plain_lines(shown, cells, needs)) + f"\n{note}"
    from rich.console import Console  # a pipe needs neither colors nor folding

    from gpuledger_collector.export.tables import Table

    words = {name: max(map(_longest_word, texts), default=0) for name, texts in cells.items()}
    shown = _fit(shown, needs, words, width)
    table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
    for column in shown:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=column.keeps_width,
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
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + f"\n{note}"


def _plain_lines(
    columns: Sequence[Column[Item]], cells: Mapping[str, Sequence[str]], needs: Mapping[str, int]
) -> Iterator[str]:
    """The heading and each row, every column as wide as it needs."""
    lines = [
        [column.title for column in columns],
        *zip(*(cells[column.name] for column in columns), strict=True),
    ]
    for line in lines:
        parts = []
        for column, cell in zip(columns, line, strict=True):
            blank = " " * (needs[column.name] - cell_len(cell))
            parts.append(blank + cell if column.is_number else cell + blank)
        yield (" " * GAP).join(parts).rstrip()


def _longest_word(text: str) -> int:
    longest = max(map(cell_len, text.split()), default=0)
    return longest if longest <= LONGEST_WORD else 0


def _fit(
    columns: list[Column[Item]], needs: dict[str, int], words: Mapping[str, int], width: int
) -> list[Column[Item]]:
    """The columns that fit, with the widths of texts in `needs` made narrower until they do, to
    that of their longest word in `words` if that is enough.
    """
    shown = list(columns)
    least = {name: max(MIN_TEXT, length) for name, length in words.items()}
    while True:
        # A line of blocks goes first: it decides less than any text. Then narrow the widest text by
        # one, as long as that can suffice; else leave out the last optional column and look again;
        # with none left, break words as well. Numbers keep their width throughout.
        excess = sum(needs[column.name] + GAP for column in shown) - GAP - width
        texts = [
            column.name
            for column in shown
            if not column.keeps_width and needs[column.name] > least[column.name]
        ]
        if excess <= 0:
            return shown
        if any(column.kind is Kind.SERIES for column in shown):
            shown = [column for column in shown if column.kind is not Kind.SERIES]
            continue
        if texts and sum(needs[name] - least[name] for name in texts) >= excess:
            needs[max(texts, key=needs.__getitem__)] -= 1
        elif any(column.is_optional for column in shown):
            shown.remove([column for column in shown if column.is_optional][-1])
        elif any(length > MIN_TEXT for length in least.values()):
            least = dict.fromkeys(least, MIN_TEXT)
        else:
            needs.update(dict.fromkeys(texts, MIN_TEXT))
            return shown


def write_text(text: str, output: Path | None) -> None:
    """Write a text to a file, or to standard output."""
    write_pieces([text], output)


def write_pieces(pieces: Iterable[str], output: Path | None) -> None:
    """Write a text to a file, or to standard output, piece by piece.

    A file is complete or as it was before; a device, a pipe or a file that is open already
    (`/dev/stdout`) is written as the pieces come.
    """
    if output is None:
        sys.stdout.writelines(pieces)
        return
    target = output.resolve()
    if (
        (output.exists() and not output.is_file())
        or output.absolute().parent in OPEN_FILES
        or not os.access(target.parent, os.W_OK)
    ):
        _write_in_place(pieces, output)
        return
    # A name that nobody can guess, so that nothing is written through another user's link.
    descriptor, name = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            os.fchmod(file.fileno(), _mode_of(target))
            file.writelines(pieces)
        try:
            unfinished.replace(target)
        except OSError:
            # A single file that is mounted into a container can be written, and not replaced.
            with unfinished.open(encoding="utf-8", newline="") as complete:
                _write_in_place(complete, output)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_in_place(pieces: Iterable[str], output: Path) -> None:
    with output.open("w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)


def _mode_of(target: Path) -> int:
    """The rights of a file that is there, and those of a new one otherwise."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

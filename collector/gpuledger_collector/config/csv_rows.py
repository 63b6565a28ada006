"""CSV files as records: what is wrong with a file is collected, so that one run names all of it."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuledger_collector.accounting.import_progress import OnRow, tell_each, tell_nobody
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config import workbook
from gpuledger_collector.config.bounded_csv import BoundedRows
from gpuledger_collector.config.fields import Instants
from gpuledger_collector.config.files import (
    MAX_COLUMNS,
    bounded_rows,
    read_content,
    require_few_problems,
)
from gpuledger_collector.config.model import Record, Row

WINDOWS = "read as Windows-1252, because it is not UTF-8"
_NO_TEXT = "is no text; save its table as CSV UTF-8 or .xlsx"
_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[\[{\"\]])")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
Value = TypeVar("Value")
AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass
class Parsed(Generic[Value]):
    """Rows that are good, problems of those that are not, and notes for the person who imports."""

    rows: list[Value] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_rows(
    path: Path,
    model: type[AnyRow],
    parsed: Parsed[Any],
    instants: Instants,
    on_line: OnRow = tell_nobody,
) -> Iterator[tuple[Record, AnyRow]]:
    """The good rows of a CSV file with their records.

    Raises OSError when the file cannot be opened.
    """
    for record in read_records(path, model, parsed, on_line):
        row = model.read(record, parsed.problems, instants)
        if row is not None:
            yield record, row


def read_records(
    path: Path, model: type[Row], parsed: Parsed[Any], on_line: OnRow = tell_nobody
) -> Iterator[Record]:
    """The rows of a CSV file as they stand, of the columns that the model knows; `read_rows` checks
    what they hold.

    What is wrong with the file or its header is put into `parsed` at the call; with a problem in
    `parsed` there are no rows. `on_line` is told how many of how many lines are read. Raises
    OSError when the file cannot be opened.
    """
    text = decode(path, parsed.problems, parsed.notes)
    if text is None:
        return iter(())
    header, records = split_rows(path, text, parsed.problems, on_line=on_line)
    if not any(header):  # what is no table has no columns that could be missing
        return iter(())
    parsed.problems.extend(missing_columns(path, header, model.needed_columns()))
    # A bad header makes every row bad: stop here, and name the columns alone.
    if parsed.problems:
        return iter(())
    keys = model.cell_names()
    kept = {name for name in header if name in keys}
    parsed.notes.extend(ignored_note(name, keys) for name in header if name and name not in kept)
    if len(kept) == len(header):
        return records
    return (
        Record(
            record.file,
            record.line,
            {name: cell for name, cell in record.cells.items() if name in kept},
        )
        for record in records
    )


@dataclass(frozen=True)
class TableText:
    """The text of a file of rows.

    `origin`: how it became text, where that is worth a word; else empty.

    `delimiter` None: to be seen by the text.
    """

    text: str
    origin: str = ""
    delimiter: str | None = None


def decode(path: Path, problems: list[Problem], notes: list[str]) -> str | None:
    """The file's text, as `read_table_text` reads it, with a note where that is worth a word.

    Raises OSError.
    """
    table = read_table_text(path, problems)
    if table is None:
        return None
    if table.origin:
        notes.append(table.origin)
    return table.text


def read_table_text(
    path: Path, problems: list[Problem], sheet: str | None = None
) -> TableText | None:
    """The file's text, gunzipped when its name ends in .gz; None after adding a problem.

    Raises OSError.

    Of a workbook it is the sheet of this name, or the first one.
    """
    content = bytearray()
    try:
        content = read_content(path)
        if workbook.is_workbook(content):
            chosen = workbook.read_sheet(path, content, sheet)
            return TableText(chosen.text, f"sheet {chosen.name!r} of a workbook", ",")
        if sheet is not None or content.startswith(b"%PDF"):
            message = (
                _NO_TEXT
                if sheet is None
                else "is no workbook, and has no sheets; leave out --sheet"
            )
            problems.append(Problem("bad_workbook", str(path), message))
            return None
        # "Unicode text" of spreadsheets.
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return TableText(content.decode("utf-16"))
        # Spreadsheets begin their UTF-8 files with a byte order mark.
        return TableText(content.decode("utf-8-sig"))
    except workbook.WorkbookRefused as error:
        problems.append(Problem("bad_workbook", str(path), str(error)))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problems.append(Problem("bad_gzip", str(path), f"is not a whole gzip file: {error}"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        try:
            return TableText(_windows_text(content), WINDOWS)
        except UnicodeDecodeError:
            problems.append(
                Problem("bad_encoding", f"{path}:{line}", "is not UTF-8 text; save it as CSV UTF-8")
            )
        except ValueError as mixed:
            problems.append(Problem("bad_encoding", f"{path}:{line}", str(mixed)))
    return None


def _windows_text(content: bytearray) -> str:
    """The text of a file that is not UTF-8 as Windows writes it: a byte for each letter of western
    Europe.

    Raises ValueError for a file that is UTF-8 but for some places, and UnicodeDecodeError for what
    is no text.
    """
    if b"\0" in content:
        raise ValueError(_NO_TEXT)
    # A letter of UTF-8 has bytes that Windows would read as two or three odd ones.
    letters = _NOT_ASCII.findall(content.decode("utf-8", "surrogateescape"))
    if any(letter < "\udc80" or letter > "\udcff" for letter in letters):
        raise ValueError(
            "is UTF-8 text up to here; some of it was written otherwise: save it as CSV UTF-8"
        )
    return content.decode("cp1252")


def line_count(text: str) -> int:
    """About how many lines a text has, whatever ends them."""
    return max(text.count("\n"), text.count("\r"))


def split_rows(
    path: Path,
    text: str,
    problems: list[Problem],
    delimiter: str = ",",
    free: str | None = None,
    on_line: OnRow = tell_nobody,
) -> tuple[list[str], Iterator[Record]]:
    """Header and rows of a CSV text; a row with another number of cells than the header is a
    problem.

    `free`: the column that may hold the delimiter itself, for programs that do not quote. `on_line`
    is told how many of how many lines are read.
    """
    if _JSON.match(text):
        problems.append(
            Problem("bad_csv", f"{path}:1", "is JSON and no table; write its rows as CSV")
        )
        return [], iter(())
    # Line by line: a StringIO takes four bytes for each character.
    lines = tell_each((match[0] for match in _LINE.finditer(text)), line_count(text), on_line)
    reader = BoundedRows(lines, strict=True, delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        problems.append(Problem("bad_csv", f"{path}:1", f"is not CSV: {error}"))
        return [], iter(())
    if len(header) > MAX_COLUMNS:
        message = f"the header names {len(header)} columns; at most {MAX_COLUMNS} are read"
        problems.append(Problem("bad_csv", f"{path}:1", message))
        return [], iter(())
    if not any(header):
        problems.append(
            Problem(
                "no_header", f"{path}:1", "the file is empty; its first line must name the columns"
            )
        )
    problems.extend(
        Problem("double_column", f"{path}:1:{name}", "the header names this column twice")
        for name in sorted(name for name, count in Counter(header).items() if count > 1)
    )
    if free is not None:
        return header, _rows(
            str(path), _JoiningReader(reader, header, delimiter, free), header, problems
        )
    return header, _rows(str(path), reader, header, problems)


class _JoiningReader:
    """A reader of rows that puts the parts of one column together again."""

    def __init__(self, reader: BoundedRows, header: list[str], delimiter: str, free: str) -> None:
        self._reader, self._width, self._delimiter, self._place = (
            reader,
            len(header),
            delimiter,
            header.index(free),
        )

    @property
    def line_num(self) -> int:
        return self._reader.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        cells = next(self._reader)
        more = len(cells) - self._width
        if more <= 0:
            return cells
        behind = self._place + 1 + more
        return [
            *cells[: self._place],
            self._delimiter.join(cells[self._place : behind]),
            *cells[behind:],
        ]


def _rows(
    file: str, reader: BoundedRows | _JoiningReader, header: list[str], problems: list[Problem]
) -> Iterator[Record]:
    for _ in bounded_rows(file, itertools.count()):
        require_few_problems(file, problems)
        # the line on which the row begins: a quoted cell may hold line ends
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(Problem("bad_csv", f"{file}:{line}", f"is not CSV: {error}"))
            continue
        if cells and len(cells) != len(header):
            message = f"has {len(cells)} cells where the header has {len(header)}"
            problems.append(Problem("bad_row", f"{file}:{line}", message))
        elif cells:
            yield Record(file, line, dict(zip(header, cells, strict=True)))


def missing_columns(
    path: Path, header: Sequence[str], required: Sequence[str]
) -> Iterator[Problem]:
    """A problem for each required column that the header does not name, with the nearest name that
    it has.
    """
    for name in required:
        if name not in header:
            near = get_close_matches(name, header, 1)
            hint = f"; is it {near[0]!r}?" if near else ""
            message = f"the header does not name this required column{hint}"
            yield Problem("no_column", f"{path}:1:{name}", message)


def ignored_note(name: str, known: Sequence[str]) -> str:
    """The sentence about a column that means nothing, with the nearest name that does."""
    near = get_close_matches(name, known, 1)
    return f"column {name!r} is ignored" + (f" (is it {near[0]!r}?)" if near else "")

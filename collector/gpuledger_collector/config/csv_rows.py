"""CSV files as records: what is wrong with a file is collected, so that one run names all of it."""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.fields import Instants
from gpuledger_collector.config.files import bounded_rows, read_content
from gpuledger_collector.config.model import Record, Row

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
Value = TypeVar("Value")
AnyRow = TypeVar("AnyRow", bound=Row)
# cells over MAX_TEXT are refused with their column; csv's own limit, 128 KiB by default, knows none
csv.field_size_limit(1 << 20)


@dataclass
class Parsed(Generic[Value]):
    """Rows that are good, problems of those that are not, and notes for the person who imports."""

    rows: list[Value] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_rows(
    path: Path, model: type[AnyRow], parsed: Parsed[Any], instants: Instants
) -> Iterator[tuple[Record, AnyRow]]:
    """The good rows of a CSV file with their records. Raises OSError when the file cannot be opened."""
    for record in read_records(path, model, parsed):
        row = model.read(record, parsed.problems, instants)
        if row is not None:
            yield record, row


def read_records(path: Path, model: type[Row], parsed: Parsed[Any]) -> Iterator[Record]:
    """The rows of a CSV file, without columns that the model does not know; none when the header is bad.

    Raises OSError when the file cannot be opened.
    """
    text = decode(path, parsed.problems)
    if text is None:
        return iter(())
    header, records = split_rows(path, text, parsed.problems)
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
        Record(record.file, record.line, {name: cell for name, cell in record.cells.items() if name in kept})
        for record in records
    )


def decode(path: Path, problems: list[Problem]) -> str | None:
    """The file's text, gunzipped when its name ends in .gz; None after adding a problem. Raises OSError."""
    content = bytearray()
    try:
        content = read_content(path)
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # "Unicode text" of spreadsheets
            return content.decode("utf-16")
        return content.decode("utf-8-sig")  # spreadsheets begin their UTF-8 files with a byte order mark
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problems.append(Problem("bad_gzip", str(path), f"is not a whole gzip file: {error}"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problems.append(Problem("bad_encoding", f"{path}:{line}", _encoding_message(path, content)))
    return None


def _encoding_message(path: Path, content: bytearray) -> str:
    """Why a file is no text, and how to make it one: Windows writes the letters of western Europe in a byte each."""
    if content.startswith(b"PK\x03\x04"):
        return "is a workbook (.xlsx, .ods) or an archive and no text; save its sheet as CSV UTF-8"
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return "is not UTF-8 text; save it as CSV UTF-8"
    return (
        "is not UTF-8 but looks like Windows-1252; save it as CSV UTF-8, or: "
        f"iconv -f WINDOWS-1252 -t UTF-8 {path.name} > utf8.csv"
    )


def split_rows(
    path: Path, text: str, problems: list[Problem], delimiter: str = ",", free: str | None = None
) -> tuple[list[str], Iterator[Record]]:
    """Header and rows of a CSV text; a row with another number of cells than the header is a problem.

    `free`: the column that may hold the delimiter itself, for programs that do not quote.
    """
    # Line by line: a StringIO takes four bytes for each character.
    lines = (match[0] for match in _LINE.finditer(text))
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        problems.append(Problem("bad_csv", f"{path}:1", f"is not CSV: {error}"))
        return [], iter(())
    if not any(header):
        problems.append(Problem("no_header", f"{path}:1", "the file is empty; its first line must name the columns"))
    problems.extend(
        Problem("double_column", f"{path}:1:{name}", "the header names this column twice")
        for name in sorted({name for name in header if header.count(name) > 1})
    )
    if free is not None:
        return header, _rows(str(path), _JoiningReader(reader, header, delimiter, free), header, problems)
    return header, _rows(str(path), reader, header, problems)


class _JoiningReader:
    """A csv.reader that puts the parts of one column together again."""

    def __init__(self, reader: Iterator[list[str]], header: list[str], delimiter: str, free: str) -> None:
        self._reader, self._width, self._delimiter, self._place = reader, len(header), delimiter, header.index(free)

    @property
    def line_num(self) -> int:
        return self._reader.line_num  # type: ignore[attr-defined,no-any-return]  # csv.reader has it

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        cells = next(self._reader)
        more = len(cells) - self._width
        if more <= 0:
            return cells
        behind = self._place + 1 + more
        return [*cells[: self._place], self._delimiter.join(cells[self._place : behind]), *cells[behind:]]


def _rows(file: str, reader: Iterator[list[str]], header: list[str], problems: list[Problem]) -> Iterator[Record]:
    for _ in bounded_rows(file, itertools.count()):
        # the line on which the row begins: a quoted cell may hold line ends
        line = reader.line_num + 1  # type: ignore[attr-defined]  # csv.reader has it, Iterator does not
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


def missing_columns(path: Path, header: Sequence[str], required: Sequence[str]) -> Iterator[Problem]:
    """A problem for each required column that the header does not name, with the nearest name that it has."""
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

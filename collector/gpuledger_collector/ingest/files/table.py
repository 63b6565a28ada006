"""A CSV file as rows of named cells, and the cells as values.

One run must name everything that is wrong with a file, so nothing here raises for a bad cell: a `RowReader` hands out
values, or None after noting a Problem with file, line, column and reason.
"""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Generic, TypeVar

from gpuledger_collector.accounting.period import parse_instant
from gpuledger_collector.accounting.problems import Problem

Row = TypeVar("Row")
LATEST_MS = 4_102_444_800_000
"""2100-01-01: an instant after it is a mistake of units (milliseconds taken for seconds)."""
MAX_TEXT = 4_000
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?")
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
csv.field_size_limit(1 << 20)


@dataclass
class Parsed(Generic[Row]):
    """Rows that are good, problems of those that are not, and notes for the person who imports."""

    rows: list[Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class RowReader:
    """The cells of one row; problems go to `problems` with file, line and column."""

    file: str
    line: int
    cells: Mapping[str, str]
    problems: list[Problem]
    bad: bool = False

    def refuse(self, column: str, code: str, message: str) -> None:
        """Note that this row is bad, and why."""
        self.bad = True
        self.problems.append(Problem(code, f"{self.file}:{self.line}:{column}", message))

    def text(self, column: str, *, required: bool = False) -> str:
        """The cell without surrounding blanks; '' where the column is missing."""
        value = self.cells.get(column, "").strip()
        if not value and required:
            self.refuse(column, "empty", "is empty")
        if _UNKEEPABLE.search(value):
            self.refuse(column, "bad_character", "holds a character that no text can keep (NUL, or half of a pair)")
        if len(value) > MAX_TEXT:
            self.refuse(column, "too_long", f"has {len(value)} characters; at most {MAX_TEXT} are kept")
        return value

    def optional_text(self, column: str) -> str | None:
        """The cell, None where it is empty."""
        return self.text(column) or None

    def instant(self, column: str, *, required: bool = False, dates: bool = False) -> int | None:
        """The cell as unix milliseconds; None where it is empty or bad. `dates`: a bare date is its UTC midnight."""
        value = self.text(column, required=required)
        if not value:
            return None
        try:
            at_ms = _midnight(value) if dates and _DATE.fullmatch(value) else parse_instant(value)
        except (ValueError, OverflowError) as error:
            self.refuse(column, "bad_instant", str(error))
            return None
        if not 0 <= at_ms < LATEST_MS:
            self.refuse(column, "bad_instant", f"{value!r} lies outside 1970 to 2100; unix instants are in seconds")
            return None
        return at_ms

    def decimal(self, column: str, *, digits: int, most: int, required: bool = False) -> Decimal | None:
        """The cell as a decimal of at most `digits` places, from 0 to `most`; None where it is empty or bad."""
        value = self.text(column, required=required)
        if not value:
            return None
        if not _DECIMAL.fullmatch(value):
            self.refuse(column, "bad_number", f"{value!r} is not a decimal number such as 1.25")
            return None
        number = Decimal(value)
        if not 0 <= number <= most:
            self.refuse(column, "out_of_range", f"{value} is not between 0 and {most}")
            return None
        if number != round(number, digits):
            self.refuse(column, "too_precise", f"{value} has more than {digits} decimals")
            return None
        return number


def _midnight(text: str) -> int:
    return int(dt.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=dt.UTC).timestamp()) * 1000


def read_text(path: Path) -> tuple[str, list[Problem]]:
    """The file's text (gunzipped when it ends in .gz), or a Problem. Raises OSError when it cannot be opened."""
    content = path.read_bytes()
    try:
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig"), []
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return "", [Problem("bad_gzip", str(path), f"is not a whole gzip file: {error}")]
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return "", [Problem("bad_encoding", f"{path}:{line}", "is not UTF-8 text")]


def rows_of(path: Path, text: str, problems: list[Problem]) -> tuple[list[str], Iterator[RowReader]]:
    """Header and rows of a CSV text; a row with another number of cells than the header is a Problem."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
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
    return header, _rows(str(path), reader, header, problems)


def _rows(file: str, reader: Iterator[list[str]], header: list[str], problems: list[Problem]) -> Iterator[RowReader]:
    line = 1
    while True:
        line = reader.line_num + 1  # type: ignore[attr-defined]  # csv.reader has it, Iterator does not
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(Problem("bad_csv", f"{file}:{line}", f"is not CSV: {error}"))
            continue
        if not cells:
            continue
        if len(cells) != len(header):
            problems.append(
                Problem("bad_row", f"{file}:{line}", f"has {len(cells)} cells where the header has {len(header)}")
            )
            continue
        yield RowReader(file, line, dict(zip(header, cells, strict=True)), problems)


def missing_columns(path: Path, header: Sequence[str], required: Sequence[str], hint: str = "") -> list[Problem]:
    """A Problem for each required column that the header does not name, with the nearest name that it has."""
    found = []
    for name in required:
        if name not in header:
            near = get_close_matches(name, header, 1)
            tail = f"; is it {near[0]!r}?" if near else ""
            found.append(
                Problem("no_column", f"{path}:1:{name}", f"the header does not name this required column{tail}{hint}")
            )
    return found


def unknown_columns(header: Sequence[str], known: Sequence[str]) -> list[str]:
    """A note about columns that mean nothing here, with the nearest name that would."""
    notes = []
    for name in header:
        if name and name not in known:
            near = get_close_matches(name, known, 1)
            notes.append(f"column {name!r} is ignored" + (f" (is it {near[0]!r}?)" if near else ""))
    return notes

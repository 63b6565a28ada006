"""A CSV file as rows of named cells, and the cells as values.

One run must name everything that is wrong with a file, so nothing here raises for a bad cell: a `RowReader` hands out
values, or None after noting a Problem with file, line, column and reason.
"""

from __future__ import annotations

import csv
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

from gpuledger_collector.accounting.currencies import currency_problem
from gpuledger_collector.accounting.names import is_reserved, reserved_message
from gpuledger_collector.accounting.period import DAY_MS, format_date, parse_date, parse_instant
from gpuledger_collector.accounting.problems import Problem

Row = TypeVar("Row")
EARLIEST_MS = 946_684_800_000
"""2000-01-01: an instant before it is an empty cell that became 0, or a year with a slip."""
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


@dataclass(frozen=True, slots=True)
class Instants:
    """Which instants a file may hold, from `first_ms` (in) to `end_ms` (out)."""

    first_ms: int = EARLIEST_MS
    end_ms: int = LATEST_MS
    option: str = ""
    """The option that allows more, empty where nothing does."""

    def problem(self, text: str, at_ms: int) -> str | None:
        """Why an instant is refused; None when it is fine."""
        if self.first_ms <= at_ms < self.end_ms:
            return None
        years = format_date(self.first_ms)[:4]
        until = (
            format_date(self.end_ms)[:4] if self.end_ms == LATEST_MS else f"tomorrow, {format_date(self.end_ms - 1)}"
        )
        hint = f" ({self.option} allows it)" if self.option and 0 <= at_ms < LATEST_MS else ""
        return f"{text!r} lies outside {years} to {until}{hint}; unix instants are in seconds"


DECLARED = Instants()
"""What people declare may lie ahead: prices, rules, commitments, budgets."""
ANY_INSTANT = Instants(0, LATEST_MS)
"""1970 to 2100, where somebody asked for it."""


def evidence_until(now_ms: int, option: str = "") -> Instants:
    """What has happened lies between 2000 and tomorrow (clocks and zones are not always right)."""
    return Instants(end_ms=now_ms - now_ms % DAY_MS + 2 * DAY_MS, option=option)


@dataclass
class RowReader:
    """The cells of one row; problems go to `problems` with file, line and column."""

    file: str
    line: int
    cells: Mapping[str, str]
    problems: list[Problem]
    bad: bool = False
    instants: Instants = DECLARED

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

    def name(self, column: str, *, required: bool = False) -> str:
        """The cell as the name of an owner, a pool or a model; one that reports make rows of is refused."""
        value = self.text(column, required=required)
        if is_reserved(value):
            self.refuse(column, "reserved_name", reserved_message(value))
        return value

    def currency(self, column: str, *, required: bool = True) -> str:
        """The cell as a code of ISO 4217."""
        value = self.text(column, required=required)
        problem = currency_problem(value) if value else None
        if problem is not None:
            self.refuse(column, "bad_currency", problem)
        return value

    def instant(self, column: str, *, required: bool = False, dates: bool = False) -> int | None:
        """The cell as unix milliseconds; None where it is empty or bad. `dates`: a bare date is its UTC midnight."""
        value = self.text(column, required=required)
        if not value:
            return None
        try:
            at_ms = parse_date(value) if dates and _DATE.fullmatch(value) else parse_instant(value)
        except (ValueError, OverflowError) as error:
            self.refuse(column, "bad_instant", str(error))
            return None
        outside = self.instants.problem(value, at_ms)
        if outside is not None:
            self.refuse(column, "bad_instant", outside)
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


def rows_of(
    path: Path, text: str, problems: list[Problem], instants: Instants = DECLARED
) -> tuple[list[str], Iterator[RowReader]]:
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
    return header, _rows(str(path), reader, header, problems, instants)


def _rows(
    file: str, reader: Iterator[list[str]], header: list[str], problems: list[Problem], instants: Instants
) -> Iterator[RowReader]:
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
        yield RowReader(file, line, dict(zip(header, cells, strict=True)), problems, instants=instants)


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

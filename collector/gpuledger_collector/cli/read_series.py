"""Series in files: `ts,series,value` and `ts,demand`, read fast, refused with file, line and
column.

Instants are RFC 3339 (without a zone: UTC) or unix seconds, and are written back the way they came
in.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.cli.common import refuse
from gpuledger_collector.cli.series_file import SeriesFile, WriteInstants
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.files import (
    MAX_CELLS,
    MAX_COLUMNS,
    MAX_FILE_BYTES,
    MAX_RECORDS,
    MAX_ROW_CHARACTERS,
    read_content,
)
from gpuledger_collector.insight.series import Ints, series_of
from gpuledger_common.bounded_file import FileTooLarge, read_stream

SHOWN = 10


def read_series(
    path: str,
    value: str = "value",
    step_ms: int | None = None,
    *,
    named: bool = True,
    usage: str = "",
) -> SeriesFile:
    """Series of the CSV at `path` (`-` is standard input); a problem is printed with its line and
    ends the command.

    `usage` is a column that a file may have: what the value is the cost of.
    """
    table = _table(path, ["ts", "series", value] if named else ["ts", value], usage)
    at_ms, bad_at, write_instants = _instants(table["ts"])
    numbers, bad_value = _numbers(table[value])
    sentences = {
        "ts": "is not an instant (RFC 3339 or unix seconds)",
        value: "is not a number of zero or more",
    }
    wrong = [*((row, "ts") for row in bad_at), *((row, value) for row in bad_value)]
    used = None
    if usage in table.columns:
        used, bad_usage = _numbers(table[usage])
        sentences[usage] = sentences[value]
        wrong += [(row, usage) for row in bad_usage]
    if wrong:
        refuse_all(
            [
                _problem(path, row, name, f"{table[name].iloc[row]!r} {sentences[name]}")
                for row, name in sorted(wrong)[:SHOWN]
            ],
            len(wrong),
        )
    if named:
        code, names = pd.factorize(table["series"])
        keys = [str(name) for name in names]
    else:
        code, keys = np.zeros(len(table), dtype=np.int64), [value]
    codes = np.asarray(code, dtype=np.int64)
    series, faults = series_of(keys, codes, at_ms, numbers, step_ms)
    if faults:
        refuse_all(
            [
                _problem(path, fault.row, fault.column, fault.message)
                for fault in sorted(faults, key=lambda fault: fault.row)[:SHOWN]
            ],
            len(faults),
        )
    # On the same instants: they have no other faults.
    usages = None if used is None else series_of(keys, codes, at_ms, used, step_ms)[0]
    return SeriesFile(series, write_instants, usages)


def refuse_all(shown: Sequence[Problem], count: int) -> NoReturn:
    """Print the first of so many problems and end with the code of bad input."""
    *first, last = shown
    for problem in first:
        say(f"gpuledger: {problem}", error=True)
    left = count - len(shown)
    refuse(f"{last}" + (f" (and {left} more rows are wrong)" if left > 0 else ""))


def _problem(path: str, row: int, column: str, message: str) -> Problem:
    return Problem("series", f"{path}:{row + 2}:{column}", message)


def _table(path: str, columns: Sequence[str], optional: str = "") -> pd.DataFrame:
    """These columns as text, and an optional one where there is one; a line of the file is its row
    plus two.
    """
    try:
        # Bounded here: pandas would inflate whatever a name's ending says, without a bound.
        is_input = path == "-"
        content = (
            read_stream(sys.stdin.buffer, Path(path), MAX_FILE_BYTES)
            if is_input
            else read_content(Path(path))
        )
        _require_small_table(Path(path), content)
        source = io.BytesIO(content)
        # As text, with blank lines and without pandas' words for missing values: a row's number
        # stays its line's, and `NA` is refused instead of becoming a gap.
        table = pd.read_csv(
            source, dtype=str, keep_default_na=False, skip_blank_lines=False, encoding="utf-8-sig"
        )
    except pd.errors.EmptyDataError:
        refuse(
            f"{path}:1: the file is empty; its first line must name the columns {','.join(columns)}"
        )
    except pd.errors.ParserError as error:
        place = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if place:
            refuse(f"{path}:{place[2]}: {place[3]} fields where the header names {place[1]}")
        refuse(f"{path}: this is not a CSV file: {str(error).strip()}")
    except UnicodeDecodeError:
        refuse(f"{path}: this is not text in UTF-8")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        refuse(f"{path}: this is not a whole gzip file: {error}")
    if not isinstance(table.index, pd.RangeIndex):
        refuse(f"{path}:2: more fields than the header names ({','.join(map(str, table.columns))})")
    table.columns = [str(name).strip() for name in table.columns]
    missing = [name for name in columns if name not in table.columns]
    if missing:
        present, needed = ",".join(table.columns), ",".join(columns)
        refuse(
            f"{path}:1: the column {missing[0]!r} is missing; needed are {needed}, the file has"
            f" {present}"
        )
    wanted = [*columns, *([optional] if optional in table.columns else [])]
    table = table[wanted].fillna("")
    # Blank lines at the end only: one in the middle is a mistake that is named with its line.
    while len(table) and not "".join(table.iloc[-1]):
        table = table.iloc[:-1]
    if not len(table):
        refuse(f"{path}:2: there are no rows below the header")
    return table


def _require_small_table(path: Path, content: bytearray) -> None:
    """Refuse what pandas would make into too many cells: it fills up rows that have fewer than the
    header.

    Raises FileTooLarge.
    """
    # Whatever ends the lines, as pandas reads them.
    ends = max(content.count(b"\n"), content.count(b"\r"))
    if ends > MAX_RECORDS:
        raise FileTooLarge(path, f"more than {MAX_RECORDS} rows; split it")
    bytes_ = np.frombuffer(content, dtype=np.uint8)
    at = np.flatnonzero((bytes_ == ord("\n")) | (bytes_ == ord("\r")))
    lengths = np.diff(at, prepend=-1, append=len(content))
    if len(lengths) and lengths.max() > MAX_ROW_CHARACTERS:
        raise FileTooLarge(path, f"a line is longer than {MAX_ROW_CHARACTERS} characters")
    header = content[: at[0] if len(at) else None].count(b",") + 1
    if header > MAX_COLUMNS:
        raise FileTooLarge(
            path, f"the header names {header} columns; at most {MAX_COLUMNS} are read"
        )
    if max(header * ends, content.count(b",")) > MAX_CELLS:
        raise FileTooLarge(path, f"more than {MAX_CELLS} cells; leave columns out, or split it")


def _instants(texts: pd.Series[str]) -> tuple[Ints, list[int], WriteInstants]:
    """Unix ms of each row, the rows that are not an instant, and a writer in the style of the first
    row.
    """
    # Distinct texts are parsed once: a file of many series repeats each instant.
    code, unique = pd.factorize(texts)
    distinct = pd.Series(unique, dtype=str).str.strip()
    seconds = pd.to_numeric(distinct, errors="coerce")
    is_number = seconds.notna() & np.isfinite(seconds)
    clock = pd.to_datetime(distinct.where(~is_number), format="ISO8601", utc=True, errors="coerce")
    from_clock = clock.dt.tz_localize(None).to_numpy().astype("datetime64[ms]").astype("int64")
    at_ms = np.where(is_number, np.round(seconds.fillna(0).to_numpy() * 1000), from_clock).astype(
        "int64"
    )
    bad = ~(is_number | clock.notna()).to_numpy()
    return (
        at_ms[code],
        [int(row) for row in np.flatnonzero(bad[code])],
        _style(str(texts.iloc[0]).strip()),
    )


def _style(example: str) -> WriteInstants:
    """A writer of instants that look like `example`."""
    if re.fullmatch(r"[+-]?\d+(\.\d*)?", example):
        return lambda at_ms: [
            str(at // 1000) if at % 1000 == 0 else str(at / 1000) for at in at_ms.tolist()
        ]
    zone = re.search(r"(Z|z|[+-]\d\d:?\d\d)$", example[10:])
    shift_ms = 0
    if zone and zone[1] not in "Zz":
        digits = zone[1][1:].replace(":", "")
        shift_ms = (int(digits[:2]) * 60 + int(digits[2:])) * (
            60_000 if zone[1][0] == "+" else -60_000
        )
    separator = example[10:11] or "T"

    def write(at_ms: Ints) -> list[str]:
        local = at_ms + shift_ms
        # Dates stay dates only while every instant is a midnight; otherwise the time of day would
        # be lost.
        if len(example) == 10 and not (local % DAY_MS).any():
            return [str(day) for day in local.astype("datetime64[ms]").astype("datetime64[D]")]
        unit = "ms" if (local % 1000).any() else "s"
        texts = np.datetime_as_string(local.astype("datetime64[ms]").astype(f"datetime64[{unit}]"))
        return [str(text).replace("T", separator) + (zone[1] if zone else "") for text in texts]

    return write


def _numbers(texts: pd.Series[str]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], list[int]]:
    """The values, NaN where empty, and the rows that hold neither."""
    numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=float)
    empty = (texts == "").to_numpy()
    if not np.isfinite(numbers).all():
        empty = (texts.str.strip() == "").to_numpy()
    with np.errstate(invalid="ignore"):
        bad = ~empty & ~(np.isfinite(numbers) & (numbers >= 0))
    return numbers, [int(row) for row in np.flatnonzero(bad)]

"""Samples from a file: CSV `ts,uuid` and metrics by catalogue name, or JSON lines as the agent records them.

A JSON line is one sample, `{"ts": ..., "uuid": ..., "values": {metric: number}}`, or a tick of an agent's recording
(`offset_ms` and a list of `samples`), whose instants count from a start that the importer says. An empty cell is an
absent reading. Kept are the metrics of the sample table; others of a recording are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuledger_collector.accounting.ports import SampleRow
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.table import (
    DECLARED,
    Instants,
    Parsed,
    RowReader,
    missing_columns,
    read_text,
    rows_of,
    unknown_columns,
)
from gpuledger_common.catalogue import HOT

REQUIRED = ("ts", "uuid")
KINDS = {metric.name: metric.column_kind for metric in HOT}
LARGEST = 1e300
LARGEST_INTEGER = 2**63 - 1


def read_samples(path: Path, start_ms: int | None = None, instants: Instants = DECLARED) -> Parsed[SampleRow]:
    """Every sample of the file, or the problems of all bad rows. Raises OSError when it cannot be opened.

    `start_ms` is when a recording began: its ticks only say how long after.
    """
    parsed: Parsed[SampleRow] = Parsed()
    text, parsed.problems = read_text(path)
    if parsed.problems:
        return parsed
    if text.lstrip().startswith("{"):
        readers = _json_rows(path, text, start_ms, parsed.problems, instants)
    else:
        header, readers = rows_of(path, text, parsed.problems, instants)
        parsed.problems.extend(missing_columns(path, header, REQUIRED))
        parsed.notes.extend(unknown_columns(header, (*REQUIRED, *KINDS)))
        if parsed.problems:
            return parsed
    seen: set[tuple[str, int]] = set()
    for row in readers:
        sample = _sample(row)
        if sample is not None and (sample.uuid, sample.at_ms) not in seen:
            seen.add((sample.uuid, sample.at_ms))
            parsed.rows.append(sample)
    return parsed


def _sample(row: RowReader) -> SampleRow | None:
    at_ms = row.instant("ts", required=True)
    uuid = row.text("uuid", required=True)
    values = {name: value for name in KINDS if (value := _number(row, name)) is not None}
    return None if row.bad or at_ms is None else SampleRow(row.line, uuid, at_ms, values)


def _number(row: RowReader, name: str) -> str | None:
    """The cell, once it is known to be a number that its column can hold."""
    text = row.text(name)
    if not text:
        return None
    try:
        value: float | int = int(text) if KINDS[name] == "i8" else float(text)
    except ValueError:
        row.refuse(name, "bad_number", f"{text!r} is not a number")
        return None
    most = LARGEST_INTEGER if KINDS[name] == "i8" else 3e38 if KINDS[name] == "f4" else LARGEST
    if not -most <= value <= most:
        row.refuse(name, "out_of_range", f"{text} cannot be stored; an absent reading is an empty cell")
        return None
    return repr(value)


def _json_rows(
    path: Path, text: str, start_ms: int | None, problems: list[Problem], instants: Instants
) -> Iterator[RowReader]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.append(Problem("bad_json", f"{path}:{number}", f"is not JSON: {error}"))
            continue
        if isinstance(record, dict) and "offset_ms" in record and start_ms is None:
            message = "is counted from the start of the recording: say with --start when that was"
            problems.append(Problem("no_start", f"{path}:{number}:offset_ms", message))
            return
        for one, at in _records(record, start_ms or 0):
            yield RowReader(str(path), number, _cells(one, at), problems, instants=instants)


def _records(record: Any, start_ms: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The samples of one JSON line with their instants, in unix seconds or RFC 3339."""
    if not isinstance(record, dict):
        yield {}, None
    elif isinstance(record.get("samples"), list):
        offset_ms = record.get("offset_ms")
        at_ms = start_ms + offset_ms if isinstance(offset_ms, int) else None
        at = record.get("ts") if at_ms is None else f"{at_ms // 1000}.{at_ms % 1000:03d}"
        yield from ((one if isinstance(one, dict) else {}, at) for one in record["samples"])
    elif "values" in record or "uuid" in record:
        yield record, record.get("ts")


def _cells(record: Mapping[str, Any], at: Any) -> dict[str, str]:
    values = record.get("values")
    cells = (
        {name: str(value) for name, value in values.items() if value is not None} if isinstance(values, dict) else {}
    )
    return {**cells, "uuid": str(record.get("uuid", "")), "ts": "" if at is None else str(at)}

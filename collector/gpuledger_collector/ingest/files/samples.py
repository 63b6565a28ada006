"""Samples from a file: CSV `ts,uuid` and metrics by catalog name, or JSON lines as the agent
records them.

A JSON line is one sample, `{"ts": ..., "uuid": ..., "values": {metric: number}}`, or a tick of an
agent's recording (`offset_ms` and a list of `samples`), whose instants count from a start that the
importer gives. An empty cell is an absent reading. The metrics of the sample table are kept, others
of a recording are ignored. A line that is neither, and values of which none is a metric, are bad
rows: they are no reading of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, create_model

from gpuledger_collector.accounting.import_progress import OnRow, tell_each, tell_nobody
from gpuledger_collector.accounting.ledger_rows import SampleRow
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import Parsed, decode, line_count, read_records
from gpuledger_collector.config.fields import DECLARED, Instant, Instants, Text, read_text, refusal
from gpuledger_collector.config.files import (
    MAX_ROW_CHARACTERS,
    bounded_rows,
    lines_of,
    read_json,
    require_few_problems,
)
from gpuledger_collector.config.model import Record, Row
from gpuledger_common.catalog import BY_NAME, HOT

LARGEST = {"i8": 2**63 - 1, "f4": 3e38, "f8": 1e300}
"""By the type of a metric's column."""
NO_SAMPLE = (
    'holds no sample, such as {"ts": 1790812800, "uuid": "GPU-1", "values": {"gpu_power_watts":'
    " 300}}"
)


def _reader(column_kind: str) -> Callable[[object], str]:
    largest = LARGEST[column_kind]

    def read(value: object) -> str:
        """The text of a number, once it is known that its column can hold it."""
        text = read_text(value)
        try:
            number: float | int = int(text) if column_kind == "i8" else float(text)
        except ValueError:
            raise refusal("bad_number", f"{text!r} is not a number") from None
        if not -largest <= number <= largest:
            raise refusal(
                "out_of_range", f"{text} cannot be stored; an absent reading is an empty cell"
            )
        return repr(number)

    return read


class _Instant(Row):
    at_ms: Instant = Field(alias="ts")
    uuid: Text


_METRICS: dict[str, Any] = {
    metric.name: (Annotated[str, PlainValidator(_reader(metric.column_kind))] | None, None)
    for metric in HOT
}
_Sample: type[_Instant] = create_model("_Sample", __base__=_Instant, **_METRICS)


def read_samples(
    path: Path,
    start_ms: int | None = None,
    instants: Instants = DECLARED,
    on_line: OnRow = tell_nobody,
) -> Parsed[SampleRow]:
    """Every sample of the file, or the problems of all bad rows.

    Raises OSError when it cannot be opened.

    `start_ms` is when a recording began: its ticks only say how long after. `on_line` is told how
    many of how many lines are read.
    """
    parsed: Parsed[SampleRow] = Parsed()
    text = decode(path, parsed.problems, [])
    if text is None:
        return parsed
    records = read_records(path, _Sample, parsed, on_line)
    is_json = text.lstrip().startswith("{")
    if is_json:
        parsed = Parsed()
        records = _read_json(path, text, start_ms, parsed.problems, on_line)
    seen: set[tuple[str, int]] = set()
    for record in records:
        sample = _Sample.read(record, parsed.problems, instants)
        # of two samples of one instant the first is kept
        if sample is not None and (sample.uuid, sample.at_ms) not in seen:
            seen.add((sample.uuid, sample.at_ms))
            values = {
                name: value
                for name, value in vars(sample).items()
                if name in _METRICS and value is not None
            }
            parsed.rows.append(SampleRow(record.line, sample.uuid, sample.at_ms, values))
    if is_json and not parsed.rows:
        parsed.problems = _first_without_sample(path, parsed.problems)
    return parsed


def _first_without_sample(path: Path, problems: list[Problem]) -> list[Problem]:
    """The problems of a file without any sample: it is another file, of which one line says as much
    as all.
    """
    without = [problem for problem in problems if problem.code == "no_sample"]
    others = [problem for problem in problems if problem.code != "no_sample"]
    return without[:1] + others or [Problem("no_sample", str(path), NO_SAMPLE)]


def _read_json(
    path: Path, text: str, start_ms: int | None, problems: list[Problem], on_line: OnRow
) -> Iterator[Record]:
    # A line may hold any number of samples, so both are bounded.
    samples = (
        (number, sample, at)
        for number, tick in _read_ticks(path, text, start_ms, problems, on_line)
        for sample, at in _samples(tick, start_ms or 0)
    )
    for number, sample, at in bounded_rows(path, samples):
        require_few_problems(path, problems)
        if _is_sample(sample):
            yield Record(str(path), number, _cells(sample, at))
        else:
            problems.append(Problem("no_sample", f"{path}:{number}", NO_SAMPLE))


def _read_ticks(
    path: Path, text: str, start_ms: int | None, problems: list[Problem], on_line: OnRow
) -> Iterator[tuple[int, Any]]:
    """What the lines hold, with their numbers, but for the header of a recording."""
    lines = tell_each(lines_of(text), line_count(text), on_line)
    for number, line in enumerate(bounded_rows(path, lines), 1):
        require_few_problems(path, problems)
        if not line.strip():
            continue
        try:
            tick = _read_line(line)
        except ValueError as error:
            problems.append(Problem("bad_json", f"{path}:{number}", f"is not JSON: {error}"))
            continue
        # one message is enough: all ticks of a recording lack the same start
        if isinstance(tick, dict) and "offset_ms" in tick and start_ms is None:
            message = "is counted from the start of the recording: say with --start when that was"
            problems.append(Problem("no_start", f"{path}:{number}:offset_ms", message))
            return
        if isinstance(tick, dict) and "format" in tick:  # the header of a recording
            continue
        yield number, tick


def _read_line(line: str) -> Any:
    if len(line) > MAX_ROW_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_ROW_CHARACTERS} characters")
    return read_json(line)


def _samples(tick: Any, start_ms: int) -> Iterator[tuple[Any, Any]]:
    """What stands for samples in one JSON line, with their instants, in unix seconds or RFC 3339."""
    if not isinstance(tick, dict):
        yield tick, None
    elif isinstance(tick.get("samples"), list):
        offset_ms = tick.get("offset_ms")
        at_ms = start_ms + offset_ms if isinstance(offset_ms, int) else None
        at = tick.get("ts") if at_ms is None else f"{at_ms // 1000}.{at_ms % 1000:03d}"
        yield from ((sample, at) for sample in tick["samples"])
    else:
        yield tick, tick.get("ts")


def _is_sample(sample: Any) -> bool:
    """Whether it has values, and, unless all are absent, one of a metric."""
    values = sample.get("values") if isinstance(sample, dict) else None
    return isinstance(values, dict) and (not values or any(name in BY_NAME for name in values))


def _cells(sample: Mapping[str, Any], at: Any) -> dict[str, str]:
    readings = sample["values"].items()
    cells = {name: str(value) for name, value in readings if name in _METRICS and value is not None}
    return {**cells, "uuid": str(sample.get("uuid", "")), "ts": "" if at is None else str(at)}

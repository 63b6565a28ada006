"""The usage import CSV (design.md §3): who held how many GPUs, from when to when."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import Parsed, read_records
from gpuledger_collector.config.fields import DECLARED, Instant, Instants, Name, Text, after, decimal, refusal
from gpuledger_collector.config.model import Record, Row
from gpuledger_collector.storage.ledger.rows import UsageRow
from gpuledger_common.plurals import plural

TAG = "tag:"
MAX_GPUS = 100_000
"""More in one row would not fit a day's GPU-nanoseconds into 64 bits."""
LONG_DAYS = 30
"""Longer usage of one workload gets a warning: a forgotten end is billed until one is imported."""
MAX_WARNINGS = 10


@dataclasses.dataclass(frozen=True)
class UsageOptions:
    """How to read the file: the pool of rows that name none, and what an empty start means.

    `empty_start` None refuses such rows; "skip" leaves them out (never scheduled); an instant in unix ms is used
    instead (a trace that begins with work already running). `instants` are those that the file may hold.
    """

    pool: str = "imported"
    empty_start: int | str | None = None
    instants: Instants = DECLARED


class _Usage(Row):
    workload_id: Text
    start_ms: Instant | None = Field(None, alias="start")
    end_ms: Annotated[Instant | None, after("start_ms", "start", or_at=True)] = Field(None, alias="end")
    gpus: Annotated[Decimal, decimal(6, MAX_GPUS)]
    gpu_model: Name = ""
    pool: Name = ""
    node: Text = ""
    user: Text | None = None
    account: Text | None = None
    job_name: Text | None = None
    submitted_ms: Instant | None = Field(None, alias="submitted")
    state: Text = ""
    # named by the prefix of its columns, so that problems name the column
    tags: dict[str, Text] = Field({}, alias="tag")

    blank_columns = ("start", "end")

    @field_validator("gpus")
    @classmethod
    def _hold_some(cls, gpus: Decimal) -> Decimal:
        if not gpus:
            raise refusal("out_of_range", "0 is not a positive number of GPUs")
        return gpus


def read_usage(path: Path, options: UsageOptions) -> Parsed[UsageRow]:
    """Every row of the file, or the problems of all that are bad. Raises OSError when it cannot be opened."""
    parsed: Parsed[UsageRow] = Parsed()
    rows: dict[str, UsageRow] = {}
    skipped = 0
    for record in read_records(path, _Usage, parsed, TAG):
        has_start = bool(record.cells["start"].strip())
        if not has_start and options.empty_start == "skip":
            skipped += 1
            continue
        usage = _Usage.read(_with_tags(record), parsed.problems, options.instants)
        if not has_start and options.empty_start is None:
            message = "is empty; --empty-start skip leaves such rows out, an instant fills them"
            parsed.problems.append(Problem("empty", f"{record.source}:start", message))
        elif usage is not None:
            add_workload(rows, _usage_row(usage, record.line, options), f"{record.file}:{{}}:workload_id", parsed)
    parsed.rows = list(rows.values())
    if skipped:
        parsed.notes.append(f"{plural(skipped, 'row')} without a start: left out (--empty-start skip)")
    return parsed


def _with_tags(record: Record) -> Record:
    """The record with its tag columns in one table."""
    cells = {name: cell for name, cell in record.cells.items() if not name.startswith(TAG)}
    tags = {name.removeprefix(TAG): cell for name, cell in record.cells.items() if name not in cells and cell.strip()}
    return Record(record.file, record.line, {**cells, "tag": tags})


def _usage_row(usage: _Usage, line: int, options: UsageOptions) -> UsageRow:
    values = vars(usage) | {"pool": usage.pool or options.pool}
    if usage.start_ms is None:
        values["start_ms"] = options.empty_start
    return UsageRow(line=line, gpu_micro=int(values.pop("gpus") * MICRO), **values)


def add_workload(rows: dict[str, UsageRow], usage: UsageRow, source: str, parsed: Parsed[UsageRow]) -> None:
    """Keep one row of each workload; of two that differ one is bad: the one without an end, else the later one.

    `source` is the place of the problem with `{}` for the line. A row that says the same again is ignored.
    """
    earlier = rows.setdefault(usage.workload_id, usage)
    if earlier is usage or dataclasses.replace(earlier, line=usage.line) == usage:
        return
    bad, good = usage, earlier
    if earlier.end_ms is None and usage.end_ms is not None:
        bad, good = earlier, usage
        rows[usage.workload_id] = usage
    ended = ", where it has ended" if bad.end_ms is None and good.end_ms is not None else ""
    message = f"{bad.workload_id!r} stands with other values on line {good.line}{ended}"
    parsed.problems.append(Problem("double_workload", source.format(bad.line), message))


def long_usage(path: Path, rows: Sequence[UsageRow], now_ms: int) -> tuple[int, list[str]]:
    """How many rows without an end began more than LONG_DAYS ago, and warnings about them and others as long."""
    running, ended = [], []
    for row in rows:
        days = ((now_ms if row.end_ms is None else row.end_ms) - row.start_ms) // DAY_MS
        if days <= LONG_DAYS:
            continue
        place, since = f"{path}:{row.line}:end: {row.workload_id!r}", format_instant(row.start_ms)
        if row.end_ms is None:
            running.append(
                f"{place} has no end and runs since {since}, {days} days: it is billed until one is imported"
            )
        else:
            ended.append(f"{place} ended after {days} days, from {since} to {format_instant(row.end_ms)}")
    warnings = [*running, *ended][:MAX_WARNINGS]
    more = len(running) + len(ended) - len(warnings)
    if more:
        warnings.append(f"{path}: {plural(more, 'more row')} of more than {LONG_DAYS} days")
    return len(running), warnings

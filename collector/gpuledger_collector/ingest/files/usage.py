"""The usage import CSV (design.md §3): who held how many GPUs, from when to when."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.accounting.ports import UsageRow
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
from gpuledger_common.plurals import plural

REQUIRED = ("workload_id", "start", "end", "gpus")
OPTIONAL = ("gpu_model", "pool", "node", "user", "account", "job_name", "submitted", "state")
MAX_GPUS = 100_000
"""More in one row would not fit a day's GPU-nanoseconds into 64 bits."""
MICRO = 1_000_000
LONG_DAYS = 30
"""Usage of one workload that is longer is told: an end that was forgotten bills until somebody sees it."""
MOST_TOLD = 10


@dataclasses.dataclass(frozen=True)
class UsageOptions:
    """How to read the file: the pool of rows that name none, and what an empty start means.

    `empty_start` None refuses such rows; "skip" leaves them out (never scheduled); an instant in unix ms is used
    instead (a trace that begins with work already running). `instants` are those that the file may hold.
    """

    pool: str = "imported"
    empty_start: int | str | None = None
    instants: Instants = DECLARED


def read_usage(path: Path, options: UsageOptions) -> Parsed[UsageRow]:
    """Every row of the file, or the problems of all that are bad. Raises OSError when it cannot be opened."""
    parsed: Parsed[UsageRow] = Parsed()
    text, parsed.problems = read_text(path)
    if parsed.problems:
        return parsed
    header, rows = rows_of(path, text, parsed.problems, options.instants)
    parsed.problems.extend(missing_columns(path, header, REQUIRED))
    if parsed.problems:
        return parsed
    tags = [name for name in header if name.startswith("tag:") and len(name) > 4]
    parsed.notes.extend(unknown_columns(header, (*REQUIRED, *OPTIONAL, *tags)))
    skipped = _read_rows(rows, options, tags, parsed)
    if skipped:
        parsed.notes.append(f"{plural(skipped, 'row')} without a start: left out (--empty-start skip)")
    return parsed


def _read_rows(rows: Iterator[RowReader], options: UsageOptions, tags: Sequence[str], into: Parsed[UsageRow]) -> int:
    skipped = 0
    first: dict[str, UsageRow] = {}
    for row in rows:
        if options.empty_start == "skip" and not row.cells.get("start", "").strip():
            skipped += 1
            continue
        usage = _row(row, options, tags)
        if usage is not None:
            keep_one(first, usage, f"{row.file}:{{}}:workload_id", into.problems)
    into.rows = list(first.values())
    return skipped


def keep_one(kept: dict[str, UsageRow], usage: UsageRow, source: str, problems: list[Problem]) -> None:
    """Keep one row of each workload; of two that differ one is bad: the one without an end, else the later one.

    `source` is the place of the problem with `{}` for the line. A row that says the same again is passed over.
    """
    earlier = kept.setdefault(usage.workload_id, usage)
    if dataclasses.replace(earlier, line=usage.line) == usage:
        return
    bad, good = usage, earlier
    if earlier.end_ms is None and usage.end_ms is not None:
        bad, good = earlier, usage
        kept[usage.workload_id] = usage
    ended = ", where it has ended" if bad.end_ms is None and good.end_ms is not None else ""
    message = f"{bad.workload_id!r} stands with other values on line {good.line}{ended}"
    problems.append(Problem("double_workload", source.format(bad.line), message))


def _row(row: RowReader, options: UsageOptions, tags: Sequence[str]) -> UsageRow | None:
    start_ms, end_ms = _span(row, options)
    gpus = row.decimal("gpus", digits=6, most=MAX_GPUS, required=True)
    if gpus is not None and gpus == 0:
        row.refuse("gpus", "out_of_range", "0 is not a positive number of GPUs")
    pool = row.name("pool") or options.pool
    usage = UsageRow(
        line=row.line,
        workload_id=row.text("workload_id", required=True),
        start_ms=start_ms or 0,
        end_ms=end_ms,
        gpu_micro=int((gpus or 0) * MICRO),
        gpu_model=row.name("gpu_model"),
        pool=pool,
        node=row.text("node"),
        user=row.optional_text("user"),
        account=row.optional_text("account"),
        job_name=row.optional_text("job_name"),
        submitted_ms=row.instant("submitted"),
        state=row.text("state"),
        tags={tag[4:]: value for tag in tags if (value := row.text(tag))},
    )
    return None if row.bad else usage


def _span(row: RowReader, options: UsageOptions) -> tuple[int | None, int | None]:
    end_ms = row.instant("end")
    if row.cells.get("start", "").strip():
        start_ms = row.instant("start")
    elif isinstance(options.empty_start, int):
        start_ms = options.empty_start
    else:
        row.refuse("start", "empty", "is empty; --empty-start skip leaves such rows out, an instant fills them")
        start_ms = None
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        row.refuse("end", "order", "lies before the start")
    return start_ms, end_ms


def long_usage(path: Path, rows: Sequence[UsageRow], now_ms: int) -> tuple[int, list[str]]:
    """How many rows without an end began more than LONG_DAYS ago; a sentence for each, and for others as long."""
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
    told = running[:MOST_TOLD] + ended[: max(0, MOST_TOLD - len(running))]
    more = len(running) + len(ended) - len(told)
    if more:
        told.append(f"{path}: {plural(more, 'more row')} of more than {LONG_DAYS} days")
    return len(running), told


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Problems by their line in the file."""
    return sorted(problems, key=lambda one: (_line(one.source), one.source))


def _line(source: str) -> int:
    return next((int(part) for part in source.split(":")[1:] if part.isdigit()), 0)

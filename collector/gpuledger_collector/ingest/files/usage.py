"""The usage import: who held how many GPUs, from when to when, of any table of jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import Annotated, cast

from pydantic import Field, PlainValidator, Strict
from pydantic_core import PydanticCustomError

from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.ledger_rows import (
    ALL_COLUMNS,
    OPTIONAL,
    UNKNOWN_POOL,
    UsageColumns,
    UsageRow,
    UsageSource,
)
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_instant
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import Parsed
from gpuledger_collector.config.fields import (
    DECLARED,
    Instants,
    Name,
    Text,
    end_after,
    read_bounded,
    read_text,
)
from gpuledger_collector.config.model import Row
from gpuledger_collector.ingest.files import job_table
from gpuledger_collector.ingest.files.headers import TAG, TableOptions, ignored_notes, is_alloc_tres
from gpuledger_collector.ingest.files.job_table import JobTable
from gpuledger_common.plurals import plural

MAX_GPUS = 100_000
"""More in one row would not fit a day's GPU-nanoseconds into 64 bits."""
LONG_DAYS = 90
"""Longer usage of one workload gets a warning: a forgotten end is billed until one is imported."""
MAX_WARNINGS = 10

_Instant = Annotated[int, Strict()]
"""Unix milliseconds, as tables of jobs hand them over."""


@dataclasses.dataclass(frozen=True)
class UsageOptions:
    """How to read the file: the pool of rows that name none (None: `imported`), and what an empty
    start means.

    `empty_start` None refuses such rows; "skip" leaves them out (never scheduled); an instant in
    unix ms is used instead (a trace that begins with work already running). `instants` are those
    that the file may hold.
    """

    pool: str | None = None
    empty_start: int | str | None = None
    instants: Instants = DECLARED
    table: TableOptions = dataclasses.field(default_factory=TableOptions)


@dataclasses.dataclass
class UsageFile(Parsed[UsageRow]):
    """The rows of a file of jobs, and what it has columns for."""

    columns: UsageColumns = ALL_COLUMNS
    source: UsageSource = UsageSource.table


class _Usage(Row):
    workload_id: Text
    start_ms: _Instant | None = Field(None, alias="start")
    end_ms: Annotated[_Instant | None, end_after("start_ms", "start", or_at=True)] = Field(
        None, alias="end"
    )
    gpus: Annotated[
        Decimal, PlainValidator(lru_cache(1024)(lambda text: read_bounded(text, 6, MAX_GPUS)))
    ]
    gpu_model: Name = ""
    pool: Name = ""
    node: Text = ""
    user: Text | None = None
    account: Text | None = None
    job_name: Text | None = None
    queue: Text | None = None
    submitted_ms: _Instant | None = Field(None, alias="submitted")
    state: Text = ""

    blank_columns = ("start", "end")


def read_usage(path: Path, options: UsageOptions, on_line: OnRow = tell_nobody) -> UsageFile:
    """Every row of the file, or the problems of all that are bad.

    Raises OSError when it cannot be opened.

    `on_line` is told how many lines are read, of twice as many as there are: each is read twice.
    """
    parsed = UsageFile()
    table = understand(path, options, parsed.problems, on_line)
    if table is not None:
        parsed.notes += [table.origin] if table.origin else []
        ignored = ignored_notes(table.columns)
        parsed.notes += [
            f"column {name!r} is ignored" for name, resembles in ignored if resembles is None
        ]
        read_table_rows(table, options, parsed, on_line)
    return parsed


def understand(
    path: Path, options: UsageOptions, problems: list[Problem], on_line: OnRow = tell_nobody
) -> JobTable | None:
    """What the columns of a file mean; None after adding what is wrong with the file as a whole.

    Raises OSError.
    """
    return job_table.read_table(
        path, _Usage.needed_columns(), _Usage.cell_names(), options.table, problems, on_line
    )


def _columns_of(table: JobTable, options: UsageOptions) -> UsageColumns:
    """What a table has columns for; the pool may be given by an option."""
    has_tres = is_alloc_tres(table.meanings["gpus"])
    meanings = {
        *table.meanings,
        *(["gpu_model"] if has_tres else []),
        *([] if options.pool is None else ["pool"]),
    }
    fields = frozenset(name for name in OPTIONAL if name.removesuffix("_ms") in meanings)
    tags = {name.removeprefix(TAG) for name in meanings if name.startswith(TAG)}
    tags |= {"namespace"} if table.namespace is not None else set()
    tags |= {"team"} if table.account is not None else set()
    return UsageColumns(fields, frozenset(tags), has_runs=has_tres)


def read_table_rows(
    table: JobTable, options: UsageOptions, parsed: UsageFile, on_line: OnRow = tell_nobody
) -> None:
    """Read every row of a table that is understood, which is the second half of what `on_line` is
    told.
    """
    parsed.columns = _columns_of(table, options)
    rows = WorkloadRows(has_runs=parsed.columns.has_runs)
    skipped = without_gpu = empty = 0
    parsed.notes += [note for _, note in ignored_notes(table.columns) if note is not None]
    for record, tags in job_table.records(
        table, options.instants, parsed.problems, parsed.notes, on_line
    ):
        has_start = record.cells["start"] != ""
        if not has_start and options.empty_start == "skip":
            skipped += 1
            continue
        usage = _Usage.read(record, parsed.problems)
        bad_tags = _tag_problems(record.source, tags)
        parsed.problems += bad_tags
        if not has_start and options.empty_start is None and not (usage and not usage.gpus):
            message = "is empty; --empty-start skip leaves such rows out, an instant fills them"
            parsed.problems.append(Problem("empty", f"{record.source}:start", message))
        elif usage is not None and not usage.gpus:
            without_gpu += 1
        elif usage is not None and not bad_tags:
            empty += usage.start_ms is not None and usage.start_ms == usage.end_ms
            rows.add(
                _usage_row(usage, tags, record.line, options),
                f"{record.source}:workload_id",
                parsed.problems,
            )
    rows.finish(parsed)
    parsed.problems = _by_header(parsed.problems, table)
    if skipped:
        parsed.notes.append(
            f"{plural(skipped, 'row')} without a start: left out (--empty-start skip)"
        )
    if without_gpu:
        parsed.notes.append(f"{plural(without_gpu, 'row')} without a GPU: left out")
    if empty:
        parsed.notes.append(
            f"{plural(empty, 'row')} of no duration: the end is the start (a date alone is its"
            " midnight)"
        )


def _by_header(problems: Sequence[Problem], table: JobTable) -> list[Problem]:
    """The first problem of each cell, by the name that the file gives to the column."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.source, problem)
    renamed = []
    for problem in first.values():
        place, _, meaning = problem.source.rpartition(":")
        name = table.column_of(meaning)
        renamed.append(Problem(problem.code, f"{place}:{name}" if place else name, problem.message))
    return renamed


def _tag_problems(source: str, tags: Mapping[str, str]) -> list[Problem]:
    """What is wrong with tags, which are texts of any name."""
    problems = []
    for name, value in tags.items():
        try:
            read_text(value)
        except PydanticCustomError as error:
            problems.append(Problem(error.type, f"{source}:{TAG}{name}", error.message_template))
    return problems


def _usage_row(
    usage: _Usage, tags: Mapping[str, str], line: int, options: UsageOptions
) -> UsageRow:
    # A file of many rows has few different owners, models and numbers: one object of each is kept.
    return UsageRow(
        line=line,
        workload_id=usage.workload_id,
        start_ms=cast("int", options.empty_start if usage.start_ms is None else usage.start_ms),
        end_ms=usage.end_ms,
        gpu_micro=_micro(usage.gpus),
        gpu_model=intern(usage.gpu_model),
        pool=intern(usage.pool or options.pool or UNKNOWN_POOL),
        node=intern(usage.node),
        user=usage.user and intern(usage.user),
        account=usage.account and intern(usage.account),
        job_name=usage.job_name,
        queue=usage.queue and intern(usage.queue),
        submitted_ms=usage.submitted_ms,
        state=intern(usage.state),
        tags=tags,
    )


@lru_cache(1024)
def _micro(gpus: Decimal) -> int:
    return int(gpus * MICRO)


class WorkloadRows:
    """One row of each workload: the one that has ended; of two that have ended and differ the later
    one is bad.

    With `has_runs` rows of one workload whose times do not overlap are runs of it, and each counts.
    """

    def __init__(self, *, has_runs: bool = False) -> None:
        self._has_runs = has_runs
        self._rows: dict[str, UsageRow] = {}
        self._later_runs: dict[str, list[UsageRow]] = {}
        """Runs of a workload besides the one in `_rows`."""
        self._ended = self._repeated = 0

    def add(self, usage: UsageRow, source: str, problems: list[Problem]) -> None:
        """Keep the row unless a better one is known.

        `source`: the place of a problem; the same row again is none.
        """
        earlier = self._earlier(usage)
        if earlier is None:
            return
        if dataclasses.replace(earlier, line=usage.line) == usage:
            self._repeated += 1
            return
        if (earlier.end_ms is None) != (usage.end_ms is None):
            self._ended += 1
            if earlier.end_ms is None:
                self._replace(earlier, usage)
            return
        cure = "leave out one of them, or --skip-bad takes the first"
        if not _overlap(earlier, usage):
            cure = f"where both are runs, give each an id of its own; else {cure}"
        message = f"{usage.workload_id!r} stands with other values on line {earlier.line}; {cure}"
        problems.append(Problem("double_workload", source, message))

    def _earlier(self, usage: UsageRow) -> UsageRow | None:
        """The row before this one that speaks of the same run; None after keeping this one as the
        first of its own.
        """
        first = self._rows.setdefault(usage.workload_id, usage)
        if first is usage:
            return None
        if not self._has_runs or _overlap(first, usage):
            return first
        others = self._later_runs.setdefault(usage.workload_id, [])
        same = next((run for run in others if _overlap(run, usage)), None)
        if same is None:
            others.append(usage)
        return same

    def _replace(self, earlier: UsageRow, usage: UsageRow) -> None:
        if self._rows[usage.workload_id] is earlier:
            self._rows[usage.workload_id] = usage
        else:
            others = self._later_runs[usage.workload_id]
            others[others.index(earlier)] = usage

    def finish(self, parsed: Parsed[UsageRow]) -> None:
        """Hand over the rows, and a note on those that were settled."""
        later = [run for runs in self._later_runs.values() for run in runs]
        parsed.rows = [*self._rows.values(), *later]
        if self._ended:
            rows = plural(self._ended, "row")
            parsed.notes.append(
                f"{rows} without an end of workloads that have ended on another row: left out"
            )
        if self._repeated:
            parsed.notes.append(f"{plural(self._repeated, 'repeated row')}: counted once")
        if later:
            jobs = len({run.workload_id for run in later})
            parsed.notes.append(
                f"{plural(jobs, 'job')} ran again after a requeue: each run is billed"
            )


def _overlap(run: UsageRow, other: UsageRow) -> bool:
    """Whether two rows have a time in common, or begin at the same instant; a row without an end
    goes on.
    """
    return run.start_ms == other.start_ms or (
        (run.end_ms is None or other.start_ms < run.end_ms)
        and (other.end_ms is None or run.start_ms < other.end_ms)
    )


def is_long(row: UsageRow, now_ms: int) -> bool:
    """Whether a workload ran for more than LONG_DAYS, up to now where it has no end."""
    return _days(row, now_ms) > LONG_DAYS


def _days(row: UsageRow, now_ms: int) -> int:
    return ((now_ms if row.end_ms is None else row.end_ms) - row.start_ms) // DAY_MS


def long_usage(path: Path, rows: Sequence[UsageRow], now_ms: int) -> list[str]:
    """Warnings about workloads of more than LONG_DAYS; those without an end stand first."""
    running, ended = [], []
    for row in rows:
        if not is_long(row, now_ms):
            continue
        days = _days(row, now_ms)
        place, since = f"{path}:{row.line}:end: {row.workload_id!r}", format_instant(row.start_ms)
        if row.end_ms is None:
            hours = row.gpu_micro * (now_ms - row.start_ms) // (MICRO * HOUR_MS)
            running.append(
                f"{place} has no end and runs since {since}, {days} days: billed up to now, {hours}"
                " GPU-hours, until an end is imported"
            )
        else:
            ended.append(
                f"{place} ended after {days} days, from {since} to {format_instant(row.end_ms)}"
            )
    warnings = [*running, *ended][:MAX_WARNINGS]
    more = len(running) + len(ended) - len(warnings)
    if more:
        warnings.append(f"{path}: {plural(more, 'more row')} of more than {LONG_DAYS} days")
    return warnings

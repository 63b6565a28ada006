"""Slurm's accounting as usage: what `sacct` prints becomes who held how many GPUs.

    TZ=UTC SLURM_TIME_FORMAT=%s sacct -X -a -P -n -D -S 2026-10-01 -E 2026-11-01 -o
    jobidraw,cluster,account,user,\
partition,qos,state,submit,eligible,start,end,elapsedraw,suspended,alloctres,nodelist,comment,wckey,jobname

Traps that are taken care of: AllocTRES names GPUs twice (`gres/gpu:h100=2,gres/gpu=2`), so the
untyped count is taken and the typed one only where it stands alone; a job's name may hold the
separator, so it is the last column; the state may be `CANCELLED by 0`; a requeued job has several
rows of one id, told apart by their submission; suspended time is not held.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import Field, PlainValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gpuledger_collector.accounting.attribution import FACTS
from gpuledger_collector.accounting.import_progress import OnRow, tell_each, tell_nobody
from gpuledger_collector.accounting.ledger_rows import (
    UNKNOWN_POOL,
    UsageColumns,
    UsageRow,
    UsageSource,
)
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import decode, line_count
from gpuledger_collector.config.fields import (
    DECLARED,
    MAX_AMOUNT,
    Instants,
    Name,
    Text,
    end_after,
    read_instant,
    read_text,
    refusal,
)
from gpuledger_collector.config.files import (
    MAX_ROW_CHARACTERS,
    bounded_rows,
    lines_of,
    require_few_problems,
)
from gpuledger_collector.config.model import Record, Row
from gpuledger_collector.ingest.files.instants import (
    InstantReader,
    is_local,
    is_number,
    suspended_ms,
)
from gpuledger_collector.ingest.files.job_table import AllocationKinds, gpus_of
from gpuledger_collector.ingest.files.usage import UsageFile, WorkloadRows
from gpuledger_common.plurals import plural

_NEVER = {"", "None", "Unknown", "N/A"}
_BEGINS = re.compile(r"\d+(\+\d+|_\d+)?\|")
_ID_NAMES = {"jobid", "jobidraw"}
_HEADER_BEGINS = "jobidraw|"
_HEADER = re.compile(f"^{re.escape(_HEADER_BEGINS)}", re.IGNORECASE | re.MULTILINE)
_PAIR = re.compile(r"([A-Za-z_][\w.-]*+)\s*+(?:=\s*+([^;,]*+))?")
"""A word, and its value where it is a name: each character is looked at once."""


def _read_instant(value: object, info: ValidationInfo) -> int | None:
    if read_text(value) in _NEVER:
        return None
    try:
        return read_instant(value, info)
    except PydanticCustomError as error:
        if "has no zone" not in error.message_template:
            raise
        hint = f"{error.message_template}; or give --zone, or run sacct with SLURM_TIME_FORMAT=%s"
        raise refusal(error.type, hint) from None


def _read_span(value: object) -> int:
    pause_ms = suspended_ms(read_text(value))
    if pause_ms is None:
        raise refusal("bad_span", f"{value!r} is no span such as 1-02:03:04")
    return pause_ms


_Instant = Annotated[int | None, PlainValidator(_read_instant)]


class _Job(Row):
    """A row; the fields are the columns in the order in which sacct prints them."""

    job: Text = Field(alias="jobidraw")
    cluster: Text
    account: Text | None = None
    user: Text | None = None
    partition: Name = ""
    qos: str = ""
    state: Text = ""
    submitted_ms: _Instant = Field(None, alias="submit")
    eligible: str = ""
    start_ms: _Instant = Field(None, alias="start")
    end_ms: Annotated[_Instant, end_after("start_ms", "start", or_at=True)] = Field(
        None, alias="end"
    )
    elapsedraw: str = ""
    pause_ms: Annotated[int, PlainValidator(_read_span)] = Field(0, alias="suspended")
    alloctres: str = ""
    node: Text = Field("", alias="nodelist")
    comment: str = ""
    wckey: str = ""
    job_name: Text | None = Field(None, alias="jobname")

    @field_validator("pause_ms")
    @classmethod
    def _fit_into_the_run(cls, pause_ms: int, info: ValidationInfo) -> int:
        start_ms, end_ms = info.data.get("start_ms"), info.data.get("end_ms")
        if start_ms is not None and end_ms is not None and pause_ms > end_ms - start_ms:
            raise refusal("order", "is longer than the job ran")
        return pause_ms

    def usage(self, record: Record, gpus: int, model: str, pool: str | None) -> UsageRow:
        """The usage of the job; a requeued job has several rows, which their submission tells
        apart.
        """
        return UsageRow(
            line=record.line,
            workload_id=f"{self.cluster}/{self.job}@{(self.submitted_ms or 0) // 1000}",
            start_ms=self.start_ms or 0,
            # Suspended time is not held.
            end_ms=(None if self.end_ms is None else self.end_ms - self.pause_ms),
            gpu_micro=gpus * MICRO,
            gpu_model=model,
            pool=pool or self.partition or UNKNOWN_POOL,
            node=self.node,
            user=self.user,
            account=self.account,
            job_name=self.job_name,
            submitted_ms=self.submitted_ms,
            state=self.state.partition(" ")[0],
            tags=tags_of(record.cells),
        )


COLUMNS = tuple(_Job.cell_names())
FREE_FROM = COLUMNS.index("comment")
"""The first column that users fill with what they like."""


def is_sacct(path: Path) -> bool:
    """Whether a file begins as `read_sacct` reads it, with its columns as header or with a job.

    Raises OSError.
    """
    text = decode(path, [], [])
    first = "" if text is None else text.lstrip("\r\n").partition("\n")[0]
    return first.count("|") >= len(COLUMNS) - 1 and (
        _BEGINS.match(first) is not None or _is_header(first)
    )


def _is_header(line: str) -> bool:
    return line.count("|") == len(COLUMNS) - 1 and _names_of(line) == COLUMNS


def _names_of(line: str) -> tuple[str, ...]:
    return tuple(line.strip().lower().split("|"))


def read_sacct(
    path: Path,
    pool: str | None = None,
    instants: Instants = DECLARED,
    zone: ZoneInfo | None = None,
    on_line: OnRow = tell_nobody,
) -> UsageFile:
    """Every job of the file that had GPUs, or the problems of all bad rows.

    `pool` None: the partition is the pool.

    `zone`: of local times, as sacct prints them by itself; None refuses them. `on_line` is told how
    many of how many lines are read.

    The account is the tag `team` unless the job's comment (`project=llm;team=x`) names one. Raises
    OSError.

    A job that stands twice with other values is a bad row, as in every usage import, unless they
    are runs of it.
    """
    parsed = UsageFile(columns=UsageColumns(has_runs=True), source=UsageSource.sacct)
    text = decode(path, parsed.problems, parsed.notes)
    if text is None:
        return parsed
    if (problem := _other_columns(path, text)) is not None:
        parsed.problems.append(problem)
        return parsed
    waiting = without = 0
    rows = WorkloadRows(has_runs=True)
    kinds = AllocationKinds()
    clock = None if zone is None else InstantReader(zone, day_first=None)
    for record in _split(path, text, parsed.problems, on_line):
        if record.cells["start"].strip() in _NEVER:
            waiting += 1
            continue
        if kinds.count_if_shared(record.cells["alloctres"]):
            continue
        gpus, model = gpus_of(record.cells["alloctres"])
        if gpus == 0:
            without += 1
            continue
        if gpus > MAX_AMOUNT:
            source = f"{record.source}:alloctres"
            parsed.problems.append(Problem("out_of_range", source, f"{gpus} GPUs are too many"))
            continue
        known = record if clock is None else _with_unix_times(record, clock, parsed.problems)
        job = None if known is None else _Job.read(known, parsed.problems, instants)
        if job is not None:
            usage = job.usage(record, gpus, model, pool)
            rows.add(usage, f"{path}:{record.line}:jobidraw", parsed.problems)
    rows.finish(parsed)
    headers = sum(1 for _ in _HEADER.finditer(text))
    parsed.notes += [*_left_out(headers - 1, waiting, without), *kinds.notes()]
    if clock is not None and clock.repeated:
        parsed.notes.append(clock.repeated_note)
    return parsed


def _with_unix_times(
    record: Record, clock: InstantReader, problems: list[Problem]
) -> Record | None:
    """The row with unix seconds in the place of its local times; None after adding a problem."""
    cells = dict(record.cells)
    for name in ("submit", "start", "end"):
        text = cells[name].strip()
        if is_number(text) or not is_local(text):
            continue
        try:
            cells[name] = str(clock.read(text) // 1000)
        except ValueError as error:
            problems.append(
                Problem("bad_instant", f"{record.file}:{record.line}:{name}", str(error))
            )
            return None
    return Record(record.file, record.line, cells)


def _left_out(headers: int, waiting: int, without: int) -> Iterator[str]:
    """The sentences about lines that are no usage."""
    if headers > 0:
        yield f"{plural(headers, 'repeated header line')}: left out"
    if waiting:
        yield f"{plural(waiting, 'job')} not started: left out"
    if without:
        yield f"{plural(without, 'job')} without GPUs: left out"


def _other_columns(path: Path, text: str) -> Problem | None:
    """The problem of a file with other columns, which `gpuledger start` reads by their header."""
    lines = lines_of(text)
    first = next((line for line in lines if line.strip()), None)
    if first is None or _is_header(first):
        return None
    has_names = not _BEGINS.match(first) and bool(
        _ID_NAMES & set(re.split(r"[^a-z]+", first[:MAX_ROW_CHARACTERS].lower()))
    )
    if not has_names and any(
        line.count("|") >= len(COLUMNS) - 1 for line in itertools.chain([first], lines)
    ):
        return None
    header = "under their header" if has_names else "under a header line: print it without -n"
    message = (
        f"these are not the columns that `import sacct` reads ({','.join(COLUMNS)}); `gpuledger"
        f" start {path}` reads others {header}"
    )
    return Problem("no_column", f"{path}:1", message)


def _split(path: Path, text: str, problems: list[Problem], on_line: OnRow) -> Iterator[Record]:
    """Rows by their bars; a header line is ignored, and only the last column may hold a bar itself."""
    for line, raw in bounded_rows(path, _records(text, on_line)):
        require_few_problems(path, problems)
        if len(raw) > MAX_ROW_CHARACTERS:
            message = f"is longer than {MAX_ROW_CHARACTERS} characters"
            problems.append(Problem("bad_row", f"{path}:{line}", message))
            continue
        cells = raw.split("|", len(COLUMNS) - 1)
        if len(cells) != len(COLUMNS):
            message = (
                f"has {len(cells)} columns where sacct was to print {len(COLUMNS)}:"
                f" {','.join(COLUMNS)}"
            )
            problems.append(Problem("bad_row", f"{path}:{line}", message))
            continue
        yield Record(str(path), line, dict(zip(COLUMNS, cells, strict=True)))


def _records(text: str, on_line: OnRow) -> Iterator[tuple[int, str]]:
    """Records with the line on which each begins: comments and names may hold line ends, and sacct
    prints them.

    A record that has come as far as its comment takes lines until it has all its columns; a line
    that does not begin with a job id, though the record before is whole, still belongs to that
    one's last column, the name. What a record has beyond `MAX_ROW_CHARACTERS` is left out.
    """
    begun = characters = bars = 0
    parts: list[str] = []
    for line, raw in enumerate(tell_each(lines_of(text), line_count(text), on_line), start=1):
        if not raw.strip() or raw[: len(_HEADER_BEGINS)].lower() == _HEADER_BEGINS:
            continue
        if bars >= FREE_FROM and (bars < len(COLUMNS) - 1 or not _BEGINS.match(raw)):
            bars += raw.count("|")
            if characters <= MAX_ROW_CHARACTERS:
                parts.append(raw)
                characters += len(raw) + 1
            continue
        if parts:
            yield begun, " ".join(parts)
        begun, parts, characters, bars = line, [raw], len(raw), raw.count("|")
    if parts:
        yield begun, " ".join(parts)


def tags_of(row: Mapping[str, str]) -> dict[str, str]:
    """Tags of a job: the pairs of its comment, its wckey, and its account as the team where no
    comment names one.
    """
    pairs = ((name, value.strip()) for name, value in _PAIR.findall(row["comment"]))
    # users cannot override the facts that Slurm knows
    tags = {name: value for name, value in pairs if value and name not in FACTS}
    wckey = row["wckey"].strip().lstrip("*")
    if wckey:
        tags.setdefault("wckey", wckey)
    if row["account"].strip():
        tags.setdefault("team", row["account"].strip())
    return tags

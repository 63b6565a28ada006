"""Slurm's accounting as usage: what `sacct` prints becomes who held how many GPUs.

    TZ=UTC SLURM_TIME_FORMAT=%s sacct -X -a -P -n -D -S 2026-10-01 -E 2026-11-01 -o jobidraw,cluster,account,user,\
partition,qos,state,submit,eligible,start,end,elapsedraw,suspended,alloctres,nodelist,comment,wckey,jobname

Traps that are taken care of: AllocTRES names GPUs twice (`gres/gpu:h100=2,gres/gpu=2`), so the untyped count is taken
and the typed one only where it stands alone; a job's name may hold the separator, so it is the last column; the state
may be `CANCELLED by 0`; a requeued job has several rows of one id, told apart by their submission; suspended time is
not held.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuledger_collector.accounting.attribution import FACTS
from gpuledger_collector.accounting.ports import UsageRow
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.table import DECLARED, Instants, Parsed, RowReader, read_text
from gpuledger_collector.ingest.files.usage import keep_one
from gpuledger_common.plurals import plural

COLUMNS = (
    "jobidraw",
    "cluster",
    "account",
    "user",
    "partition",
    "qos",
    "state",
    "submit",
    "eligible",
    "start",
    "end",
    "elapsedraw",
    "suspended",
    "alloctres",
    "nodelist",
    "comment",
    "wckey",
    "jobname",
)
FREE_FROM = COLUMNS.index("comment")
"""The first column that users fill with what they like."""
MICRO = 1_000_000
_NEVER = {"", "None", "Unknown", "N/A"}
_GPU = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)(?:,|$)")
_SPAN = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_BEGINS = re.compile(r"\d+(\+\d+|_\d+)?\|")
_PAIR = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*=\s*([^;,]*)")


def read_sacct(path: Path, pool: str | None = None, instants: Instants = DECLARED) -> Parsed[UsageRow]:
    """Every job of the file that had GPUs, or the problems of all bad rows. `pool` None: the partition is the pool.

    The account is the tag `team` unless the job's comment (`project=llm;team=x`) names one. Raises OSError.

    A job that stands twice with other values is a bad row, as in every usage import.
    """
    parsed: Parsed[UsageRow] = Parsed()
    text, parsed.problems = read_text(path)
    if parsed.problems:
        return parsed
    waiting = without = 0
    seen: dict[str, UsageRow] = {}
    for row in _rows(path, text, parsed.problems, instants):
        if row.cells["start"].strip() in _NEVER:
            waiting += 1
            continue
        gpus, model = gpus_of(row.cells["alloctres"])
        if gpus == 0:
            without += 1
            continue
        usage = _usage(row, gpus, model, pool)
        if usage is not None:
            keep_one(seen, usage, f"{path}:{{}}:jobidraw", parsed.problems)
    parsed.rows = list(seen.values())
    if waiting:
        parsed.notes.append(f"{plural(waiting, 'job')} not started: left out")
    if without:
        parsed.notes.append(f"{plural(without, 'job')} without GPUs: left out")
    return parsed


def _rows(path: Path, text: str, problems: list[Problem], instants: Instants) -> Iterator[RowReader]:
    """Rows by their bars; a header line is passed over, and only the last column may hold a bar itself."""
    for line, raw in _records(text):
        cells = raw.split("|", len(COLUMNS) - 1)
        if len(cells) != len(COLUMNS):
            message = f"has {len(cells)} columns where sacct was to print {len(COLUMNS)}: {','.join(COLUMNS)}"
            problems.append(Problem("bad_row", f"{path}:{line}", message))
            continue
        yield RowReader(str(path), line, dict(zip(COLUMNS, cells, strict=True)), problems, instants=instants)


def _records(text: str) -> Iterator[tuple[int, str]]:
    """Records with the line on which each begins: comments and names may hold line ends, and sacct prints them.

    A record that has come as far as its comment takes lines until it has all its columns; a line that does not begin
    with a job id, though the record before is whole, still belongs to that one's last column, the name.
    """
    begun, record = 0, ""
    for line, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip() or raw.lower().startswith("jobidraw|"):
            continue
        if record.count("|") >= FREE_FROM and (record.count("|") < len(COLUMNS) - 1 or not _BEGINS.match(raw)):
            record += " " + raw
            continue
        if record:
            yield begun, record
        begun, record = line, raw
    if record:
        yield begun, record


def gpus_of(alloc_tres: str) -> tuple[int, str]:
    """GPUs of an AllocTRES, counted once, and their type where all are of one."""
    found = [(kind or "", int(count)) for kind, count in _GPU.findall(alloc_tres)]
    typed = [(kind, count) for kind, count in found if kind]
    untyped = [count for kind, count in found if not kind]
    model = typed[0][0] if len(typed) == 1 else ""
    return (untyped[0] if untyped else sum(count for _, count in typed)), model


def suspended_ms(text: str) -> int | None:
    """Milliseconds of `[days-][hours:]minutes:seconds`; None for what is none."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return 0 if text.strip() in _NEVER else None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def tags_of(row: Mapping[str, str]) -> dict[str, str]:
    """Tags of a job: the pairs of its comment, its wckey, and its account as the team where no comment names one."""
    pairs = ((name, value.strip()) for name, value in _PAIR.findall(row["comment"]))
    tags = {
        name: value for name, value in pairs if value and name not in FACTS
    }  # what Slurm knows is not for users to say
    wckey = row["wckey"].strip().lstrip("*")
    if wckey:
        tags.setdefault("wckey", wckey)
    if row["account"].strip():
        tags.setdefault("team", row["account"].strip())
    return tags


def _instant(row: RowReader, column: str) -> int | None:
    if row.cells[column].strip() in _NEVER:
        return None
    at_ms = row.instant(column)
    if at_ms is None and "has no zone" in row.problems[-1].message:
        row.problems[-1] = Problem(
            row.problems[-1].code,
            row.problems[-1].source,
            row.problems[-1].message + "; or run sacct with SLURM_TIME_FORMAT=%s",
        )
    return at_ms


def _usage(row: RowReader, gpus: int, model: str, pool: str | None) -> UsageRow | None:
    start_ms, end_ms, submitted_ms = (_instant(row, column) for column in ("start", "end", "submit"))
    pause_ms = suspended_ms(row.cells["suspended"])
    if pause_ms is None:
        row.refuse("suspended", "bad_span", f"{row.cells['suspended']!r} is no span such as 1-02:03:04")
    elif start_ms is not None and end_ms is not None:
        end_ms -= pause_ms
        if end_ms < start_ms:
            row.refuse("end", "order", "lies before the start, the suspended time taken off")
    job, cluster = row.text("jobidraw", required=True), row.text("cluster", required=True)
    usage = UsageRow(
        line=row.line,
        workload_id=f"{cluster}/{job}@{(submitted_ms or 0) // 1000}",
        start_ms=start_ms or 0,
        end_ms=end_ms,
        gpu_micro=gpus * MICRO,
        gpu_model=model,
        pool=pool or row.name("partition") or "imported",
        node=row.text("nodelist"),
        user=row.optional_text("user"),
        account=row.optional_text("account"),
        job_name=row.optional_text("jobname"),
        submitted_ms=submitted_ms,
        state=row.text("state").partition(" ")[0],
        tags=tags_of(row.cells),
    )
    return None if row.bad else usage

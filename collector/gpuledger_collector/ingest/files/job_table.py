"""Tables of jobs as schedulers and spreadsheets write them: what each column means and how its instants are written.

Whatever a file looks like, it leaves here as records of the usage import: columns by their names, instants as RFC 3339
with a zone. What can be read in two ways is never guessed: it is a problem that names the option that settles it.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from zoneinfo import ZoneInfo

from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import decode, split_rows
from gpuledger_collector.config.model import Record
from gpuledger_common.plurals import plural

SYNONYMS = {
    "workload_id": "workload workload_uid workload_uuid job_id jobid jobidraw job task_id run_id pod pod_name pod_uid "
    "id",
    "start": "start_time started started_at start_at start_ts start_date begin begin_time begin_at began from",
    "end": "end_time ended ended_at end_at end_ts end_date finish finish_time finished finished_at completed_at "
    "completion_time stop stop_time stopped_at to until",
    "gpus": "gpu num_gpus num_gpu n_gpus ngpus gpu_count gpus_count gpu_num gpus_allocated allocated_gpus alloc_gpus "
    "number_of_gpus alloctres alloc_tres",
    "gpu_model": "gpu_type gpu_name gpu_kind accelerator accelerator_type",
    "pool": "partition queue",
    "node": "nodelist node_list node_name nodename host hostname",
    "user": "user_name username uid_name submitted_by",
    "account": "account_name",
    "job_name": "jobname name",
    "submitted": "submit submit_time submitted_at submission_time queued_at",
    "state": "status job_state final_state",
    "tag:org": "org organization organisation",
    "tag:team": "team team_name",
    "tag:project": "project project_name",
    "tag:experiment": "experiment experiment_name",
    "tag:run": "run run_name",
}
"""Other names of the columns, in lower case with underscores."""
INSTANTS = ("start", "end", "submitted")
DELIMITERS = ",;\t|"
TAG = "tag:"
_EXCEL_EPOCH = dt.datetime(1899, 12, 30)  # noqa: DTZ001  a serial number is a local time
_EXCEL_DAYS = (36_526, 73_051)
"""Serial numbers of 2000-01-01 and 2100-01-01."""
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?)?")
_YEAR_FIRST = re.compile(r"(?P<year>\d{4})[/.](?P<month>\d{1,2})[/.](?P<day>\d{1,2})(?P<clock>[T ,]+.*)?")
_YEAR_LAST = re.compile(
    r"(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4}|\d{2})(?P<clock>[T ,]+.*)?"
)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,6}))?)?(?: ?([AaPp])\.?[Mm]\.?)?")
_NUMBER = re.compile(r"\d+([.,]\d+)?")
_TRES_GPU = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)(?:,|$)")
_DECIMAL_COMMA = re.compile(r"(\d+|\d{1,3}(\.\d{3})+),\d+")
_THOUSANDS = re.compile(r"\d{1,3}(\.\d{3})+")
_SEPARATOR = re.compile(r"sep=(.)\r?\n")
_STEP = re.compile(r"(\d+(?:_\d+|\+\d+)?)\.(?:batch|extern|interactive|\d+)")
_NO_INSTANT = {"", "unknown", "none", "n/a", "null", "nan", "-"}
_FIRST_MILLISECONDS = 10**11


@dataclass(frozen=True)
class TableOptions:
    """What a person says about a table that it does not say itself.

    `columns`: meaning -> header name, against the synonyms; `zone`: of times without one; `day_first`: how to read
    03/04/2026.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    zone: str | None = None
    day_first: bool | None = None


@dataclass(frozen=True)
class JobTable:
    """A table of jobs as it was understood. `columns`: header name -> meaning, None for what is ignored."""

    path: Path
    delimiter: str
    header: Sequence[str]
    columns: Mapping[str, str | None]
    records: Sequence[Record]
    day_first: bool | None = None
    """How dates such as 03/04/2026 are read; None where there are none."""
    has_decimal_comma: bool = False
    """Whether a comma separates the decimals of a number, and a point its thousands."""
    zone: ZoneInfo | None = None

    @property
    def meanings(self) -> dict[str, str]:
        """Meaning -> header name."""
        return {meaning: name for name, meaning in self.columns.items() if meaning is not None}


def read_table(
    path: Path, needed: Sequence[str], known: Sequence[str], options: TableOptions, problems: list[Problem]
) -> JobTable | None:
    """Understand a file; None after adding the problems of the file as a whole. Raises OSError.

    `needed` and `known`: the meanings that a table must and may have, besides tags.
    """
    text = decode(path, problems)
    if text is None:
        return None
    # Spreadsheets write the delimiter into a first line of its own; it counts as a line of the file.
    said = _SEPARATOR.match(text)
    text, skipped = (text[said.end() :], 1) if said else (text, 0)
    delimiter = said[1] if said else _delimiter(text)
    header, rows = split_rows(path, text, problems, delimiter)
    if problems:
        return None
    columns = _columns(path, header, known, options, problems)
    missing = [name for name in needed if name not in columns.values()]
    if missing:
        problems.append(_missing(path, header, columns, missing))
    if problems:
        return None
    filled = [replace(row, line=row.line + skipped) for row in rows if any(map(str.strip, row.cells.values()))]
    zone = ZoneInfo(options.zone) if options.zone else None
    table = JobTable(path, delimiter, header, columns, filled, zone=zone)
    table = replace(
        table, day_first=_day_first(table, options, problems), has_decimal_comma=_has_decimal_comma(table, problems)
    )
    _require_zone(table, problems)
    return None if _of_file(problems) else table


def _of_file(problems: Sequence[Problem]) -> bool:
    return any(problem.code in {"two_readings", "no_zone"} for problem in problems)


def records(table: JobTable, problems: list[Problem], notes: list[str]) -> Iterator[Record]:
    """The rows by meaning, with instants that say their zone.

    Adds a problem for each local time that is no instant; its cell stays as it was written, which no import takes.
    """
    repeated = steps = 0
    id_column = table.meanings["workload_id"]
    ids = {record.cells[id_column].strip() for record in table.records}
    for record in table.records:
        cells = {meaning: record.cells[name].strip() for meaning, name in table.meanings.items()}
        step = _STEP.fullmatch(cells["workload_id"])
        if step is not None and step[1] in ids:
            steps += 1
            continue
        for meaning in INSTANTS:
            if cells.get(meaning, "").casefold() in _NO_INSTANT:
                cells |= {meaning: ""} if meaning in cells else {}
                continue
            try:
                cells[meaning], is_repeated = _instant(cells[meaning], table)
                repeated += is_repeated
            except ValueError as error:
                problems.append(Problem("bad_instant", f"{record.source}:{meaning}", str(error)))
        cells["gpus"] = _gpus(cells["gpus"], table.has_decimal_comma)
        yield Record(record.file, record.line, cells)
    if steps:
        notes.append(f"{plural(steps, 'step')} of Slurm jobs that have a row of their own: left out")
    if repeated:
        zone = table.zone.key if table.zone else ""
        notes.append(f"{plural(repeated, 'instant')} in an hour that {zone} has twice: read as the first of the two")


def _has_decimal_comma(table: JobTable, problems: list[Problem]) -> bool:
    """Decide what a comma and a point mean over all numbers of GPUs; a file that leaves it open is refused."""
    if table.delimiter == ",":
        return False
    cells = [record.cells[table.meanings["gpus"]].strip() for record in table.records]
    if any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells):
        return True
    unclear = next((cell for cell in cells if _THOUSANDS.fullmatch(cell)), None)
    if unclear is not None:
        message = f"{unclear!r} GPUs can be read as {unclear.replace('.', '')} or as {unclear.rstrip('0').rstrip('.')}"
        problems.append(
            Problem("two_readings", str(table.path), f"{message}; write it without the point, or with 6 decimals")
        )
    return False


def _gpus(cell: str, has_decimal_comma: bool) -> str:
    """A number of GPUs as written, by the marks of its file, or within Slurm's AllocTRES."""
    if has_decimal_comma and (_DECIMAL_COMMA.fullmatch(cell) or _THOUSANDS.fullmatch(cell)):
        return cell.replace(".", "").replace(",", ".")
    # With a point that is neither, it is left for the import to refuse.
    return str(gpus_of(cell)[0]) if "=" in cell else cell.replace(".", "?") if has_decimal_comma else cell


def gpus_of(alloc_tres: str) -> tuple[int, str]:
    """GPUs of an AllocTRES, counted once, and their type where all are of one."""
    # `gres/gpu=2` sums up the typed entries beside it
    counts = {kind: int(count) for kind, count in _TRES_GPU.findall(alloc_tres)}
    untyped = counts.pop("", None)
    model = next(iter(counts)) if len(counts) == 1 else ""
    return sum(counts.values()) if untyped is None else untyped, model


def _delimiter(text: str) -> str:
    """The delimiter by which the first line names most known columns, then most columns."""
    first = text.lstrip("\r\n").partition("\n")[0]

    def score(delimiter: str) -> tuple[int, int]:
        names = next(csv.reader(io.StringIO(first), delimiter=delimiter), [])
        return sum(_meaning(name, SYNONYMS) is not None for name in names), len(names)

    return max(DELIMITERS, key=score)


def _meaning(name: str, known: Sequence[str] | Mapping[str, str]) -> str | None:
    """What a column means by its name alone."""
    stripped = name.strip()
    if stripped in known or (stripped.startswith(TAG) and stripped != TAG):
        return stripped
    word = re.sub(r"[^a-z0-9]+", "_", stripped.casefold()).strip("_")
    if word in known:
        return word
    return next((meaning for meaning, words in SYNONYMS.items() if word in words.split()), None)


def _columns(
    path: Path, header: Sequence[str], known: Sequence[str], options: TableOptions, problems: list[Problem]
) -> dict[str, str | None]:
    chosen = {name: meaning for meaning, name in options.columns.items()}
    for meaning, name in options.columns.items():
        if meaning not in known and not meaning.startswith(TAG):
            problems.append(Problem("no_column", "--column", f"{meaning!r} is none of {', '.join(known)}, {TAG}NAME"))
        if name not in header:
            problems.append(Problem("no_column", f"{path}:1:{name}", f"is no column; there are {_listed(header)}"))
    columns: dict[str, str | None] = {}
    for name in header:
        by_name = _meaning(name, known)
        # What an option gives to one column is no other's.
        columns[name] = chosen.get(name) or (None if by_name in options.columns else by_name)
    for meaning in sorted(filter(None, set(columns.values()))):
        names = [name for name in header if columns[name] == meaning]
        exact = [name for name in names if name == meaning]
        if len(names) > 1 and len(exact) != 1:
            message = f"columns {_listed(names)} all mean {meaning}; --column {meaning}={names[0]} takes the first"
            problems.append(Problem("two_readings", f"{path}:1", message))
        elif len(names) > 1:
            columns |= {name: None for name in names if name != meaning}
    return columns


def _missing(path: Path, header: Sequence[str], columns: Mapping[str, str | None], missing: Sequence[str]) -> Problem:
    unused = [name for name in header if columns[name] is None]
    if len(unused) == len(header):
        message = f"the first line names no column that is known; it has {_listed(header)}"
    else:
        message = f"no column is known as {' or '.join(missing)}; there are {_listed(header)}"
    near = {meaning: (get_close_matches(meaning, unused, 1, 0.5) or ["NAME"])[0] for meaning in missing}
    cure = " ".join(f"--column {meaning}={name}" for meaning, name in near.items())
    return Problem("no_column", f"{path}:1", f"{message}; {cure} says which it is")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _instant_cells(table: JobTable) -> Iterator[str]:
    names = [name for name, meaning in table.columns.items() if meaning in INSTANTS]
    return (cell for record in table.records for name in names if (cell := record.cells[name].strip()))


def _day_first(table: JobTable, options: TableOptions, problems: list[Problem]) -> bool | None:
    """Whether days stand before months, decided over all instants of the file; None where nothing depends on it."""
    dates = [match for cell in _instant_cells(table) if (match := _YEAR_LAST.fullmatch(cell))]
    if not dates or options.day_first is not None:
        return options.day_first
    if all(date["mark"] == "." for date in dates):
        return True
    days = next((date[0] for date in dates if int(date["first"]) > 12), None)
    months = next((date[0] for date in dates if int(date["second"]) > 12), None)
    if days and months:
        message = f"{days!r} has its day first and {months!r} its month; --dates day-first or month-first"
        problems.append(Problem("two_readings", str(table.path), f"{message} refuses the others"))
    elif not days and not months and any(date["first"] != date["second"] for date in dates):
        example = next((date[0] for date in dates if date["first"] != date["second"]), dates[0][0])
        message = f"dates such as {example!r} can be read with the day or the month first; --dates day-first or"
        problems.append(Problem("two_readings", str(table.path), f"{message} --dates month-first settles it"))
    return bool(days)


def _require_zone(table: JobTable, problems: list[Problem]) -> None:
    """Refuse a file all of whose instants are local times, unless their zone is given."""
    if table.zone is not None:
        return
    local = None
    for cell in _instant_cells(table):
        if not _is_local(cell):
            return
        local = local or cell
    if local is not None:
        message = f"times such as {local!r} have no zone; --zone Europe/Berlin or --zone UTC says which it is"
        problems.append(Problem("no_zone", str(table.path), message))


def _is_local(cell: str) -> bool:
    """Whether a cell has one of the forms of a local time."""
    return _is_excel(cell) or any(form.fullmatch(cell) for form in (_ISO, _YEAR_FIRST, _YEAR_LAST))


def _is_excel(cell: str) -> bool:
    return bool(_NUMBER.fullmatch(cell)) and _EXCEL_DAYS[0] <= float(cell.replace(",", ".")) < _EXCEL_DAYS[1]


def _instant(cell: str, table: JobTable) -> tuple[str, bool]:
    """The instant as the usage import takes it, and whether its local time occurs twice. Raises ValueError."""
    if _NUMBER.fullmatch(cell) and float(cell.replace(",", ".")) >= _FIRST_MILLISECONDS:
        raise ValueError(f"{cell!r} looks like milliseconds; unix instants are in seconds")
    local = _local(cell, table.day_first)
    if local is None:  # unix seconds, an instant with a zone, or nothing that is one: the import says so
        return cell, False
    if table.zone is None:
        raise ValueError(f"{cell!r} has no zone; --zone Europe/Berlin or --zone UTC says which it is")
    at = local.replace(tzinfo=table.zone)
    if at.astimezone(dt.UTC).astimezone(table.zone).replace(tzinfo=None) != local:
        raise ValueError(f"{cell!r} does not exist in {table.zone.key}: clocks were put forward over it")
    return at.isoformat(), at.utcoffset() != at.replace(fold=1).utcoffset()


def _local(cell: str, day_first: bool | None) -> dt.datetime | None:
    """A local time in any of the known forms; None for what is none. Raises ValueError for an impossible one."""
    if _is_excel(cell):
        days = float(cell.replace(",", "."))
        # A serial number has a resolution of about a millisecond; spreadsheets show seconds.
        return _EXCEL_EPOCH + dt.timedelta(seconds=round(days * 86_400))
    if _ISO.fullmatch(cell):
        return _datetime(cell, dt.datetime.fromisoformat, cell.replace(",", "."))
    if match := _YEAR_FIRST.fullmatch(cell):
        return _datetime(cell, _joined, match["year"], match["month"], match["day"], match["clock"])
    match = _YEAR_LAST.fullmatch(cell)
    if match is None:
        return None
    year = match["year"] if len(match["year"]) == 4 else f"20{match['year']}"
    day, month = (match["first"], match["second"]) if day_first else (match["second"], match["first"])
    return _datetime(cell, _joined, year, month, day, match["clock"])


def _datetime(cell: str, make: Callable[..., dt.datetime], *parts: str | None) -> dt.datetime:
    try:
        return make(*parts)
    except ValueError:
        raise ValueError(f"{cell!r} is not an instant") from None


def _joined(year: str, month: str, day: str, clock: str | None) -> dt.datetime:
    date = dt.datetime(int(year), int(month), int(day))  # noqa: DTZ001  local until the zone is added
    text = (clock or "").strip(" T,")
    if not text:
        return date
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(text)
    hour, half = int(match[1]), (match[5] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(text)
        hour = hour % 12 + 12 * (half == "p")
    micro = int((match[4] or "0").ljust(6, "0"))
    return date.replace(hour=hour, minute=int(match[2]), second=int(match[3] or 0), microsecond=micro)

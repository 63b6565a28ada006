"""Tables of jobs as schedulers and spreadsheets write them: what each column means and how its
instants are written.

Whatever a file looks like, it leaves here as records of the usage import: columns by their names,
instants in unix milliseconds. What can be read in two ways is never guessed: it is a problem that
names the option that settles it.

A file is read twice: once to decide what its columns mean, which takes all of its rows, and once to
hand them over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from zoneinfo import ZoneInfo

from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import TableText, read_table_text, split_rows
from gpuledger_collector.config.fields import Instants
from gpuledger_collector.config.model import Record
from gpuledger_collector.ingest.files.headers import (
    TAG,
    TableOptions,
    account_column,
    column_meanings,
    delimiter_of,
    guesses,
    header_problem,
    is_alloc_tres,
    namespace_column,
)
from gpuledger_collector.ingest.files.held_time import DURATIONS, SUSPENDED, HeldTime
from gpuledger_collector.ingest.files.instants import (
    UNIT_MS,
    DateOrder,
    InstantReader,
    date_order,
    date_part,
    is_local,
    is_number,
    span_ms,
    units_ms,
)
from gpuledger_common.plurals import plural

INSTANTS = ("start", "end", "submitted")
SAMPLES = 3
"""Rows that show what a table is like."""
_TRES_GPU = re.compile(r"gres/gpu(?::([^=,]{1,100}))?=(\d+)(?:,|$)", re.ASCII)
_MAX_DIGITS = 20
_TRES_SHARES = re.compile(r"gres/(?:shard|mps)(?::[^=,]{1,100})?=0*[1-9]", re.ASCII)
_DECIMAL_COMMA = re.compile(r"(\d+|[1-9]\d{0,2}(\.\d{3})+),\d+", re.ASCII)
_DECIMAL_POINT = re.compile(r"(\d*|[1-9]\d{0,2}(,\d{3})+)\.\d+", re.ASCII)
_POINT_THOUSANDS = re.compile(r"[1-9]\d{0,2}(\.\d{3})+", re.ASCII)
_COMMA_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+", re.ASCII)
_SEPARATOR = re.compile(r"sep=(.)\r?\n")
_STEP = re.compile(r"(\d+(?:_\d+|\+\d+)?)\.(?:batch|extern|interactive|\d+)", re.ASCII)
_OPENCOST = {"__idle__": "GPUs that no pod held", "__unmounted__": "volumes that no pod mounted"}
"""Rows of OpenCost and Kubecost that are no workloads, by what stands in place of a name."""
_NO_OWNER = "__unallocated__"
"""What they write in place of a label that a workload lacks."""
_NO_INSTANT = {"", "unknown", "none", "n/a", "null", "nan", "-"}
_SUMS = {
    "total",
    "totals",
    "sum",
    "subtotal",
    "grand total",
    "summe",
    "gesamt",
    "gesamtsumme",
    "totale",
    "suma",
}
_BAD = "?"
"""A cell whose problem is known already; no field takes it."""


@dataclass(frozen=True)
class JobTable:
    """A table of jobs as it was understood.

    `columns`: header name -> meaning, None for what is ignored.
    """

    path: Path
    text: str = field(repr=False)
    first_line: int
    """How many lines of the file stand before its header."""
    delimiter: str
    header: Sequence[str]
    columns: Mapping[str, str | None]
    count: int = 0
    """Rows that are neither blank nor the header again."""
    repeated_headers: int = 0
    """How often the header stands again between the rows, as in exports put one after the other."""
    samples: Sequence[Record] = ()
    job_ids: frozenset[str] = frozenset()
    """Jobs that have a row of their own, among those that have rows of steps."""
    day_first: bool | None = None
    """How dates such as 03/04/2026 are read; None where there are none."""
    has_decimal_comma: bool = False
    """Whether a comma separates the decimals of a number, and a point its thousands."""
    zone: ZoneInfo | None = None
    namespace: str | None = None
    """The column of namespaces, where ids are unique in a namespace only."""
    account: str | None = None
    """The column of accounts, where they are the teams."""
    origin: str = ""
    """How the file became text, where that is worth a word."""

    @cached_property
    def meanings(self) -> dict[str, str]:
        """Meaning -> header name."""
        return {meaning: name for name, meaning in self.columns.items() if meaning is not None}

    def column_of(self, meaning: str) -> str:
        """The column that says it, which may be a duration for an end; the meaning itself where
        none does.
        """
        lengths = DURATIONS if meaning == "end" else ()
        return next(
            (self.meanings[name] for name in (meaning, *lengths) if name in self.meanings), meaning
        )

    def rows(self, problems: list[Problem], on_line: OnRow = tell_nobody) -> Iterator[Record]:
        """The rows as written, without blank ones and repeated headers; adds what is no row."""
        yield from (row for row in self.lines(problems, on_line) if not self.is_header(row))

    def lines(self, problems: list[Problem], on_line: OnRow = tell_nobody) -> Iterator[Record]:
        """The rows as written and repeated headers, without blank ones; adds what is no row."""
        _, rows = split_rows(self.path, self.text, problems, self.delimiter, self._free, on_line)
        shift = self.first_line
        for row in rows:
            if any(map(str.strip, row.cells.values())):
                yield replace(row, line=row.line + shift) if shift else row

    @property
    def _free(self) -> str | None:
        """The last column, where it holds names of jobs between bars: sacct quotes nothing."""
        last = next((name for name in reversed(self.header) if name), None)
        return (
            last
            if self.delimiter == "|" and last is not None and self.columns.get(last) == "job_name"
            else None
        )

    def is_header(self, row: Record) -> bool:
        """Whether a row repeats the header; files that are put together may hold byte order marks."""
        first = self.header[0]
        cells = row.cells
        return cells[first].strip("\ufeff ") == first and all(
            cells[name].strip() == name for name in self.header[1:]
        )


@dataclass(slots=True)
class _Survey:
    """What the rows of a table say together: few values, however many rows."""

    count: int = 0
    repeated_headers: int = 0
    samples: list[Record] = field(default_factory=list)
    dates: dict[str, None] = field(default_factory=dict)
    numbers: dict[str, None] = field(default_factory=dict)
    """Of GPUs, and of durations in a unit."""
    spans: dict[str, None] = field(default_factory=dict)
    """Durations without a unit that are numbers."""
    local: str | None = None
    """An instant without a zone."""
    has_zone: bool = False
    """Whether some instant says its zone."""
    steps: set[str] = field(default_factory=set)
    """Jobs of which there are steps."""


def read_table(
    path: Path,
    needed: Sequence[str],
    known: Sequence[str],
    options: TableOptions,
    problems: list[Problem],
    on_line: OnRow = tell_nobody,
) -> JobTable | None:
    """Understand a file; None after adding the problems of the file as a whole. Raises OSError.

    `needed` and `known`: the meanings that a table must and may have, besides tags. `on_line` is
    told how many lines are read, of twice as many as there are: `records` reads them again.
    """
    content = read_table_text(path, problems, options.sheet)
    if content is None:
        return None
    text, first_line, delimiter = _begin(content)
    wrong: list[Problem] = []
    header, _ = split_rows(path, text, wrong, delimiter)
    columns = (
        {}
        if wrong
        else column_meanings(path, header, [*known, *DURATIONS, SUSPENDED], options, wrong)
    )
    missing = [name for name in needed if name not in columns.values()]
    if "end" in missing and set(DURATIONS) & set(columns.values()):
        missing.remove("end")
    # A wrong option for a column is said already.
    missing = [name for name in missing if name not in options.columns]
    if missing and any(header):
        of_header = header_problem(path, header, columns, missing)
        if of_header.code == "no_header":
            wrong = [of_header]
        elif columns:
            wrong.append(of_header)
    problems += wrong
    if not columns or any(problem.code == "no_header" for problem in wrong):
        return None
    # What a person must say of the rows as well is said at once: by the columns that are most
    # likely meant.
    likely = {
        name: meaning for meaning, name in guesses(columns, missing).items() if name is not None
    }
    zone = ZoneInfo(options.zone) if options.zone else None
    meanings = {**columns, **likely}
    table = JobTable(
        path, text, first_line, delimiter, header, meanings, zone=zone, origin=content.origin
    )
    survey = _survey(table, lambda done, total: on_line(done, 2 * total))
    day_first = _day_first(table, survey, options, problems)
    has_decimal_comma = _decide_decimal_comma(table, survey, problems)
    problems += _unclear(table, survey)
    if wrong or any(problem.code in {"two_readings", "no_zone"} for problem in problems):
        return None
    return replace(
        table,
        count=survey.count,
        repeated_headers=survey.repeated_headers,
        samples=survey.samples,
        job_ids=_job_ids(table, survey),
        day_first=day_first,
        has_decimal_comma=has_decimal_comma,
        namespace=namespace_column(columns),
        account=account_column(columns),
    )


def _begin(content: TableText) -> tuple[str, int, str]:
    """The text from its header on, how many lines stand before it, and what separates its cells."""
    if content.delimiter is not None:
        text = content.text.lstrip("\n")
        return text, len(content.text) - len(text), content.delimiter
    # Spreadsheets write the delimiter into a first line of its own; it counts as a line of the
    # file.
    if said := _SEPARATOR.match(content.text):
        return content.text[said.end() :], 1, said[1]
    return content.text, 0, delimiter_of(content.text)


def _unclear(table: JobTable, survey: _Survey) -> Iterator[Problem]:
    """Durations without a unit, and times without a zone."""
    if survey.spans and "end" not in table.meanings:
        name, example = table.meanings["duration"], next(iter(survey.spans))
        message = (
            f"{example!r} can be hours, minutes or seconds; --column duration_hours={name} says"
            " which"
        )
        yield Problem("two_readings", f"{table.path}:1:{name}", message)
    if survey.local is not None and table.zone is None and not survey.has_zone:
        message = (
            f"times such as {survey.local!r} have no zone; --zone Europe/Berlin or --zone UTC says"
            " which it is"
        )
        yield Problem("no_zone", str(table.path), message)


def _survey(table: JobTable, on_line: OnRow) -> _Survey:
    survey = _Survey()
    names = table.meanings
    instants = [names[meaning] for meaning in INSTANTS if meaning in names]
    numbers = [names[meaning] for meaning in ("gpus", *UNIT_MS) if meaning in names]
    id_column = names.get("workload_id")
    for row in table.lines([], on_line):
        if table.is_header(row):
            survey.repeated_headers += 1
            continue
        survey.count += 1
        if len(survey.samples) < SAMPLES:
            survey.samples.append(row)
        cells = row.cells
        if (
            id_column is not None
            and (step := _STEP.fullmatch(cells[id_column].strip())) is not None
        ):
            survey.steps.add(step[1])
        for name in instants:
            if cell := cells[name].strip():
                survey.dates[date_part(cell)] = None
                if table.zone is None and not survey.has_zone:
                    survey.has_zone = not is_local(cell) and cell.casefold() not in _NO_INSTANT
                    survey.local = survey.local or (cell if is_local(cell) else None)
        for name in numbers:
            survey.numbers[cells[name].strip()] = None
        if "duration" in names and is_number(cell := cells[names["duration"]].strip()):
            survey.spans[cell] = None
    return survey


def _job_ids(table: JobTable, survey: _Survey) -> frozenset[str]:
    if not survey.steps:
        return frozenset()
    name = table.meanings["workload_id"]
    ids = (row.cells[name].strip() for row in table.rows([]))
    return frozenset(job for job in ids if job in survey.steps)


def records(
    table: JobTable,
    allowed: Instants,
    problems: list[Problem],
    notes: list[str],
    on_line: OnRow = tell_nobody,
) -> Iterator[tuple[Record, Mapping[str, str]]]:
    """The rows by meaning, with their tags; instants are unix milliseconds, the end is there where
    a duration was.

    Adds a problem for each cell that is no instant or none of those allowed; no field takes what is
    in its place. `on_line` is told how many lines are read, as by `read_table`, which has read them
    once.
    """
    reader = _RecordReader(table, InstantReader(table.zone, table.day_first), allowed, problems)
    id_column, start_column = table.meanings["workload_id"], table.meanings["start"]
    gpus_column = table.meanings["gpus"]
    steps = 0
    opencost: Counter[str] = Counter()
    kinds = AllocationKinds()
    for row in table.rows(problems, lambda done, total: on_line(total + done, 2 * total)):
        if table.job_ids and _step_of(row.cells[id_column].strip()) in table.job_ids:
            steps += 1
        elif (name := _opencost_row(row.cells)) is not None:
            opencost[name] += 1
        elif (
            row.cells[start_column].strip().casefold() in _NO_INSTANT
            and (total := _sum_in(row.cells)) is not None
        ):
            notes.append(f"line {row.line} ({total!r}) is a sum and no job: left out")
        elif not kinds.count_if_shared(row.cells[gpus_column]):
            yield reader.read(row)
    if table.repeated_headers:
        notes.append(f"{plural(table.repeated_headers, 'repeated header line')}: left out")
    if steps:
        notes.append(
            f"{plural(steps, 'step')} of Slurm jobs that have a row of their own: left out"
        )
    notes += [
        f"{plural(count, 'row')} {name!r} of OpenCost ({_OPENCOST[name]}): left out"
        for name, count in opencost.items()
    ]
    if reader.without_owner:
        notes.append(
            f"{plural(reader.without_owner, 'row')} with {_NO_OWNER!r} for an owner: billed without"
            " that tag"
        )
    notes += kinds.notes()
    notes += reader.held.notes()
    if reader.instants.repeated:
        notes.append(reader.instants.repeated_note)


@dataclass(slots=True)
class _RecordReader:
    """Turns rows into records by meaning."""

    table: JobTable
    instants: InstantReader
    allowed: Instants
    problems: list[Problem]
    texts: list[tuple[str, str]] = field(init=False)
    """Meaning and column of the cells that stay as they are, and so on."""
    times: list[tuple[str, str]] = field(init=False)
    lengths: list[tuple[str, str]] = field(init=False)
    tags: list[tuple[str, str]] = field(init=False)
    has_tres: bool = field(init=False)
    """Whether GPUs are read from AllocTRES."""
    held: HeldTime = field(init=False)
    without_owner: int = 0
    """Rows whose tags are `__unallocated__`."""
    tag_sets: dict[tuple[str, ...], Mapping[str, str]] = field(default_factory=dict)
    """By their values: many rows have the same."""

    def __post_init__(self) -> None:
        named = self.table.meanings.items()
        special = {*INSTANTS, *DURATIONS, SUSPENDED, "gpus"}
        self.has_tres = is_alloc_tres(self.table.meanings["gpus"])
        self.texts = [
            (name, column)
            for name, column in named
            if name not in special and not name.startswith(TAG)
        ]
        self.times = [(name, column) for name, column in named if name in INSTANTS]
        about_time = [
            (name, column) for name, column in named if name in {"end", *DURATIONS, SUSPENDED}
        ]
        self.lengths = (
            []
            if "end" in self.table.meanings
            else [pair for pair in about_time if pair[0] in DURATIONS]
        )
        self.held = HeldTime(
            dict(about_time),
            self.has_tres,
            lambda cell: _number(cell, self.table.has_decimal_comma),
        )
        self.tags = [
            (name.removeprefix(TAG), column) for name, column in named if name.startswith(TAG)
        ]
        if self.table.namespace is not None and "namespace" not in dict(self.tags):
            self.tags.append(("namespace", self.table.namespace))
        if self.table.account is not None:
            self.tags.append(("team", self.table.account))

    def read(self, row: Record) -> tuple[Record, Mapping[str, str]]:
        """The record and the tags of a row."""
        raw, comma = row.cells, self.table.has_decimal_comma
        cells: dict[str, object] = {meaning: raw[column].strip() for meaning, column in self.texts}
        for meaning, column in self.times:
            cells[meaning] = self._instant(raw[column].strip(), row, meaning)
        for meaning, column in self.lengths:
            cells["end"] = self._end(raw[column].strip(), cells["start"], row, meaning)
        if len(self.held.columns) > 1 and not self.lengths:
            cells["end"] = self._held_end(row, cells["start"], cells["end"])
        gpus = raw[self.table.meanings["gpus"]].strip()
        # An allocation without anything is one without GPUs; an empty number is not known.
        if "=" in gpus or (not gpus and self.has_tres):
            count, model = gpus_of(gpus)
            cells |= {"gpus": str(count), "gpu_model": cells.get("gpu_model") or model}
        else:
            cells["gpus"] = _number(gpus, comma)
        values = tuple([raw[column].strip() for _, column in self.tags])
        tags = self.tag_sets.get(values)
        if tags is None:
            names = (name for name, _ in self.tags)
            pairs = zip(names, values, strict=True)
            tags = self.tag_sets[values] = {
                name: value for name, value in pairs if value not in {"", _NO_OWNER}
            }
        self.without_owner += _NO_OWNER in values
        if self.table.namespace is not None and (namespace := raw[self.table.namespace].strip()):
            cells["workload_id"] = f"{namespace}/{cells['workload_id']}"
        return Record(row.file, row.line, cells), tags

    def _instant(self, cell: str, row: Record, meaning: str) -> int | str:
        try:
            at_ms = self.instants.read(cell)
        except ValueError as error:
            if cell.casefold() in _NO_INSTANT:
                return ""
            return self._bad("bad_instant", row, meaning, str(error))
        # Compared here, because this is asked of every cell.
        if self.allowed.first_ms <= at_ms < self.allowed.end_ms:
            return at_ms
        return self._bad("bad_instant", row, meaning, self.allowed.problem(cell, at_ms) or "")

    def _end(self, cell: str, start: object, row: Record, meaning: str) -> int | str:
        """The end by the duration of a row; empty where it has none."""
        if cell.casefold() in _NO_INSTANT or not isinstance(start, int):
            return ""
        unit_ms = UNIT_MS.get(meaning)
        try:
            if unit_ms is None:
                return start + span_ms(cell)
            return start + units_ms(_number(cell, self.table.has_decimal_comma), unit_ms)
        except ValueError as error:
            return self._bad("bad_span", row, "end", str(error))

    def _held_end(self, row: Record, start: object, end: object) -> object:
        """The end without suspended time, where the row has an end."""
        if not isinstance(start, int) or not isinstance(end, int):
            return end
        try:
            return self.held.end_ms(row, start, end)
        except ValueError as error:
            return self._bad("disagreement", row, "end", str(error))

    def _bad(self, code: str, row: Record, meaning: str, message: str) -> str:
        self.problems.append(Problem(code, f"{row.source}:{meaning}", message))
        return _BAD


def _step_of(job: str) -> str | None:
    step = _STEP.fullmatch(job)
    return None if step is None else step[1]


def _opencost_row(cells: Mapping[str, str]) -> str | None:
    """What OpenCost says in place of a name where a row is no workload: alone, or behind that of
    its cluster.
    """
    return next(
        (name for cell in cells.values() if (name := cell.strip().rpartition("/")[2]) in _OPENCOST),
        None,
    )


def _sum_in(cells: Mapping[str, str]) -> str | None:
    """The cell that says that a row adds up the others."""
    return next(
        (cell.strip() for cell in cells.values() if cell.strip(" :").casefold() in _SUMS), None
    )


def _decide_decimal_comma(table: JobTable, survey: _Survey, problems: list[Problem]) -> bool:
    """Decide what a comma and a point mean over all numbers; a file that leaves it open is refused."""
    numbers = survey.numbers
    comma = (_COMMA_THOUSANDS, _DECIMAL_COMMA, ",")
    point = (_POINT_THOUSANDS, _DECIMAL_POINT, ".")
    if any(_separates_decimals(cell, comma, point) for cell in numbers):
        return True
    if any(_separates_decimals(cell, point, comma) for cell in numbers):
        return False
    # Where commas separate cells, a point is that of decimals.
    for thousands, _, mark in (comma,) if table.delimiter == "," else (point, comma):
        unclear = next((cell for cell in numbers if thousands.fullmatch(cell)), None)
        if unclear is not None:
            whole, decimal = (
                unclear.replace(mark, ""),
                unclear.replace(mark, ".").rstrip("0").rstrip("."),
            )
            message = f"the number {unclear!r} can be read as {whole} or as {decimal}"
            name = "point" if mark == "." else "comma"
            cure = f"write it without the {name}, or with 6 decimals"
            problems.append(Problem("two_readings", str(table.path), f"{message}; {cure}"))
            break
    return False


_Mark = tuple[re.Pattern[str], re.Pattern[str], str]
"""Numbers with thousands separated by a mark, numbers with decimals separated by it, and the mark.
"""


def _separates_decimals(cell: str, mark: _Mark, other: _Mark) -> bool:
    """Whether a number can be read only with this mark before its decimals."""
    thousands, decimals, _ = mark
    has_groups = cell.count(other[2]) > 1 and other[0].fullmatch(cell) is not None
    return has_groups or (
        decimals.fullmatch(cell) is not None and thousands.fullmatch(cell) is None
    )


def _number(cell: str, has_decimal_comma: bool) -> str:
    """A number with a decimal point, by the marks of its file."""
    if not has_decimal_comma:
        if "," in cell and (_COMMA_THOUSANDS.fullmatch(cell) or _DECIMAL_POINT.fullmatch(cell)):
            return cell.replace(",", "")
        return cell
    if _DECIMAL_COMMA.fullmatch(cell) or _POINT_THOUSANDS.fullmatch(cell):
        return cell.replace(".", "").replace(",", ".")
    # With a point that is neither, it is left for the import to refuse.
    return cell.replace(".", "?")


@dataclass(slots=True)
class AllocationKinds:
    """Counts the jobs whose AllocTRES needs a word: parts of GPUs without a whole one, and GPUs of
    several models.
    """

    shared: int = 0
    mixed: int = 0

    def count_if_shared(self, alloc_tres: str) -> bool:
        """Whether a job has shards or MPS only, which are no GPUs of its own; counts it."""
        if "gres/" not in alloc_tres:
            return False
        self.mixed += (
            len(
                {kind for kind, count in _TRES_GPU.findall(alloc_tres) if kind and count.strip("0")}
            )
            > 1
        )
        is_shared = gpus_of(alloc_tres)[0] == 0 and _TRES_SHARES.search(alloc_tres) is not None
        self.shared += is_shared
        return is_shared

    def notes(self) -> Iterator[str]:
        """The sentences about them."""
        if self.shared:
            yield (
                f"{plural(self.shared, 'job')} with shards or MPS only, which are not billed:"
                " left out"
            )
        if self.mixed:
            yield (
                f"{plural(self.mixed, 'job')} with GPUs of several models: billed as an unknown"
                " model"
            )


def gpus_of(alloc_tres: str) -> tuple[int, str]:
    """GPUs of an AllocTRES, counted once, and their type where all are of one."""
    # `gres/gpu=2` sums up the typed entries beside it
    counts = {
        # A longer number is out of range, and int() refuses very long ones.
        kind: int(count[:_MAX_DIGITS])
        for kind, count in _TRES_GPU.findall(alloc_tres)
    }
    untyped = counts.pop("", None)
    model = next(iter(counts)) if len(counts) == 1 else ""
    return sum(counts.values()) if untyped is None else untyped, model


def _day_first(
    table: JobTable, survey: _Survey, options: TableOptions, problems: list[Problem]
) -> bool | None:
    """Whether days stand before months, decided over all instants of the file; None where nothing
    depends on it.
    """
    order: DateOrder | None = date_order(survey.dates)
    if order is None or options.day_first is not None:
        return options.day_first
    if order.is_dotted:
        return True
    if order.day_first and order.month_first:
        message = (
            f"{order.day_first!r} has its day first and {order.month_first!r} its month; --dates"
            " day-first or"
        )
        problems.append(
            Problem(
                "two_readings", str(table.path), f"{message} --dates month-first refuses the others"
            )
        )
    elif not order.day_first and not order.month_first and order.either:
        message = (
            f"dates such as {order.either!r} can be read with the day or the month first; --dates"
            " day-first or"
        )
        problems.append(
            Problem("two_readings", str(table.path), f"{message} --dates month-first settles it")
        )
    return bool(order.day_first)

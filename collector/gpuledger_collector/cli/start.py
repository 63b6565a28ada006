"""gpuledger start: from a file of jobs, or the address of a Prometheus, to the bill in one command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gpuledger_collector import wiring
from gpuledger_collector.accounting.cash import AMORTIZED
from gpuledger_collector.accounting.ledger_rows import ImportOutcome, OnOverlap, UsageRow
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period, format_instant
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.cli import imports, options
from gpuledger_collector.cli import start_prometheus as prometheus
from gpuledger_collector.cli.apply import days_note
from gpuledger_collector.cli.chargeback import table_pieces
from gpuledger_collector.cli.common import dry_run_note, new_app, refuse, time_range
from gpuledger_collector.cli.output import table_text, terminal_width
from gpuledger_collector.cli.session import Session, clock_ms, load_settings, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.model import Record
from gpuledger_collector.config.prices import DeclaredPrice
from gpuledger_collector.export.report import key_column
from gpuledger_collector.ingest.files.headers import is_alloc_tres, no_team_note
from gpuledger_collector.ingest.files.held_time import DURATIONS, SUSPENDED
from gpuledger_collector.ingest.files.job_table import JobTable
from gpuledger_collector.ingest.files.sacct import is_sacct, read_sacct
from gpuledger_collector.ingest.files.usage import (
    UsageFile,
    UsageOptions,
    is_long,
    long_usage,
    read_table_rows,
    understand,
)
from gpuledger_collector.ingest.remote_write.prometheus_api import PrometheusApi
from gpuledger_collector.services.chargeback import read_priced_bill
from gpuledger_collector.services.first_start import read_state
from gpuledger_collector.services.imports import Writing, find_overfull_nodes, import_prices
from gpuledger_collector.settings import Settings
from gpuledger_common.plurals import plural

app = new_app()
RATED_SINCE, LATER = "2000-01-01", "2000-01-02"
"""From when `--rate` holds: before any usage that can be imported; and from when another rate goes
before it.
"""
_COMMA_RATE = re.compile(r"([0-9]+),([0-9]+)")
_HOST_PORT = re.compile(r"[A-Za-z0-9.-]+:[0-9]{2,5}")
DELIMITER_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@app.command(
    epilog=(
        "Example: gpuledger start jobs.csv --rate 2.50, or gpuledger start http://prometheus:9090"
        " --rate 2.50"
    )
)
def start(
    source: Annotated[
        str,
        Argument(
            metavar="FILE|URL",
            help=(
                "A table of jobs (CSV in any delimiter, .xlsx), what sacct prints (.gz as well), or"
                " the address of a "
                "Prometheus."
            ),
        ),
    ],
    rate: Annotated[
        str | None,
        Option(
            "--rate", help="Money per GPU-hour of all usage without a rate of its own, in any file."
        ),
    ] = None,
    currency: Annotated[str, Option("--currency", help="ISO 4217 code of --rate.")] = "USD",
    pool: Annotated[
        str | None,
        Option("--pool", help="Pool of rows that name none; else the known one, or imported."),
    ] = None,
    zone: imports.Zone = None,
    dates: imports.Dates = None,
    column: imports.ColumnNames = None,
    sheet: imports.Sheet = None,
    empty_start: imports.EmptyStart = None,
    skip_bad: imports.SkipBad = False,
    replaces: imports.Replace = False,
    also: imports.Also = False,
    days: Annotated[
        int | None,
        Option(
            "--days", min=1, max=3_660, help="Of a Prometheus: this many days up to now; else 30."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, Option("--token-file", metavar="FILE", help="Bearer token of the Prometheus.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        Option("--ca-file", metavar="FILE", help="Authority of the Prometheus's certificate."),
    ] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Import without being asked.")] = False,
    serve: Annotated[
        bool, Option("--serve", help="Keep the pages up afterwards, until Ctrl-C.")
    ] = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Make a bill of a file of jobs: show what its columns mean, import it, and say who pays for
    what.

    What can be read in two ways is refused with the option that settles it. The same file twice
    changes nothing. A Prometheus that scrapes dcgm-exporter, or an exporter of AMD, Intel and
    others (gpuledger profiles list), is read by POST to /api/v1/series and /api/v1/query as it
    scraped: what it missed is unobserved, never idle.
    """
    asked = _Asked(
        None if rate is None else _price(rate, currency),
        yes,
        dry_run,
        imports.overlap_option(replaces, also),
    )
    if prometheus.is_address(source):
        about_files = {
            "--pool": pool,
            "--zone": zone,
            "--dates": dates,
            "--column": column,
            "--sheet": sheet,
            "--empty-start": empty_start,
            "--skip-bad": skip_bad or None,
            "--replace": replaces or None,
        }
        prometheus.refuse_options(
            [name for name, value in about_files.items() if value is not None]
        )
        api = prometheus.open_api(source, token_file, ca_file)
        prometheus.require_answer(api, clock_ms())
        with open_session(dsn, config) as session:
            month = _start_prometheus(session, load_settings(config, dsn), api, days, asked)
    else:
        if not {days, token_file, ca_file} <= {None}:
            refuse(
                "--days, --token-file and --ca-file are about a Prometheus; its address begins with"
                " http://"
            )
        parsed = _read_file(
            source,
            pool,
            imports.start_of_empty(empty_start),
            (zone, dates, column, sheet),
            skip_bad,
        )
        with open_session(dsn, config) as session:
            month = _start_file(session, Path(source), parsed, zone, asked)
    if serve and not dry_run:
        # Four times as much to import as all that a bill needs.
        from gpuledger_collector.cli.serve import run_collector

        named = [("--dsn", dsn), ("--config", config)]
        given = [word for name, value in named if value is not None for word in (name, str(value))]
        run_collector(
            load_settings(config, dsn),
            partial(_say_address, month),
            config,
            # Without the folder of the user's files among the modules.
            ["-P", "-m", "gpuledger_collector", "serve", "--opens-at", month, *given],
            opens_at=month,
        )


def _say_address(month: str, sentence: str) -> None:
    """Say where the pages are, which open at the month that was billed, and its address among those
    of all months.
    """
    print(sentence)
    print(f"the bill of {month}: {sentence.rpartition(' ')[2]}/?period={month}", flush=True)


@dataclass(frozen=True)
class _Asked:
    """What was asked besides the source: the rate, whether to ask first, and whether to change
    anything.

    `on_overlap`: what happens to usage that another source brought for the same time.
    """

    price: Price | None
    yes: bool
    dry_run: bool
    on_overlap: OnOverlap


def _start_file(
    session: Session, file: Path, parsed: UsageFile, zone: str | None, asked: _Asked
) -> str:
    """Import a file and print its bill; return the last month of it."""
    rows, now_ms = parsed.rows, clock_ms()
    for sentence in (
        *long_usage(file, rows, now_ms),
        *_open_usage(rows, now_ms),
        *find_overfull_nodes(session.database, rows),
    ):
        say(sentence, error=True)
    is_rate_new = _set_rate(session, asked, f"Import {plural(len(rows), 'workload')}")
    print(
        imports.write_usage(session, parsed, asked.dry_run, asked.on_overlap, is_rate_new)
        + dry_run_note(asked.dry_run)
    )
    if asked.dry_run:
        return ""
    last_ms = max(now_ms if row.end_ms is None else row.end_ms for row in rows)
    tagged = {name for row in rows for name in row.tags}
    level = next(
        (level for level in LEVELS if level in tagged),
        "user" if any(row.user for row in rows) else "pool",
    )
    month = _print_bill(session, min(row.start_ms for row in rows), last_ms, level)
    if zone is not None and zone != "UTC" and session.calendar.is_utc:
        cure = f"echo 'billing_zone = \"{zone}\"' | gpuledger apply /dev/stdin"
        say(
            f"gpuledger: days and months of the bill are those of UTC; those of {zone}: {cure}",
            error=True,
        )
    return month


def _start_prometheus(
    session: Session, settings: Settings, api: PrometheusApi, days: int | None, asked: _Asked
) -> str:
    """Read a Prometheus and print the bill; return the last month of it."""
    now_ms = session.now_ms
    period = time_range(None, None, None, days or prometheus.DEFAULT_DAYS).resolve(
        session.calendar, now_ms
    )
    period = Period(period.start_ms, now_ms - prometheus.SETTLING_MS)
    known = prometheus.look(api, period, wiring.series_reader(settings))
    if asked.on_overlap is not OnOverlap.also:
        prometheus.refuse_imported(session, known, period)
    _set_rate(
        session, asked, f"Import their usage of {plural(days or prometheus.DEFAULT_DAYS, 'day')}"
    )
    if asked.dry_run:
        print(f"nothing was read{dry_run_note(asked.dry_run)}")
        return ""
    prometheus.declare_teams(session, known, wiring.read_clock())
    past = prometheus.read_past(session, settings, api, period, wiring.read_clock())
    say(prometheus.summary(past))
    state = read_state(session.database)
    has_team = any(labels.get("team") for labels, _ in known.series)
    last_ms = past.last_ms or now_ms
    # Of a new ledger the first bill ends with the last sample: what follows is not lost, only not
    # read yet.
    billed = session.as_of(last_ms) if state.is_new else session
    return _print_bill(
        billed, past.first_ms or now_ms, last_ms, "team" if state.has_rules or has_team else "node"
    )


def _set_rate(session: Session, asked: _Asked, question: str) -> bool:
    """Ask, unless --yes is given, and put the rate into the price book; whether it changes a bill."""
    price = asked.price
    change = None if price is None else _set_price(session, price, dry_run=True)
    new_rate = "" if change is None else _change_text(change)
    if not asked.dry_run and not asked.yes:
        _ask(f"{question}{_at_rate_text(price, new_rate)}?")
    if price is not None and new_rate:
        if not asked.dry_run:
            change = _set_price(session, price, dry_run=False)
        say(f"rate: {_rate_text(price)}{new_rate}")
    return change is not None and change.days_to_recompute > 0


def _rate_text(price: Price) -> str:
    return f"{price.rate:f} {price.currency} a GPU-hour"


def _at_rate_text(price: Price | None, new_rate: str) -> str:
    if price is None:
        return ""
    return f" at {_rate_text(price)}{new_rate if 'instead' in new_rate else ''}"


def _open_usage(rows: Sequence[UsageRow], now_ms: int) -> Iterator[str]:
    """The sentence about workloads without an end that are not named by a warning of their own."""
    running = [row for row in rows if row.end_ms is None and not is_long(row, now_ms)]
    if running:
        first = min(running, key=lambda row: row.start_ms)
        which = "it" if len(running) == 1 else f"the first, {first.workload_id!r},"
        yield (
            f"{plural(len(running), 'workload')} without an end, {imports.BILLED_UP_TO_NOW};"
            f" {which} runs since {format_instant(first.start_ms)}"
        )


def _read_file(
    source: str,
    pool: str | None,
    empty_start: int | str | None,
    reading: tuple[Any, ...],
    skip_bad: bool,
) -> UsageFile:
    """The workloads of the file that was named; `reading`: zone, order of dates, columns and sheet
    as given.
    """
    if _HOST_PORT.fullmatch(source) and not Path(source).exists():
        refuse(f"{source} is no file; the address of a Prometheus is http://{source}")
    name, table = imports.optional_pool(pool), imports.table_options(*reading)
    return _read(
        Path(source),
        UsageOptions(name, empty_start, imports.instants(any_instant=False), table),
        skip_bad,
    )


def _read(file: Path, usage_options: UsageOptions, skip_bad: bool) -> UsageFile:
    """The workloads of a file, after saying how it was understood."""
    if is_sacct(file):
        with imports.reading(file) as on_line:
            zone = imports.zone_option(usage_options.table.zone)
            parsed = read_sacct(file, usage_options.pool, usage_options.instants, zone, on_line)
        say(f"{file}: what sacct prints, {plural(len(parsed.rows), 'job')} with GPUs")
    else:
        parsed = UsageFile()
        with imports.reading(file) as on_line:
            table = understand(file, usage_options, parsed.problems, on_line)
            if table is not None:
                read_table_rows(table, usage_options, parsed, on_line)
        if table is not None:
            _show(table)
            if not set(LEVELS) & (parsed.columns.tags or set()):
                say(f"gpuledger: {no_team_note(table.columns)}", error=True)
    imports.refuse_bad(file, parsed, skip_bad)
    if not parsed.rows:
        refuse(f"{file}: no row holds a GPU, nothing was imported")
    return parsed


def _show(table: JobTable) -> None:
    """Print each column of the file, what it means, and the first rows."""
    is_sheet = table.origin.startswith("sheet ")
    facts = [
        *([table.origin] if table.origin else []),
        *([] if is_sheet else [f"columns separated by {DELIMITER_NAMES[table.delimiter]}"]),
        plural(table.count, "row"),
        *(
            [f"the {'day' if table.day_first else 'month'} stands first in dates"]
            if table.day_first is not None
            else []
        ),
        *(
            [f"times without a zone are those of {table.zone.key}"]
            if table.zone is not None
            else []
        ),
    ]
    say(f"{table.path}: {', '.join(facts)}")
    samples = table.samples
    columns = [
        key_column("column"),
        key_column("means"),
        *(key_column(str(record.line), heading=f"line {record.line}") for record in samples),
    ]
    rows = [
        {
            "column": name,
            "means": _means(table, name, meaning),
            **{str(record.line): record.cells[name].strip() for record in samples},
        }
        for name, meaning in table.columns.items()
        if name or meaning
    ]
    sys.stdout.write(table_text(columns, rows, terminal_width()))


def _means(table: JobTable, name: str, meaning: str | None) -> str:
    """What a column means, where it means two things as well."""
    if name == table.namespace:
        return f"{meaning} and part of workload_id"
    if name == table.account:
        return f"{meaning} and tag:team"
    if meaning == "gpus" and is_alloc_tres(name) and "gpu_model" not in table.meanings:
        return "gpus and gpu_model"
    if meaning in DURATIONS and "end" in table.meanings:
        return "compared with end - start"
    if meaning == SUSPENDED:
        return "suspended: not held"
    return meaning or "(ignored)"


def _ask(question: str) -> None:
    """Go on only when the person at the terminal says so; a script says --yes."""
    if not sys.stdin.isatty():
        refuse("--yes imports without being asked; --dry-run shows what would change")
    try:
        agreed = typer.confirm(question, default=True, err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        refuse("nothing was imported")


def _price(rate: str, currency: str) -> Price:
    if comma := _COMMA_RATE.fullmatch(rate):
        if len(comma[2]) == len("000"):
            refuse(
                f"--rate: {rate!r} can be read as {comma[1]}{comma[2]} or as {comma[1]}.{comma[2]};"
                " write it so"
            )
        rate = f"{comma[1]}.{comma[2]}"
    cells = {
        "pool": "",
        "gpu_model": "",
        "purchase": "on_demand",
        "rate_per_gpu_hour": rate,
        "currency": currency,
        "effective_from": RATED_SINCE,
    }
    problems: list[Problem] = []
    declared: list[Price] = DeclaredPrice.collect([Record("start", 1, cells)], problems)
    names = {"rate_per_gpu_hour": "--rate", "currency": "--currency"}
    if problems:
        refuse(
            "; ".join(
                f"{names[problem.source.rsplit(':', 1)[1]]}: {problem.message}"
                for problem in problems
            )
        )
    return declared[0]


def _set_price(session: Session, price: Price, dry_run: bool) -> ImportOutcome:
    """Put the rate into the price book, and return what that changes.

    More specific rates of the book go before it.
    """

    def check(problems: Sequence[Problem]) -> None:
        if not problems:
            return
        rate = f"--rate {price.rate.normalize():f} --currency {price.currency}"
        refuse(
            "--currency: an earlier start set a rate in another currency, which a rate keeps;"
            f" `gpuledger prices set {rate} --from {LATER}` goes before it, then start without"
            " --rate"
        )

    into = Writing(session.database, wiring.read_clock(), dry_run)
    outcome, _ = import_prices(into, [price], check)
    return outcome


def _change_text(outcome: ImportOutcome) -> str:
    """What a new rate changes; empty when it is in force already."""
    if outcome.updated:
        return f" instead of the rate in force; {days_note(outcome)}"
    if outcome.days_to_recompute:
        return f"; {days_note(outcome)}"
    return " for usage without a rate of its own" if outcome.added else ""


def _print_bill(session: Session, first_ms: int, last_ms: int, level: str) -> str:
    """Print the bill of the days from one instant to another by a dimension; return its last month."""
    calendar, now_ms = session.calendar, session.now_ms
    period = Period(
        calendar.day_of(first_ms).start_ms, calendar.day_of(max(first_ms, last_ms - 1)).end_ms
    )
    session.rate(period)
    with session.database.transaction(read_only=True) as connection:
        bill = read_priced_bill(connection, period, (level,), now_ms, AMORTIZED, "")
    days = f"--from {calendar.date_of(period.start_ms)} --to {calendar.date_of(period.end_ms)}"
    print()
    say(f"gpuledger chargeback {days} --by {level}")
    sys.stdout.writelines(table_pieces(bill.report, terminal_width()))
    for note in bill.notes:
        say(f"gpuledger: {note}", error=True)
    if bill.report.has_unpriced and not bill.report.has_no_price:
        say(
            "gpuledger: some usage has no rate; --rate 2.50, or gpuledger prices set, gives it one",
            error=True,
        )
    return calendar.month_of(period.end_ms - 1)

"""gpuledger import: usage, prices, inventory and samples from files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import Config, DryRun, Dsn, database, refuse, untouched
from gpuledger_collector.cli.progress import busy
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    import psycopg

    from gpuledger_collector.accounting.problems import Problem
    from gpuledger_collector.config.csv_rows import Parsed
    from gpuledger_collector.config.fields import Instants
    from gpuledger_collector.storage.database import Database
    from gpuledger_collector.storage.ledger.rows import ImportOutcome, UsageRow

app = typer.Typer(name="import", help="Bring usage, prices, inventory or samples from files.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="CSV; .gz is read as well.")]
ANY_INSTANT = "--allow-any-instant"
AnyInstant = Annotated[
    bool, typer.Option(ANY_INSTANT, help="Accept instants before 2000 and after tomorrow, from 1970 to 2100.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Import the good rows and leave out the bad ones.")]


def register(root: typer.Typer) -> None:
    """Add `gpuledger import`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger import usage pods.csv.gz --pool research --empty-start skip")
def usage(
    file: File,
    pool: Annotated[str, typer.Option("--pool", help="Pool of rows that name none.")] = "imported",
    empty_start: Annotated[
        str | None,
        typer.Option("--empty-start", metavar="skip|INSTANT", help="What a row without a start means; else it is bad."),
    ] = None,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring in who held how many GPUs: workload_id,start,end,gpus and, if known, gpu_model,pool,node,user,tag:NAME...

    Instants are RFC 3339 with zone, or unix seconds; an empty end means still running. The same file twice changes
    nothing; a known workload_id with other values is updated. Of a workload that stands twice, the row that has ended
    is good. Workloads of more than 30 days are told, for an end that was forgotten is billed until one is imported.
    """
    from gpuledger_collector.ingest.files.usage import UsageOptions, read_usage

    with busy(f"reading {file.name}"):
        parsed = read_usage(file, UsageOptions(_pool(pool), _empty_start(empty_start), _instants(any_instant)))
    _refuse_bad(file, parsed, skip_bad)
    with database(dsn, config) as opened:
        _import_usage(opened, file, parsed, dry_run)


@app.command(epilog="Example: gpuledger import sacct jobs.txt")
def sacct(
    file: File,
    pool: Annotated[str | None, typer.Option("--pool", help="Pool of all jobs; else their partition is.")] = None,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring in Slurm's accounting, printed by sacct -X -a -P -n -D with TZ=UTC SLURM_TIME_FORMAT=%s and the columns
    jobidraw,cluster,account,user,partition,qos,state,submit,eligible,start,end,elapsedraw,suspended,alloctres,nodelist,
    comment,wckey,jobname in this order.

    The account is the team unless the job's comment names one (team=x;project=y). Suspended time is not held. The same
    file twice changes nothing; a job that has ended since is updated.
    """
    from gpuledger_collector.ingest.files.sacct import read_sacct

    with busy(f"reading {file.name}"):
        parsed = read_sacct(file, None if pool is None else _pool(pool), _instants(any_instant))
    _refuse_bad(file, parsed, skip_bad)
    with database(dsn, config) as opened:
        _import_usage(opened, file, parsed, dry_run)


def _import_usage(opened: Database, file: Path, parsed: Parsed[UsageRow], dry_run: bool) -> None:
    from gpuledger_collector.ingest.files.usage import LONG_DAYS, long_usage
    from gpuledger_collector.storage.ledger import imports
    from gpuledger_collector.wiring import now

    running = 0

    def work(connection: psycopg.Connection[tuple[Any, ...]]) -> ImportOutcome:
        nonlocal running
        at = now()
        running, warnings = long_usage(file, parsed.rows, round(at.timestamp() * 1000))
        for sentence in warnings:
            print(sentence, file=sys.stderr)
        return imports.add_usage(connection, parsed.rows, at)

    def more() -> str:
        return f"; {plural(running, 'workload')} without an end for more than {LONG_DAYS} days" if running else ""

    _carry_out(opened, "workloads", work, dry_run, more)


def _instants(any_instant: bool) -> Instants:
    """The instants that evidence may have; `--allow-any-instant` widens them."""
    from gpuledger_collector.config import fields
    from gpuledger_collector.wiring import now

    if any_instant:
        return fields.ANY_INSTANT
    return fields.evidence_until(round(now().timestamp() * 1000), ANY_INSTANT)


def _pool(name: str) -> str:
    """The pool of `--pool`; a name that reports make a row of is refused."""
    from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message

    if is_reserved(name):
        refuse(f"--pool: {reserved_message(name)}")
    return name


def _empty_start(text: str | None) -> int | str | None:
    return text if text is None or text == "skip" else _instant("--empty-start", text)


def _instant(option: str, text: str) -> int:
    from gpuledger_collector.accounting.period import parse_instant

    try:
        return parse_instant(text)
    except ValueError as error:
        return refuse(f"{option}: {error}")


@app.command(epilog="Example: gpuledger import prices prices.csv")
def prices(
    file: File, skip_bad: SkipBad = False, dry_run: DryRun = False, dsn: Dsn = None, config: Config = None
) -> None:
    """Bring in a price book: pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from[,effective_to,...].

    Versions are never edited: a row that says the same changes nothing, another rate for the same place and instant
    supersedes the one before it, and the days that it touches are rated again.
    """
    from gpuledger_collector.config.prices import read_prices

    with busy(f"reading {file.name}"):
        parsed = read_prices(file)
    _refuse_bad(file, parsed, skip_bad)
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.billing import prices as book
        from gpuledger_collector.wiring import now

        def work(connection: psycopg.Connection[tuple[Any, ...]]) -> ImportOutcome:
            parsed.problems = book.currency_changes(connection, parsed.rows)
            _refuse_bad(file, parsed, skip_bad)
            bad = {problem.source.rpartition(":")[0] for problem in parsed.problems}
            return book.add(connection, [price for price in parsed.rows if price.source not in bad], now())

        _carry_out(opened, "prices", work, dry_run)


@app.command(epilog="Example: gpuledger import inventory inventory.csv")
def inventory(
    file: File,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring in when each accelerator was there: node,uuid,gpu_model,pool,in_at,out_at (empty: still there).

    The file is the authority for the accelerators that it names: their stays become those of the file.
    """
    from gpuledger_collector.ingest.files.inventory import read_inventory

    with busy(f"reading {file.name}"):
        parsed = read_inventory(file, _instants(any_instant))
    _refuse_bad(file, parsed, skip_bad)
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.ledger import inventory as placements
        from gpuledger_collector.wiring import now

        _carry_out(opened, "stays of accelerators", lambda one: placements.replace(one, parsed.rows, now()), dry_run)


@app.command(epilog="Example: gpuledger import samples recording.jsonl --start 2026-10-01T00:00:00Z")
def samples(
    file: File,
    start: Annotated[
        str | None, typer.Option("--start", metavar="INSTANT", help="When a recording of an agent began.")
    ] = None,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring in samples: CSV ts,uuid and metrics by catalogue name, or JSON lines as `gpuledger-agent record` writes.

    Samples show what accelerators did, and feed the minute rollup; who held them comes from agents or usage imports.
    """
    from gpuledger_collector.ingest.files.samples import read_samples

    start_ms = None if start is None else _instant("--start", start)
    with busy(f"reading {file.name}"):
        parsed = read_samples(file, start_ms, _instants(any_instant))
    _refuse_bad(file, parsed, skip_bad)
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.ledger import imports
        from gpuledger_collector.storage.telemetry import partitions
        from gpuledger_collector.wiring import now

        before_ms = partitions.coarse_before(round(now().timestamp() * 1000))
        _carry_out(
            opened, "samples", lambda connection: imports.add_samples(connection, parsed.rows, before_ms), dry_run
        )


@app.command(epilog="Example: gpuledger import bill aws-2026-10.csv.gz")
def bill(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="FOCUS 1.0 to 1.4: CSV, .csv.gz or .parquet.")],
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="NAME", help="Whose bill it is, where the file does not say.")
    ] = None,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring in a provider's bill, to be held against the ledger by `gpuledger reconcile --period M --bill PROVIDER`.

    A newer file of a billing period supersedes the one before, which is kept; the same file again changes nothing.
    """
    from gpuledger_collector.accounting.problems import in_order
    from gpuledger_collector.cli.common import LACKING
    from gpuledger_collector.ingest.files.bill import NoArrow, read_bill

    try:
        with busy(f"reading {file.name}"):
            found = read_bill(file, provider)
    except NoArrow as error:
        refuse(str(error), LACKING)
    for problem in in_order(found.problems):
        say(str(problem), error=True)
    if found.problems:
        refuse(f"{file}: {_bad_rows(found.problems)}, nothing was imported")
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.period import Period
        from gpuledger_collector.storage.billing import bills
        from gpuledger_collector.wiring import now

        made = [(one.provider, Period(one.start_ms, one.end_ms), lines) for one, lines in found.bills.items()]
        _carry_out(opened, "bills", lambda one: bills.add(one, made, file.name, found.sha256, now()), dry_run)


@app.command(epilog="Example: gpuledger import queue queue.csv --pool train")
def queue(
    file: File,
    source: Annotated[str, typer.Option("--source", help="Scheduler of rows that name none.")] = "file",
    pool: Annotated[str, typer.Option("--pool", help="Pool of rows that name none.")] = "",
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring in what waited for GPUs: at,workload_id,gpus and, if known, pool,gpu_model,team,user,account,submitted.

    A column source may name the scheduler. All rows of a source and an instant are its whole queue then; a row without
    workload_id says that nothing waited.
    Demand and forecasts count what waits from the first reading on.
    """
    from gpuledger_collector.ingest.files.queue import read_queue

    with busy(f"reading {file.name}"):
        parsed = read_queue(file, source, _pool(pool), _instants(any_instant))
    _refuse_bad(file, parsed, skip_bad)
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.capacity import queues
        from gpuledger_collector.wiring import now

        _carry_out(opened, "readings", lambda connection: queues.add(connection, parsed.rows, now()), dry_run)


def _refuse_bad(file: Path, parsed: Parsed[Any], skip_bad: bool) -> None:
    """Say every problem and note; end the command when there are problems and nobody asked to skip them."""
    from gpuledger_collector.accounting.problems import in_order

    for problem in in_order(parsed.problems):
        say(str(problem), error=True)
    for note in parsed.notes:
        say(f"{file}: {note}", error=True)
    parsed.notes.clear()
    if parsed.problems and not (skip_bad and parsed.rows):
        hint = "" if skip_bad else "; --skip-bad imports the others"
        refuse(f"{file}: {_bad_rows(parsed.problems)}, nothing was imported{hint}")
    if parsed.problems:
        print(f"{file}: {_bad_rows(parsed.problems)} left out", file=sys.stderr)


def _bad_rows(problems: Sequence[Problem]) -> str:
    rows = len({":".join(problem.source.split(":")[:2]) for problem in problems})
    return f"{rows} bad row{'s' * (rows > 1)}"


def _carry_out(
    opened: Database,
    what: str,
    work: Callable[[psycopg.Connection[tuple[Any, ...]]], ImportOutcome],
    dry_run: bool,
    more: Callable[[], str] = str,
) -> None:

    with opened.transaction(dry_run=dry_run) as connection, busy(f"writing {what}"):
        done = work(connection)
    print(
        f"{what}: {done.added} added, {done.updated} updated, {done.unchanged} unchanged; "
        f"{plural(done.days_to_recompute, 'day')} to rate again" + more() + untouched(dry_run)
    )

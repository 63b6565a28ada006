"""gpuledger import: usage, prices, inventory, samples, queues, shares, bills and tokens of tenants
from files.
"""

from __future__ import annotations

import datetime as dt
import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from typer import Argument, Option

from gpuledger_collector import wiring
from gpuledger_collector.accounting.import_progress import OnRow
from gpuledger_collector.accounting.inference import (
    AUTHENTICATED,
    CLAIM,
    TokenRecord,
    unknown_model,
)
from gpuledger_collector.accounting.ledger_rows import (
    ImportOutcome,
    OnOverlap,
    OtherSource,
)
from gpuledger_collector.accounting.period import DAY_MS, Period, parse_instant
from gpuledger_collector.accounting.problems import Problem, shorten_problems
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.cli import options
from gpuledger_collector.cli.apply import days_note, warn_of_regions
from gpuledger_collector.cli.common import UNAVAILABLE, dry_run_note, new_app, refuse
from gpuledger_collector.cli.progress import bar
from gpuledger_collector.cli.session import Session, clock_ms, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config import fields
from gpuledger_collector.config.csv_rows import Parsed
from gpuledger_collector.config.fields import Instants
from gpuledger_collector.config.prices import read_prices
from gpuledger_collector.ingest.files.bill import NoArrow, read_bill
from gpuledger_collector.ingest.files.headers import TableOptions
from gpuledger_collector.ingest.files.inference import FILE, read_inference
from gpuledger_collector.ingest.files.inventory import read_inventory
from gpuledger_collector.ingest.files.litellm import (
    LITELLM,
    SpendLogs,
    TenantColumn,
    read_spend_logs,
)
from gpuledger_collector.ingest.files.queue import read_queue
from gpuledger_collector.ingest.files.sacct import read_sacct
from gpuledger_collector.ingest.files.samples import read_samples
from gpuledger_collector.ingest.files.shares import read_shares
from gpuledger_collector.ingest.files.usage import UsageFile, UsageOptions, long_usage, read_usage
from gpuledger_collector.ingest.litellm_database import TABLE, BadDsn, NoSpendLogs, read_database
from gpuledger_collector.ingest.token_records import MAX_GATEWAY, is_gateway_name
from gpuledger_collector.services import imports
from gpuledger_collector.services.imports import CountedTwice, Writing
from gpuledger_collector.settings import read_secret
from gpuledger_common.plurals import plural


class DateOrder(enum.StrEnum):
    """How a date such as 03/04/2026 is read."""

    day_first = "day-first"
    month_first = "month-first"


app = new_app(
    name="import",
    help="Bring usage, prices, inventory, samples, queues, shares, bills or tokens from files.",
    no_args_is_help=True,
)
BILLED_UP_TO_NOW = "billed up to now and not to the time of the file, until a file has the end"
ANY_INSTANT = "--allow-any-instant"
File = Annotated[Path, Argument(metavar="FILE", help="CSV or .xlsx; .csv.gz is read as well.")]
AnyInstant = Annotated[
    bool,
    Option(ANY_INSTANT, help="Accept instants before 2000 and after tomorrow, from 1970 to 2100."),
]
SkipBad = Annotated[
    bool, Option("--skip-bad", help="Import the good rows and leave out the bad ones.")
]
EmptyStart = Annotated[
    str | None,
    Option(
        "--empty-start",
        metavar="skip|INSTANT",
        help="What a row without a start means; else it is bad.",
    ),
]
Zone = Annotated[
    str | None,
    Option("--zone", metavar="ZONE", help="Of times that name none: Europe/Berlin, UTC, ..."),
]
Dates = Annotated[
    DateOrder | None,
    Option("--dates", help="How 03/04/2026 is read, where the file leaves it open."),
]
ColumnNames = Annotated[
    list[str] | None,
    Option(
        "--column",
        metavar="MEANING=NAME",
        help="A column that is not known by its name; may be repeated.",
    ),
]
Sheet = Annotated[
    str | None, Option("--sheet", metavar="NAME", help="Which sheet of an .xlsx; else the first.")
]
Replace = Annotated[
    bool,
    Option(
        "--replace",
        help="Where another source brought usage of this time: remove it, this file counts.",
    ),
]
Also = Annotated[
    bool,
    Option("--also", help="Bill it beside usage of this time from another source: other GPUs."),
]
Gateway = Annotated[
    str, Option("--gateway", metavar="NAME", help="Which gateway counted these tokens.")
]
AlsoTokens = Annotated[
    bool,
    Option("--also", help="Count them beside the metrics pages of their gateway: other tokens."),
]
Work = Callable[[Writing], ImportOutcome]


@app.command(
    epilog="Example: gpuledger import usage pods.csv.gz --pool research --empty-start skip"
)
def usage(
    file: File,
    pool: Annotated[
        str | None,
        Option("--pool", help="Pool of rows that name none; else the known one, or imported."),
    ] = None,
    empty_start: EmptyStart = None,
    zone: Zone = None,
    dates: Dates = None,
    column: ColumnNames = None,
    sheet: Sheet = None,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    replaces: Replace = False,
    also: Also = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import who held how many GPUs: workload_id,start,end,gpus and, if known,
    gpu_model,pool,node,user,tag:NAME...

    Columns may have other usual names (job_id, partition, team), any delimiter and any order; a
    duration (elapsed, hours) may stand for the end. Instants are RFC 3339, unix seconds, or local
    times with --zone; an empty end means still running. The same file twice changes nothing; a
    known workload_id with other values is updated. Of two rows of a workload, the one that has
    ended counts. Workloads of more than 90 days are named, because a forgotten end is billed until
    one is imported.
    """
    on_overlap, table = overlap_option(replaces, also), table_options(zone, dates, column, sheet)
    usage_options = UsageOptions(
        optional_pool(pool), start_of_empty(empty_start), instants(any_instant), table
    )
    with reading(file) as on_line:
        parsed = read_usage(file, usage_options, on_line)
    refuse_bad(file, parsed, skip_bad)
    with open_session(dsn, config) as session:
        print(import_usage(session, file, parsed, dry_run, on_overlap))


@app.command(epilog="Example: gpuledger import sacct jobs.txt")
def sacct(
    file: File,
    pool: Annotated[
        str | None, Option("--pool", help="Pool of all jobs; else their partition is.")
    ] = None,
    zone: Zone = None,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    replaces: Replace = False,
    also: Also = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import Slurm's accounting, printed by sacct -X -a -P -n -D with TZ=UTC SLURM_TIME_FORMAT=%s
    and the columns
    jobidraw,cluster,account,user,partition,qos,state,submit,eligible,start,end,elapsedraw,suspended,alloctres,nodelist,
    comment,wckey,jobname in this order.

    The account is the team unless the job's comment names one (team=x;project=y). Suspended time is
    not held. The same file twice changes nothing; a job that has ended since is updated. Local
    times, as sacct prints them by itself, are read with --zone.
    """
    on_overlap = overlap_option(replaces, also)
    with reading(file) as on_line:
        parsed = read_sacct(
            file, optional_pool(pool), instants(any_instant), zone_option(zone), on_line
        )
    refuse_bad(file, parsed, skip_bad)
    with open_session(dsn, config) as session:
        print(import_usage(session, file, parsed, dry_run, on_overlap))


def import_usage(
    session: Session, file: Path, parsed: UsageFile, dry_run: bool, on_overlap: OnOverlap
) -> str:
    """Warn of workloads that look forgotten, import usage in one transaction, and return what
    changed.
    """
    for sentence in (
        *long_usage(file, parsed.rows, clock_ms()),
        *imports.find_overfull_nodes(session.database, parsed.rows),
    ):
        say(sentence, error=True)
    still = sum(row.end_ms is None for row in parsed.rows)
    without_end = (
        f"; {plural(still, 'workload')} without an end, {BILLED_UP_TO_NOW}" if still else ""
    )
    return write_usage(session, parsed, dry_run, on_overlap) + without_end + dry_run_note(dry_run)


def write_usage(
    session: Session,
    parsed: UsageFile,
    dry_run: bool,
    on_overlap: OnOverlap,
    is_rate_new: bool = False,
) -> str:
    """Import usage in one transaction, and return what changed.

    `is_rate_new`: the bill changes by a rate that was set beside it, whatever the file does.
    """

    try:
        return _write(
            session,
            "workloads",
            lambda into: imports.import_usage(into, parsed, on_overlap),
            dry_run,
            is_rate_new,
        )
    except OtherSource as error:
        refuse(str(error))


def overlap_option(replaces: bool, also: bool) -> OnOverlap:
    """What `--replace` and `--also` say; refuses both."""
    if replaces and also:
        refuse("give either --replace or --also")
    return OnOverlap.replace if replaces else OnOverlap.also if also else OnOverlap.refuse


def table_options(
    zone: str | None, dates: DateOrder | None, column: Sequence[str] | None, sheet: str | None
) -> TableOptions:
    """How to read a table of jobs; refuses what is no zone and no MEANING=NAME."""
    zone_option(zone)
    columns = {}
    for text in column or ():
        meaning, _, name = text.partition("=")
        if not meaning or not name:
            refuse(f"--column: {text!r} is not MEANING=NAME, such as gpus=Anzahl")
        columns[meaning] = name
    return TableOptions(
        columns, zone, None if dates is None else dates is DateOrder.day_first, sheet
    )


def zone_option(zone: str | None) -> ZoneInfo | None:
    """The zone of `--zone`; refuses what is none."""
    if zone is None:
        return None
    if zone not in available_timezones():
        refuse(f"--zone: {zone!r} is no zone; write for example Europe/Berlin or UTC")
    return ZoneInfo(zone)


def instants(any_instant: bool) -> Instants:
    """The instants that evidence may have; `--allow-any-instant` widens them."""
    return fields.ANY_INSTANT if any_instant else fields.evidence_until(clock_ms(), ANY_INSTANT)


def pool_name(name: str) -> str:
    """The pool of `--pool`; refuses names of report rows, which are reserved."""
    if is_reserved(name):
        refuse(f"--pool: {reserved_message(name)}")
    return name


def optional_pool(name: str | None) -> str | None:
    """The same where it may be left out."""
    return None if name is None else pool_name(name)


def start_of_empty(text: str | None) -> int | str | None:
    """What `--empty-start` says: an instant in unix ms, or `skip`."""
    return text if text is None or text == "skip" else _instant("--empty-start", text)


def _instant(option: str, text: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        return refuse(f"{option}: {error}")


@app.command(epilog="Example: gpuledger import prices prices.csv")
def prices(
    file: File,
    skip_bad: SkipBad = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import a price book:
    pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from[,effective_to,...].

    Versions are never edited: an equal row changes nothing, another rate for the same place and
    instant supersedes the one before it, and the affected days are rated again.
    """
    with reading(file) as on_line:
        parsed = read_prices(file, on_line)
    refuse_bad(file, parsed, skip_bad)

    def check(problems: Sequence[Problem]) -> None:
        # Known only in the transaction: the currency of a rate must be that of the rates in force
        # for the same place.
        parsed.problems = [*problems]
        refuse_bad(file, parsed, skip_bad)

    def work(into: Writing) -> ImportOutcome:
        outcome, regions = imports.import_prices(into, parsed.rows, check)
        warn_of_regions(regions)
        return outcome

    _write_file("prices", work, dsn, config, dry_run)


@app.command(epilog="Example: gpuledger import inventory inventory.csv")
def inventory(
    file: File,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import when each accelerator was present: node,uuid,gpu_model,pool,in_at,out_at (empty: still
    present).

    The file is the authority for the accelerators that it names: their placements become those of
    the file.
    """
    with reading(file) as on_line:
        parsed = read_inventory(file, instants(any_instant), on_line)
    refuse_bad(file, parsed, skip_bad)
    _write_file(
        "placements of accelerators",
        lambda into: imports.import_inventory(into, parsed.rows),
        dsn,
        config,
        dry_run,
    )


@app.command(
    epilog="Example: gpuledger import samples recording.jsonl --start 2026-10-01T00:00:00Z"
)
def samples(
    file: File,
    start: Annotated[
        str | None, Option("--start", metavar="INSTANT", help="When a recording of an agent began.")
    ] = None,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import samples: CSV ts,uuid and metrics by catalog name, or JSON lines as `gpuledger-agent
    record` writes.

    Samples show what accelerators did, and feed the minute rollup; who held them comes from agents
    or usage imports.
    """
    start_ms = None if start is None else _instant("--start", start)
    with reading(file) as on_line:
        parsed = read_samples(file, start_ms, instants(any_instant), on_line)
    refuse_bad(file, parsed, skip_bad)
    _write_file(
        "samples",
        lambda into: imports.import_samples(into, parsed.rows),
        dsn,
        config,
        dry_run,
    )


@app.command(epilog="Example: gpuledger import bill aws-2026-10.csv.gz")
def bill(
    file: Annotated[
        Path, Argument(metavar="FILE", help="FOCUS 1.0 to 1.4: CSV, .csv.gz or .parquet.")
    ],
    provider: Annotated[
        str | None,
        Option("--provider", metavar="NAME", help="Whose bill it is, where the file does not say."),
    ] = None,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import a provider's bill, to be compared with the ledger by `gpuledger reconcile --period M
    --bill PROVIDER`.

    A newer file of a billing period supersedes the one before, which is kept; the same file again
    changes nothing.
    """
    try:
        with reading(file) as on_line:
            parsed = read_bill(file, provider, on_line)
    except NoArrow as error:
        refuse(str(error), UNAVAILABLE)
    for sentence in (
        *shorten_problems(parsed.problems),
        *(f"{file}: {note}" for note in parsed.notes),
    ):
        say(sentence, error=True)
    if parsed.problems:
        refuse(f"{file}: {_bad_rows(parsed.problems)}, nothing was imported")
    _write_file(
        "bills",
        lambda into: imports.import_bills(into, parsed, file.name),
        dsn,
        config,
        dry_run,
    )


@app.command(epilog="Example: gpuledger import queue queue.csv --pool train")
def queue(
    file: File,
    source: Annotated[str, Option("--source", help="Scheduler of rows that name none.")] = "file",
    pool: Annotated[str, Option("--pool", help="Pool of rows that name none.")] = "",
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import what waited for GPUs: at,workload_id,gpus and, if known,
    pool,gpu_model,team,user,account,submitted.

    A column source may name the scheduler. All rows of a source and an instant are its whole queue
    then; a row without workload_id says that nothing waited. Demand and forecasts count what waits
    from the first reading on.
    """
    with reading(file) as on_line:
        parsed = read_queue(file, source, pool_name(pool), instants(any_instant), on_line)
    refuse_bad(file, parsed, skip_bad)
    _write_file(
        "readings",
        lambda into: imports.import_queue(into, parsed.rows),
        dsn,
        config,
        dry_run,
    )


@app.command(epilog="Example: gpuledger import shares assoc.txt --pool h100")
def shares(
    file: Annotated[Path, Argument(metavar="FILE", help="What sacctmgr or kubectl printed.")],
    pool: Annotated[str, Option("--pool", help="Pool of which these are shares.")],
    effective_from: Annotated[
        str | None,
        Option("--effective-from", metavar="DAY", help="First day; else they hold for all days."),
    ] = None,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import teams' shares of a pool: GPU limits or Shares of Slurm's accounts, or quotas of
    Kubernetes' namespaces.

    Slurm: sacctmgr -P show assoc format=account,parentname,user,fairshare,grptres; an account in
    which jobs run is a team, bounded by the limits of its parents. Kubernetes: kubectl get
    resourcequota -A -o json; a namespace is a team. Shares that were read before from the same
    scheduler for this pool are superseded; declared [[share]] tables stay.
    """
    try:
        from_on = None if effective_from is None else dt.date.fromisoformat(effective_from)
    except ValueError:
        refuse(f"--effective-from: {effective_from!r} is not a day; write it as 2026-10-31")
    with reading(file) as on_line:
        scheduler, parsed = read_shares(file, pool_name(pool), from_on, on_line)
    refuse_bad(file, parsed, skip_bad=False)
    read_from = f"{scheduler}:{pool_name(pool)}"
    rows = [replace(share, read_from=read_from) for share in parsed.rows]
    _write_file(
        "shares",
        lambda into: imports.import_shares(into, rows, read_from),
        dsn,
        config,
        dry_run,
    )


@app.command(epilog="Example: gpuledger import inference tokens.csv --gateway kong")
def inference(
    file: File,
    gateway: Gateway = FILE,
    claims: Annotated[
        bool,
        Option(
            "--claims",
            help="Tenants are what callers claim, shown and never charged, unless a row says false.",
        ),
    ] = False,
    also: AlsoTokens = False,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import what tenants were answered by shared model servers:
    start,end,model,tenant,input_tokens,cached_tokens,output_tokens and, if known,
    backend,requests,id,claim.

    Cached tokens are a part of the input. An empty tenant is a key without a team. A claim (true or
    false) is a tenant that the caller wrote: shown, never charged. The same file twice changes
    nothing; of two contents of one id the greater holds.
    """
    trust = CLAIM if claims else AUTHENTICATED
    with reading(file) as on_line:
        parsed = read_inference(file, gateway_name(gateway), trust, instants(any_instant), on_line)
    refuse_bad(file, parsed, skip_bad)
    with open_session(dsn, config) as session:

        def check(unknown: Sequence[TokenRecord]) -> None:
            # Known only in the transaction: which servers are declared.
            parsed.problems = [
                Problem(
                    "unknown_model",
                    f"{parsed.places[record.source_id]}:model",
                    unknown_model(record.asker.model),
                )
                for record in unknown
            ]
            refuse_bad(file, parsed, skip_bad)

        print(_write_tokens(session, parsed.rows, also, dry_run, check=check))


@app.command(epilog="Example: gpuledger import litellm --database /etc/gpuledger/litellm.dsn")
def litellm(
    file: Annotated[
        Path | None,
        Argument(metavar="[FILE]", help="CSV of LiteLLM_SpendLogs; .csv.gz is read as well."),
    ] = None,
    database: Annotated[
        Path | None,
        Option("--database", metavar="FILE", help="File with a read-only DSN of its Postgres."),
    ] = None,
    begin: Annotated[
        str | None,
        Option(
            "--from",
            metavar="INSTANT",
            help="Requests from then on. Default: a day before the newest known one.",
        ),
    ] = None,
    end: Annotated[
        str | None, Option("--to", metavar="INSTANT", help="Requests before then. Default: all.")
    ] = None,
    tenant: Annotated[
        TenantColumn,
        Option("--tenant", help="Which column says who asked; users may be persons."),
    ] = TenantColumn.team_id,
    gateway: Gateway = LITELLM,
    also: AlsoTokens = False,
    skip_bad: SkipBad = False,
    any_instant: AnyInstant = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Import LiteLLM's spend logs, from a CSV of its table or from its Postgres: one row for each
    attempt, counted once by its request_id.

    Rows that LiteLLM answered from its own cache moved no GPU and are left out. Prompts, answers,
    addresses and keys are never read.
    """
    span = (
        None if begin is None else _instant("--from", begin),
        None if end is None else _instant("--to", end),
    )
    if (file is None) == (database is None):
        refuse("give either a FILE or --database FILE")
    if file is not None:
        if span != (None, None):
            refuse("--from and --to are for --database; a file is read as a whole")
        with reading(file) as on_line:
            logs = read_spend_logs(
                file, gateway_name(gateway), tenant, instants(any_instant), on_line
            )
        refuse_bad(file, logs, skip_bad)
    with open_session(dsn, config) as session:
        if database is not None:
            logs = _read_litellm(session, database, *span, gateway_name(gateway), tenant)
            refuse_bad(Path(TABLE), logs, skip_bad)
        print(_write_tokens(session, logs.rows, also, dry_run, logs.from_cache))


def _read_litellm(
    session: Session,
    database: Path,
    start_ms: int | None,
    end_ms: int | None,
    gateway: str,
    tenant: TenantColumn,
) -> SpendLogs:
    """The spend logs of a database; the period is that of `--from` and `--to`."""
    if start_ms is None:
        start_ms = imports.next_token_usage_ms(session.database, gateway)
    if end_ms is None:
        # A gateway's clock may be ahead of ours.
        end_ms = clock_ms() + DAY_MS
    if end_ms <= start_ms:
        refuse("--to: does not lie after the begin")
    try:
        return read_database(
            read_secret(database, "--database"), Period(start_ms, end_ms), gateway, tenant
        )
    except BadDsn as error:
        refuse(f"--database: {database} {error}")
    except NoSpendLogs as error:
        refuse(str(error), UNAVAILABLE)


def gateway_name(name: str) -> str:
    """The gateway of `--gateway`; refuses what is no name."""
    if not is_gateway_name(name):
        refuse(f"--gateway: must be a name of 1 to {MAX_GATEWAY} printable characters")
    return name


def _write_tokens(
    session: Session,
    records: Sequence[TokenRecord],
    also: bool,
    dry_run: bool,
    from_cache: int = 0,
    check: Callable[[Sequence[TokenRecord]], None] | None = None,
) -> str:
    """Write records of tokens in one transaction, undone in a dry run, and return what changed."""
    into = Writing(session.database, wiring.read_clock(), dry_run)
    try:
        with _all_or_nothing():
            outcome = imports.import_token_usage(into, records, also, check)
    except CountedTwice as error:
        refuse(str(error))
    parts = [f"{outcome.stored} added, {outcome.unchanged} unchanged"]
    if outcome.conflicting:
        parts.append(f"{outcome.conflicting} came with another content: the greater holds")
    if outcome.too_old:
        parts.append(f"{outcome.too_old} older than what is known of requests: left out")
    if from_cache:
        parts.append(f"{plural(from_cache, 'request')} answered from the gateway's cache: left out")
    return f"requests: {'; '.join(parts)}{dry_run_note(dry_run)}"


def refuse_bad(file: Path, parsed: Parsed[Any], skip_bad: bool) -> None:
    """Print the first problems, a count of the others, and every note; end the command when there
    are problems that `--skip-bad` does not skip.
    """
    for sentence in shorten_problems(parsed.problems):
        say(sentence, error=True)
    for note in parsed.notes:
        say(f"{file}: {note}", error=True)
    parsed.notes.clear()
    if parsed.problems and not (skip_bad and parsed.rows):
        # Without any good row the problem may be one of the file as a whole.
        bad = f"{_bad_rows(parsed.problems)}, " if parsed.rows else ""
        hint = "; --skip-bad imports the others" if parsed.rows and not skip_bad else ""
        refuse(f"{file}: {bad}nothing was imported{hint}")
    if parsed.problems:
        print(f"{file}: {_bad_rows(parsed.problems)} left out", file=sys.stderr)


def _bad_rows(problems: Sequence[Problem]) -> str:
    return plural(len({":".join(problem.source.split(":")[:2]) for problem in problems}), "bad row")


def _write_file(noun: str, work: Work, dsn: str | None, config: Path | None, dry_run: bool) -> None:
    """Do the work on the database of the options, and say what changed."""
    with open_session(dsn, config) as session:
        print(_write(session, noun, work, dry_run) + dry_run_note(dry_run))


@contextmanager
def reading(file: Path) -> Iterator[OnRow]:
    """A bar while a file is read, before anything of it is imported."""
    with _all_or_nothing(), bar(f"reading {file.name}") as on_row:
        yield on_row


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """Say that nothing was imported, where Ctrl-C comes before the end of the transaction."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was imported") from None


def _write(
    session: Session, noun: str, work: Work, dry_run: bool, is_rate_new: bool = False
) -> str:
    """Do the work in one transaction, undone in a dry run, and return what changed."""
    with _all_or_nothing(), bar(f"writing {noun}") as on_row:
        outcome = work(Writing(session.database, wiring.read_clock(), dry_run, on_row))
    changes = f"{outcome.added} added, {outcome.updated} updated, {outcome.unchanged} unchanged"
    kept = (
        f"; {plural(outcome.kept, 'row')} kept what their file has no column for"
        if outcome.kept
        else ""
    )
    replaced = (
        f"; {plural(outcome.replaced, 'workload')} of another source removed"
        if outcome.replaced
        else ""
    )
    nearby = (
        f"; {outcome.nearby} of it stay, a few hours outside of this file's time"
        if outcome.nearby
        else ""
    )
    unknown = (
        f"; beside {plural(outcome.unknown, 'workload')} of its time that an earlier version"
        " imported from an unknown source: if they are the same GPUs, they are billed twice"
        if outcome.unknown
        else ""
    )
    days = "" if is_rate_new and not outcome.days_to_recompute else f"; {days_note(outcome)}"
    return f"{noun}: {changes}{days}{kept}{replaced}{nearby}{unknown}"

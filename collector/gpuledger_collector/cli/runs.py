"""gpuledger runs: what each run held, wasted and produced, what a unit of its output cost, and its
bottlenecks.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.period import parse_instant
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import (
    dry_run_note,
    new_app,
    owner_levels,
    refuse,
    require_folder,
    time_range,
)
from gpuledger_collector.cli.output import (
    emit_report,
    print_json,
    write_text,
)
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.cli.workloads import require_one_workload
from gpuledger_collector.export.jobs import JOBS
from gpuledger_collector.export.run_sizes import RUN_SIZES, RunSize
from gpuledger_collector.export.runs import (
    GPU_TIME_ONLY,
    RUNS,
    as_csv,
    as_html,
    as_json,
    as_text,
    run_json,
    scaling_json,
)
from gpuledger_collector.insight.run_report import ScaledRuns
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.run_report import compare_sizes, report_run
from gpuledger_collector.services.runs import (
    Progress,
    list_jobs,
    list_runs,
    report_progress,
    require_workload,
)

app = new_app(name="runs", help="What runs cost, wasted and produced.", invoke_without_command=True)


class RunFormat(enum.StrEnum):
    """Forms of a run's report."""

    table = "table"
    csv = "csv"
    json = "json"
    html = "html"


class Order(enum.StrEnum):
    """Sort orders of a list of runs."""

    cost = "cost"
    waste = "waste"
    unit = "unit"
    newest = "newest"
    price = "price"


class Grouping(enum.StrEnum):
    """What a line of the list is."""

    workload = "workload"
    job = "job"


class Bucket(enum.StrEnum):
    """Parts of a run's time: hours of UTC, days and months of the billing zone."""

    hour = "hour"
    day = "day"
    month = "month"


RunName = Annotated[
    str, Argument(metavar="RUN", help="Its key, its id at the scheduler, or its name.")
]


@app.callback(epilog="Example: gpuledger runs --owner team=vision --sort waste")
def runs(
    context: typer.Context,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    owner: Annotated[
        list[str] | None,
        Option("--owner", metavar="LEVEL=VALUE", help="Only this owner's, such as team=vision."),
    ] = None,
    sort: Annotated[Order, Option("--sort", help="Largest first by this.")] = Order.cost,
    scaling: Annotated[
        bool,
        Option("--scaling", help="Runs of one name on different numbers of GPUs, side by side."),
    ] = False,
    by: Annotated[
        Grouping,
        Option("--by", help="A line for each workload, or for each job with its pods inside."),
    ] = Grouping.workload,
    top: options.Top = 50,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the runs of a period with their cost, their waste and the cost of a unit of their
    output.

    Cost is that of GPU-time, without node costs, as the column `notice` of CSV and JSON says;
    `chargeback --by workload` and `receipt` add a run's share of them. A unit's cost is of the time
    that its counters cover; `coverage` says how much of the charged time that is. With `--scaling`:
    time and cost of a unit by number of GPUs, and the efficiency against the fewest. With `--by
    job`, the pods of a job and of its restarts are one line; what belongs to no job has its own.
    """
    if context.invoked_subcommand is not None:
        return
    levels = owner_levels(owner or [])
    asked = time_range(period, start, end, days)
    if by is Grouping.job:
        if scaling or sort is Order.unit:
            refuse("--by job has no units: leave --scaling and --sort unit away")
        with open_session(dsn, config) as session:
            span = session.rate_range(asked)
            with session.database.transaction() as connection:
                jobs = list_jobs(connection, span, levels, order=sort.value, top=top or None)
        if form is options.Format.table and not jobs:
            print("no job was charged in this period")
        else:
            emit_report(form, JOBS, jobs, [GPU_TIME_ONLY])
        return
    if scaling:
        with open_session(dsn, config) as session:
            span = session.rate_range(asked)
            with session.database.transaction() as connection:
                _print_scaling(compare_sizes(connection, span, levels)[: top or None], form)
        return
    with open_session(dsn, config) as session:
        span = session.rate_range(asked)
        with session.database.transaction(read_only=True) as connection:
            charged = list_runs(connection, span, levels, order=sort.value, top=top or None)
    if form is options.Format.json:
        print_json([run_json(item) for item in charged.items])
    elif form is options.Format.table and not charged.items:
        print("no run was charged in this period")
    else:
        emit_report(form, RUNS, charged.items, [GPU_TIME_ONLY])


def _print_scaling(compared: Sequence[ScaledRuns], form: options.Format) -> None:
    if form is options.Format.json:
        print_json(
            [
                {**asdict(runs), "points": [scaling_json(point) for point in runs.points]}
                for runs in compared
            ]
        )
    elif form is options.Format.table and not compared:
        print("no name ran on two different numbers of GPUs of a model in this period")
    else:
        sizes = (RunSize(runs, point) for runs in compared for point in runs.points)
        emit_report(form, RUN_SIZES, sizes)


@app.command(epilog="Example: gpuledger runs show 4711 --format html -o 4711.html")
def show(
    name: RunName,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    by: Annotated[
        Bucket | None, Option("--by", help="Unit costs of each part of its time, too.")
    ] = None,
    form: Annotated[RunFormat, Option("--format", help="Form of the output.")] = RunFormat.table,
    output: options.Output = None,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Report one run: what it held, used, wasted and produced, its unit costs, its bottlenecks, and
    runs like it.

    The page of `--format html` is self-contained; `csv` has the unit costs. Without a period, all
    of its time counts.
    """
    require_folder(output)
    asked = time_range(period, start, end, days)
    is_limited = (period, start, days) != (None, None, None)
    bucket = Bucket.day if by is None and form is RunFormat.html else by
    with open_session(dsn, config) as session:
        span = session.rate_range(asked) if is_limited else None
        if span is None:
            session.rate(ALWAYS)
        with session.database.transaction() as connection:
            with require_one_workload(name, "run"):
                workload = require_workload(connection, name)
            report = report_run(
                connection,
                workload.id,
                None if bucket is None else bucket.value,
                session.now_ms,
                span,
            )
    if report is None:
        refuse(f"{workload.key} was charged nothing{' in this period' if is_limited else ''}")
    if form is RunFormat.csv:
        write_text(as_csv(report.by or report.units), output)
    else:
        page = {RunFormat.html: as_html, RunFormat.json: as_json, RunFormat.table: as_text}[form]
        write_text(page(report), output)


@app.command(epilog="Example: gpuledger runs report 4711 --steps 12000 --tokens 50331648000")
def report(
    name: RunName,
    steps: Annotated[int | None, Option("--steps", min=0, help="Steps since it began.")] = None,
    tokens: Annotated[int | None, Option("--tokens", min=0, help="Tokens since it began.")] = None,
    samples: Annotated[
        int | None, Option("--samples", min=0, help="Samples since it began.")
    ] = None,
    epochs: Annotated[int | None, Option("--epochs", min=0, help="Epochs since it began.")] = None,
    at: Annotated[
        str | None, Option("--at", metavar="INSTANT", help="RFC 3339 with zone; default: now.")
    ] = None,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Report the progress of a run, in totals that only grow: what a step or a token cost is
    derived from it.

    The same as POST /v1/runs/RUN/progress, for whoever can reach the database.
    """
    totals = {"steps": steps, "tokens": tokens, "samples": samples, "epochs": epochs}
    progress = {counter: value for counter, value in totals.items() if value is not None}
    try:
        at_ms = None if at is None else parse_instant(at)
    except ValueError as error:
        refuse(f"--at: {error}")
    with open_session(dsn, config) as session, require_one_workload(name, "run"):
        try:
            key = report_progress(
                session.database,
                name,
                Progress(progress, at_ms, None, session.now_ms),
                dry_run=dry_run,
            )
        except ValueError as error:
            refuse(str(error))
    say(
        f"{key}: "
        + ", ".join(f"{value} {counter}" for counter, value in progress.items())
        + dry_run_note(dry_run)
    )

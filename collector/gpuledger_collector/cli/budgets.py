"""gpuledger budgets: how far they are spent, and who was notified."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.budget_status import News
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import dry_run_note, end_with, new_app, refuse, time_range
from gpuledger_collector.cli.output import Column, emit, number, print_json
from gpuledger_collector.cli.session import load_settings, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.budgets import rows, table_row
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.notifications import budget_mail
from gpuledger_collector.services.budget_status import evaluate_shares, statuses
from gpuledger_collector.services.budget_watch import Begin, watch_budgets
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.billing import budgets
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.wiring import ack_links, page_links

app = new_app(
    name="budgets",
    help="How far budgets are spent, and when they run out.",
    invoke_without_command=True,
)
COLUMNS = (
    *(Column(name) for name in ("budget", "owner", "period_from", "period_to", "currency")),
    *(number(name) for name in ("amount", "spent", "spent_percent", "elapsed_percent")),
    *(number(name) for name in ("forecast", "forecast_low", "forecast_high")),
    *(Column(name) for name in ("run_out", "run_out_earliest", "run_out_latest")),
    *(number(name) for name in ("pace_1h_percent", "pace_6h_percent", "unpriced_gpu_hours")),
    *(Column(name) for name in ("rated_up_to", "alerts", "measure", "unit")),
)
TABLE = (
    Column("budget"),
    Column("until", is_optional=True),
    Column("measure", "of what", is_optional=True),
    number("spent"),
    number("of"),
    number("percent", "%"),
    number("elapsed", "time %", is_optional=True),
    number("forecast", "forecast (8 in 10)", is_optional=True),
    Column("run_out", "runs out"),
    number("pace", "pace 1h, 6h", is_optional=True),
    Column("alerts", is_optional=True),
)


@app.callback(epilog="Example: gpuledger budgets --format json")
def show(
    context: typer.Context,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show every budget: spent, forecast with its band, pace, run-out date and alerts.

    Budgets are declared in a file and applied with `gpuledger apply FILE.toml`. With --exit-code it
    ends with 1 when one is spent.
    """
    if context.invoked_subcommand is None:
        _show(form, exit_code=exit_code, dsn=dsn, config=config)


@app.command("list", epilog="Example: gpuledger budgets list --format csv")
def list_budgets(
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show every budget, as `gpuledger budgets` does."""
    _show(form, exit_code=exit_code, dsn=dsn, config=config)


def _show(form: options.Format, *, exit_code: bool, dsn: str | None, config: Path | None) -> None:
    with open_session(dsn, config) as session:
        with session.database.transaction() as connection:
            periods = {budget.period_at(session.now_ms) for budget in budgets.current(connection)}
        for period in periods:
            refresh(session.database, period, session.now_ms)
        with session.database.transaction() as connection:
            for budget in budgets.current(connection):
                evaluate_shares(
                    connection, budget, budget.period_at(session.now_ms), session.now_ms
                )
            standing = statuses(connection, session.now_ms)
    if not standing:
        print(
            "gpuledger: no budget is in force; declare them in a file and apply it", file=sys.stderr
        )
    if form is options.Format.json:
        print_json({"budgets": rows(standing)})
    elif form is options.Format.csv:
        emit(form, COLUMNS, rows(standing))
    else:
        emit(form, TABLE, [table_row(status) for status in standing])
    end_with(any((status.spent_percent or 0) >= 100 for status in standing), exit_code)


@app.command(epilog='Example: gpuledger budgets ack "vision" --by ada')
def ack(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the budget.")],
    person: Annotated[str, Option("--by", metavar="NAME", help="Who knows of it.")] = "",
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Acknowledge the alerts of a budget: they are not escalated."""
    with (
        open_session(dsn, config) as session,
        session.database.transaction(dry_run=dry_run) as connection,
    ):
        names = [budget.name for budget in budgets.current(connection)]
        if name not in names:
            refuse(f"{name!r} is not a budget in force; there are {', '.join(names) or 'none'}")
        count = budgets.acknowledge(connection, name, person or getpass.getuser(), session.now_ms)
    print(f"{count} alerts acknowledged" + dry_run_note(dry_run))


@app.command(epilog="Example: gpuledger budgets replay --period 2026-10 --dry-run")
def replay(
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the messages and send none.")] = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Watch budgets as of the end of each past day: which alerts these thresholds would have sent,
    and when.

    Thresholds that have fired in a period stay as they are. Without --dry-run the messages are
    sent, dated that day.
    """
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        span = asked.resolve(session.calendar, session.now_ms)
        refresh(session.database, span, session.now_ms)
        past = [day for day in session.calendar.days(span) if day.start_ms < session.now_ms]
        instants = [min(day.end_ms, session.now_ms) for day in past]
        if dry_run:
            # All instants in one transaction: an alert that has fired must be seen by the instants
            # after it.
            with session.database.transaction(dry_run=True) as connection:
                lines = _replay(lambda: nullcontext(connection), instants, budget_mail.write)
        else:
            settings = load_settings(config, dsn)
            write = partial(
                budget_mail.write, links=ack_links(settings), pages=page_links(settings)
            )
            lines = _replay(partial(session.database.transaction, Lock.BUDGETS), instants, write)
    for line in lines:
        say(line)
    print(f"{len(lines)} alerts" + (" (dry run: nobody is notified)" if dry_run else ""))


def _replay(begin: Begin, instants: list[int], mail: Callable[[News], Content]) -> list[str]:
    """Watch as of each instant; a line for each new message."""
    lines: list[str] = []

    def write(news: News) -> Content:
        content = mail(news)
        lines.append(
            f"{news.status.budget.calendar.date_of(news.status.known_ms - 1)}  {content.subject}"
        )
        return content

    for at_ms in instants:
        watch_budgets(begin, at_ms, write)
    return lines

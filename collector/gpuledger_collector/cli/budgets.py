"""gpuledger budgets: how far they are spent, and who was notified."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.budget_status import News
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import dry_run_note, end_with, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import load_settings, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.budgets import BUDGETS, STANDINGS
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.notifications import budget_mail
from gpuledger_collector.services.acknowledgements import acknowledge_budget
from gpuledger_collector.services.budget_watch import refresh_budgets, replay_budgets
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.wiring import ack_links, page_links
from gpuledger_common.plurals import plural

app = new_app(
    name="budgets",
    help="How far budgets are spent, and when they run out.",
    invoke_without_command=True,
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
    """Fold, rate and evaluate budgets first, then print where they stand.

    With `exit_code` one of which 100 % is spent counts as found.
    """
    with open_session(dsn, config) as session:
        standing = refresh_budgets(session.database, session.now_ms)
    if not standing:
        print(
            "gpuledger: no budget is in force; declare them in a file and apply it", file=sys.stderr
        )
    if form is options.Format.json:
        print_json({"budgets": [BUDGETS.exact(status) for status in standing]})
    else:
        emit_report(form, STANDINGS if form is options.Format.table else BUDGETS, standing)
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
    with open_session(dsn, config) as session:
        try:
            count = acknowledge_budget(
                session.database,
                name,
                person or getpass.getuser(),
                session.now_ms,
                dry_run=dry_run,
            )
        except ValueError as error:
            refuse(str(error))
    print(f"{plural(count, 'alert')} acknowledged" + dry_run_note(dry_run))


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
        mail: Callable[[News], Content] = budget_mail.write
        if not dry_run:
            settings = load_settings(config, dsn)
            mail = partial(budget_mail.write, links=ack_links(settings), pages=page_links(settings))
        lines: list[str] = []

        def write(news: News) -> Content:
            content = mail(news)
            day = news.status.budget.calendar.date_of(news.status.known_ms - 1)
            lines.append(f"{day}  {content.subject}")
            return content

        replay_budgets(session.database, instants, write, dry_run=dry_run)
    for line in lines:
        say(line)
    print(plural(len(lines), "alert") + (" (dry run: nobody is notified)" if dry_run else ""))

"""gpuledger budgets: how far they are spent, and what was told of it."""

from __future__ import annotations

import enum
import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, DryRun, Dsn, database, refuse, settings, untouched
from gpuledger_collector.cli.terminal import say

if TYPE_CHECKING:
    from gpuledger_collector.jobs.watch_budgets import Begin
    from gpuledger_collector.notifications.links import AckLinks
    from gpuledger_collector.storage.billing.budget_status import News, Status
    from gpuledger_collector.storage.notifications.messages import Content


class Shape(enum.StrEnum):
    """How it is printed."""

    table = "table"
    csv = "csv"
    json = "json"


Form = Annotated[Shape, typer.Option("--format", help="Form of the output.")]


def register(root: typer.Typer) -> None:
    """Add `gpuledger budgets`."""
    budgets = typer.Typer(help="How far budgets are spent, and when they will be.")
    budgets.callback(invoke_without_command=True, epilog="Example: gpuledger budgets --format json")(show)
    budgets.command(epilog='Example: gpuledger budgets ack "vision" --by ada')(ack)
    budgets.command(epilog="Example: gpuledger budgets replay --from 2026-10-01 --to 2026-11-01 --dry-run")(replay)
    root.add_typer(budgets, name="budgets")


def show(context: typer.Context, shape: Form = Shape.table, dsn: Dsn = None, config: Config = None) -> None:
    """Show every budget: spent, forecast with its band, pace, run-out date and alerts. Ends with 1 when one is spent.

    Budgets are declared in a file and applied with `gpuledger apply FILE.toml`.
    """
    if context.invoked_subcommand is not None:
        return
    with database(dsn, config) as opened:
        from gpuledger_collector.services.budget_status import statuses
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.billing import budgets
        from gpuledger_collector.wiring import now

        at_ms = int(now().timestamp() * 1000)
        with opened.transaction() as connection:
            periods = {budget.period_at(at_ms) for budget in budgets.current(connection)}
        for period in periods:
            refresh(opened, period, at_ms)
        with opened.transaction(read_only=True) as connection:
            found = statuses(connection, at_ms)
    if not found:
        print("gpuledger: no budget is in force; declare them in a file and apply it", file=sys.stderr)
    sys.stdout.write(_text(found, shape))
    if any(status.spend.cost_micro >= status.budget.amount_micro for status in found):
        raise typer.Exit(FINDINGS)


def _text(found: list[Status], shape: Shape) -> str:
    from gpuledger_collector.export import budgets as forms

    if shape is Shape.csv:
        return forms.as_csv(found)
    if shape is Shape.json:
        return forms.as_json(found)
    if sys.stdout.isatty():
        import shutil

        return forms.as_table(found, shutil.get_terminal_size().columns)
    return forms.as_table(found, None)


def ack(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the budget.")],
    who: Annotated[str, typer.Option("--by", metavar="NAME", help="Who knows of it.")] = "",
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Acknowledge the alerts of a budget: nobody above is told that they wait."""
    import getpass

    with database(dsn, config) as opened:
        from gpuledger_collector.storage.billing import budgets
        from gpuledger_collector.wiring import now

        with opened.transaction(dry_run=dry_run) as connection:
            names = [budget.name for budget in budgets.current(connection)]
            if name not in names:
                refuse(f"{name!r} is no budget in force; there are {', '.join(names) or 'none'}")
            count = budgets.acknowledge(connection, name, who or getpass.getuser(), int(now().timestamp() * 1000))
    print(f"{count} alerts acknowledged" + untouched(dry_run))


def replay(
    start: Annotated[str, typer.Option("--from", metavar="DATE", help="First day (of the billing zone), included.")],
    end: Annotated[str, typer.Option("--to", metavar="DATE", help="Last day (of the billing zone), not included.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be told, and tell nobody.")] = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Watch budgets as of the end of each past day: what these thresholds would have told, and when.

    Thresholds that have fired in a period stay as they are. Without --dry-run the messages are sent, dated that day.
    """
    from gpuledger_collector.accounting.period import date_range

    try:
        period = date_range(start, end)
    except ValueError as error:
        refuse(str(error))
    with database(dsn, config) as opened:
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.ledger import zones
        from gpuledger_collector.storage.locks import Lock
        from gpuledger_collector.wiring import ack_links, now

        now_ms = int(now().timestamp() * 1000)
        with opened.transaction() as connection:
            calendar = zones.calendar(connection)
        period = calendar.named(period)
        refresh(opened, period, now_ms)
        instants = [min(day.end_ms, now_ms) for day in calendar.days(period) if day.start_ms < now_ms]
        if dry_run:
            with opened.transaction(dry_run=True) as connection:
                told = _replayed(lambda: nullcontext(connection), instants, None)
        else:
            begin = partial(opened.transaction, Lock.BUDGETS)
            told = _replayed(begin, instants, ack_links(settings(config, dsn)))
    for line in told:
        say(line)
    print(f"{len(told)} alerts" + (" (dry run: nobody is told)" if dry_run else ""))


def _replayed(begin: Begin, instants: list[int], links: AckLinks | None) -> list[str]:
    """Watches as of each instant; a line for each message that is new."""
    from gpuledger_collector.jobs.watch_budgets import watch_budgets
    from gpuledger_collector.notifications import budget_mail

    told: list[str] = []

    def write(news: News) -> Content:
        content = budget_mail.write(news, links)
        told.append(f"{news.status.budget.calendar.date_of(news.status.known_ms - 1)}  {content.subject}")
        return content

    for at_ms in instants:
        watch_budgets(begin, at_ms, write)
    return told

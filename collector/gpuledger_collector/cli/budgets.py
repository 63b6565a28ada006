"""gpuledger budgets and outbox: how far budgets are spent, and what was told of it."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database, refuse, settings

if TYPE_CHECKING:
    import psycopg

    from gpuledger_collector.accounting.budget_ports import BudgetStore, News, Status
    from gpuledger_collector.accounting.messages import Content
    from gpuledger_collector.notify.links import AckLinks
    from gpuledger_collector.wiring import Database


class Shape(enum.StrEnum):
    """How it is printed."""

    table = "table"
    csv = "csv"
    json = "json"


Form = Annotated[Shape, typer.Option("--format", help="Form of the output.")]


def register(root: typer.Typer) -> None:
    """Add `gpuledger budgets` and `gpuledger outbox`."""
    budgets = typer.Typer(help="How far budgets are spent, and when they will be.")
    budgets.callback(invoke_without_command=True, epilog="Example: gpuledger budgets --format json")(show)
    budgets.command(epilog='Example: gpuledger budgets ack "vision" --by ada')(ack)
    budgets.command(epilog="Example: gpuledger budgets replay --from 2026-10-01 --to 2026-11-01 --dry-run")(replay)
    root.add_typer(budgets, name="budgets")
    outbox = typer.Typer(help="Messages that wait, were sent, or could not be.", no_args_is_help=True)
    outbox.command("list", epilog="Example: gpuledger outbox list --state dead")(list_messages)
    outbox.command("send", epilog="Example: gpuledger outbox send")(send)
    root.add_typer(outbox, name="outbox")


def show(context: typer.Context, shape: Form = Shape.table, dsn: Dsn = None, config: Config = None) -> None:
    """Show every budget: spent, forecast with its band, pace, run-out date and alerts. Ends with 1 when one is spent.

    Budgets are declared in a file and applied with `gpuledger apply FILE.toml`.
    """
    if context.invoked_subcommand is not None:
        return
    with database(dsn, config) as opened:
        from gpuledger_collector.jobs import bring_up_to_date
        from gpuledger_collector.jobs.watch_budgets import statuses
        from gpuledger_collector.storage.budgets import BudgetBook
        from gpuledger_collector.storage.ledgers import Ledger
        from gpuledger_collector.wiring import now

        book = BudgetBook(_connect(opened))
        at_ms = int(now().timestamp() * 1000)
        for period in {budget.period_at(at_ms) for budget in book.budgets()}:
            bring_up_to_date(Ledger(opened.dsn), period, at_ms)
        found = statuses(book, at_ms)
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
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Acknowledge the alerts of a budget: nobody above is told that they wait."""
    import getpass

    with database(dsn, config) as opened:
        from gpuledger_collector.storage import budgets
        from gpuledger_collector.wiring import now

        with _connect(opened)() as connection:
            names = [budget.name for budget in budgets.current(connection)]
            if name not in names:
                refuse(f"{name!r} is no budget in force; there are {', '.join(names) or 'none'}")
            count = budgets.acknowledge(connection, name, who or getpass.getuser(), int(now().timestamp() * 1000))
    print(f"{count} alerts acknowledged")


def replay(
    start: Annotated[str, typer.Option("--from", metavar="DATE", help="First day (UTC), included.")],
    end: Annotated[str, typer.Option("--to", metavar="DATE", help="Last day (UTC), not included.")],
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
        from gpuledger_collector.jobs import bring_up_to_date
        from gpuledger_collector.storage import zones
        from gpuledger_collector.storage.budgets import BudgetBook, Rehearsal
        from gpuledger_collector.storage.ledgers import Ledger
        from gpuledger_collector.wiring import ack_links, now

        now_ms = int(now().timestamp() * 1000)
        with Ledger(opened.dsn).connect() as connection:
            calendar = zones.calendar(connection)
        period = calendar.named(period)
        bring_up_to_date(Ledger(opened.dsn), period, now_ms)
        instants = [min(day.end_ms, now_ms) for day in calendar.days(period) if day.start_ms < now_ms]
        if dry_run:
            with Ledger(opened.dsn).connect() as connection:
                told = _replayed(Rehearsal(connection), instants, None)
                connection.rollback()
        else:
            told = _replayed(BudgetBook(_connect(opened)), instants, ack_links(settings(config, dsn)))
    for line in told:
        print(line)
    print(f"{len(told)} alerts" + (" (dry run: nobody is told)" if dry_run else ""))


def _replayed(store: BudgetStore, instants: list[int], links: AckLinks | None) -> list[str]:
    """Watches as of each instant; a line for each message that is new."""
    from gpuledger_collector.accounting.period import format_date
    from gpuledger_collector.jobs.watch_budgets import watch_budgets
    from gpuledger_collector.notify import budget_mail

    told: list[str] = []

    def write(news: News) -> Content:
        content = budget_mail.write(news, links)
        told.append(f"{format_date(news.status.known_ms - 1)}  {content.subject}")
        return content

    for at_ms in instants:
        watch_budgets(store, at_ms, write)
    return told


def list_messages(
    state: Annotated[
        str, typer.Option("--state", help="Only waiting, held, joined, handing_over, sent, unconfirmed or dead ones.")
    ] = "",
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List messages, newest first. Ends with 1 when one of them was given up or is unconfirmed."""
    from gpuledger_collector.accounting.period import format_instant

    states = ("waiting", "held", "joined", "handing_over", "sent", "unconfirmed", "dead")
    if state and state not in states:
        refuse(f"--state: {state!r} is none of {', '.join(states)}")
    with database(dsn, config) as opened:
        from gpuledger_collector.storage import outbox

        with _connect(opened)() as connection:
            found = outbox.listing(connection, [state] if state else None)
    for one in found:
        error = f"  ({one.error})" if one.error else ""
        print(f"{format_instant(one.made_ms)}  {one.state:12}  {one.recipient}  {one.subject}{error}")
    if any(one.state in {"unconfirmed", "dead"} for one in found):
        raise typer.Exit(FINDINGS)


def send(dsn: Dsn = None, config: Config = None) -> None:
    """Send what waits now, as the collector does on its schedule. Ends with 1 when something could not be sent."""
    chosen = settings(config, dsn)
    if not (chosen.mail_server or chosen.mail_dir or chosen.hooks_file):
        refuse("no way to send is configured: set mail_server, mail_dir or hooks_file")
    with database(dsn, config) as opened:
        from gpuledger_collector import wiring

        done = wiring.sender(chosen, _connect(opened)).send_due()
    print(done)
    if done.again or done.unconfirmed or done.dead:
        raise typer.Exit(FINDINGS)


def _connect(opened: Database) -> Callable[[], psycopg.Connection[tuple[Any, ...]]]:
    from gpuledger_collector.storage.ledgers import Ledger

    return lambda: Ledger(opened.dsn).connect(autocommit=True)

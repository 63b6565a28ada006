"""gpuledger outbox: messages that wait, were sent, or could not be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database, refuse, settings
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.terminal import say

if TYPE_CHECKING:
    import psycopg

    from gpuledger_collector.notifications.sender import Sender
    from gpuledger_collector.storage.database import Database

app = typer.Typer(name="outbox", help="Messages that wait, were sent, or could not be.", no_args_is_help=True)
STATES = ("waiting", "held", "joined", "handing_over", "sent", "unconfirmed", "dead")
COLUMNS = ("made_at", "kind", "state", "recipient", "subject", "attempts", "not_before", "sent_at", "error")


def register(root: typer.Typer) -> None:
    """Add `gpuledger outbox`."""
    root.add_typer(app)


@app.command("list", epilog="Example: gpuledger outbox list --state dead --format csv")
def list_messages(
    state: Annotated[
        str, typer.Option("--state", help="Only waiting, held, joined, handing_over, sent, unconfirmed or dead ones.")
    ] = "",
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List messages, newest first. Ends with 1 when one of them was given up or is unconfirmed."""
    if state and state not in STATES:
        refuse(f"--state: {state!r} is none of {', '.join(STATES)}")
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.period import format_instant
        from gpuledger_collector.storage.notifications import outbox

        with _connect(opened)() as connection:
            found = outbox.listing(connection, [state] if state else None)
    if shape is Shape.table:
        for one in found:
            error = f"  ({one.error})" if one.error else ""
            say(f"{format_instant(one.made_ms)}  {one.state:12}  {one.recipient}  {one.subject}{error}")
    else:
        from gpuledger_collector.export.cells import rows_as

        rows = [
            (
                format_instant(one.made_ms),
                one.kind,
                one.state,
                one.recipient,
                one.subject,
                one.attempts,
                format_instant(one.not_before_ms),
                None if one.sent_ms is None else format_instant(one.sent_ms),
                one.error,
            )
            for one in found
        ]
        sys.stdout.write(rows_as(shape.value, COLUMNS, rows))
    if any(one.state in {"unconfirmed", "dead"} for one in found):
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger outbox send --dry-run")
def send(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent now, and send nothing.")] = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Send what waits now, as the collector does on its schedule. Ends with 1 when something could not be sent."""
    chosen = settings(config, dsn)
    if not (chosen.mail_server or chosen.mail_dir or chosen.hooks_file):
        refuse("no way to send is configured: set mail_server, mail_dir or hooks_file")
    with database(dsn, config) as opened:
        from gpuledger_collector import wiring

        sender = wiring.sender(chosen, opened)
        if dry_run:
            _rehearse(opened, sender)
            return
        done = sender.send_due()
    print(done)
    if done.retried or done.unconfirmed or done.dead:
        raise typer.Exit(FINDINGS)


def _rehearse(opened: Database, sender: Sender) -> None:
    """Plans and makes digests as a round would, says what is due then, and takes it all back."""
    from gpuledger_collector.notifications import digest_mail
    from gpuledger_collector.storage.notifications import outbox

    with _connect(opened)() as connection, connection.transaction(force_rollback=True):
        found = outbox.rehearse(connection, sender.clock(), digest_mail.write, list(sender.transports))
    for recipient, subject in found:
        say(f"would send  {recipient}  {subject}")
    print(f"{len(found)} to send (dry run: nothing was sent)")


def _connect(opened: Database) -> Callable[[], psycopg.Connection[tuple[Any, ...]]]:

    return opened.connect

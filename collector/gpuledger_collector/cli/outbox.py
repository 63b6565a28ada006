"""gpuledger outbox: messages waiting, sent or failed."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, end_with, new_app, refuse
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import load_settings, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.notifications import OUTBOX
from gpuledger_collector.notifications import digest_mail
from gpuledger_collector.services import sent_messages
from gpuledger_collector.wiring import sender as make_sender

app = new_app(name="outbox", help="Messages waiting, sent or failed.", no_args_is_help=True)
STATES = ("waiting", "held", "joined", "handing_over", "sent", "unconfirmed", "dead")
FAILED = {"unconfirmed", "dead"}


@app.command("list", epilog="Example: gpuledger outbox list --state dead --format csv")
def list_messages(
    state: Annotated[
        str, Option("--state", help=f"Only {', '.join(STATES[:-1])} or dead ones.")
    ] = "",
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List messages, newest first.

    With --exit-code it ends with 1 when one failed or its delivery is unconfirmed.
    """
    if state and state not in STATES:
        refuse(f"--state: {state!r} is none of {', '.join(STATES)}")
    with open_session(dsn, config) as session:
        messages = sent_messages.list_messages(session.database, [state] if state else None)
    emit_report(form, OUTBOX, messages, is_exact=True)
    end_with(any(message.state in FAILED for message in messages), exit_code)


@app.command(epilog="Example: gpuledger outbox send --dry-run")
def send(
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be sent now, and send nothing.")
    ] = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Send what is due now, as the collector does on its schedule.

    Ends with 1 when something could not be sent.
    """
    settings = load_settings(config, dsn)
    if not (settings.mail_server or settings.mail_dir or settings.hooks_file):
        refuse("no way to send is configured: set mail_server, mail_dir or hooks_file")
    with open_session(dsn, config) as session:
        sender = make_sender(settings, session.database)
        if dry_run:
            due = sent_messages.rehearse_sending(
                session.database, sender.clock(), digest_mail.write, list(sender.transports)
            )
            for recipient, subject in due:
                say(f"would send  {recipient}  {subject}")
            print(f"{len(due)} to send (dry run: nothing was sent)")
            return
        result = sender.send_due()
    print(result)
    if result.retried or result.unconfirmed or result.dead:
        raise typer.Exit(FINDINGS)

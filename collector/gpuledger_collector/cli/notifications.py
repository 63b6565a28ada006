"""gpuledger notifications and actions: who was notified of idle GPUs, and what is reclaimed where
nobody answers.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, dry_run_note, end_with, new_app, refuse
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import load_settings, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.notifications import ACTIONS, CANDIDATES, NOTIFICATIONS
from gpuledger_collector.notifications import finding_mail
from gpuledger_collector.services import reclaim, sent_messages
from gpuledger_collector.services.acknowledgements import acknowledge_notification
from gpuledger_collector.services.finding_notifications import notify_findings
from gpuledger_collector.wiring import notification_writers, reclaim_backends
from gpuledger_common.escapes import escape_lines

FAILED = {"failed", "doing"}

notifications = new_app(
    name="notifications",
    help="Who was notified of idle GPUs and of spending that stands out.",
    no_args_is_help=True,
)
actions = new_app(
    name="actions",
    help="GPUs reclaimed automatically, where a team opted in.",
    no_args_is_help=True,
)
app = new_app()
app.add_typer(notifications)
app.add_typer(actions)


@notifications.command("list", epilog="Example: gpuledger notifications list")
def list_notifications(
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the last notifications, newest first: of what, when, to whom, and what became of it."""
    with open_session(dsn, config) as session:
        items = sent_messages.list_notifications(session.database, session.now_ms)
    emit_report(form, NOTIFICATIONS, items, is_exact=True)


@notifications.command(epilog="Example: gpuledger notifications write --dry-run")
def write(
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the notifications, and send none.")
    ] = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Write the notifications that are due now, as the collector does on its schedule; with
    --dry-run, show them.
    """
    writers = notification_writers(load_settings(config, dsn))
    with open_session(dsn, config) as session:
        report = notify_findings(session.database, session.now_ms, writers, dry_run=dry_run)
    for message in report.messages if dry_run else ():
        say(f"To: {message.recipient}")
        say(f"Subject: {message.content.subject}")
        print(f"\n{escape_lines(message.content.text)}")
    print(f"{report} (dry run: nobody is notified)" if dry_run else report)


@notifications.command(
    epilog='Example: gpuledger notifications ack 17 --days 7 --why "deadline on Friday"'
)
def ack(
    number: Annotated[
        int, Argument(metavar="ID", help="Its number (gpuledger notifications list).")
    ],
    days: Annotated[
        int, Option("--days", min=1, max=90, help="For how long it is acknowledged.")
    ] = 7,
    why: Annotated[str, Option("--why", help="The reason, kept in the audit log.")] = "",
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Acknowledge a notification: until then nobody is notified of its episode again, and nothing
    is reclaimed.
    """
    with open_session(dsn, config) as session:
        until_ms = session.now_ms + days * DAY_MS
        is_known = acknowledge_notification(
            session.database, number, until_ms, why, session.now_ms, dry_run=dry_run
        )
    if not is_known:
        refuse(f"there is no notification {number}; gpuledger notifications list shows them")
    print(f"noted until {format_instant(until_ms)}" + dry_run_note(dry_run))


@actions.command("list", epilog="Example: gpuledger actions list")
def list_actions(
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the last actions, newest first.

    With --exit-code it ends with 1 when one failed or did not finish.
    """
    with open_session(dsn, config) as session:
        listed = reclaim.list_actions(session.database)
    emit_report(form, ACTIONS, listed, is_exact=True)
    end_with(any(action.state in FAILED for action in listed), exit_code)


@actions.command("dry-run", epilog="Example: gpuledger actions dry-run")
def dry_run(
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show what would be reclaimed, and since when that is shown; and what is spared, and why.

    Changes nothing.
    """
    enabled = load_settings(config, dsn).actions
    with open_session(dsn, config) as session:
        candidates = reclaim.list_candidates(session.database, session.now_ms)
    if form is not options.Format.table:
        emit_report(form, CANDIDATES, candidates, is_exact=True)
    for row in map(CANDIDATES.texts, candidates) if form is options.Format.table else ():
        reason = row["why"] or f"since {row['since']}, due at {row['due']}"
        say(
            f"{row['verdict']:6}  {row['what']}  {row['team']}  {row['workload']}  {row['label']} "
            f" ({reason})"
        )
    if not enabled:
        print(
            "actions are off: they are only shown (actions = true in the settings)", file=sys.stderr
        )


@actions.command(epilog="Example: gpuledger actions run")
def run(dsn: options.Dsn = None, config: options.Config = None) -> None:
    """Reclaim now what a dry run has shown for long enough, as the collector does on its schedule.

    Needs `actions = true` in the settings, an [[action]] of the team, and a notification that its
    people had before. Ends with 1 when an action failed.
    """
    settings = load_settings(config, dsn)
    if not settings.actions:
        refuse(
            "actions are off: set actions = true in the settings; gpuledger actions dry-run shows"
            " what would be done"
        )
    with open_session(dsn, config) as session:
        result = reclaim.reclaim_idle(
            session.database,
            session.now_ms,
            reclaim_backends(settings),
            finding_mail.write_reclaim_mail,
            enabled=True,
        )
    print(result)
    if result.failed:
        raise typer.Exit(FINDINGS)

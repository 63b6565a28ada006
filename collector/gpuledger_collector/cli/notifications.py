"""gpuledger notifications and actions: who was notified of idle GPUs, and what is reclaimed where
nobody answers.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_date, format_instant
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, dry_run_note, end_with, new_app, refuse
from gpuledger_collector.cli.output import Column, emit
from gpuledger_collector.cli.session import load_settings, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.insight.notifications.finding_rules import Notification
from gpuledger_collector.notifications import finding_mail
from gpuledger_collector.services.finding_notifications import notify_findings
from gpuledger_collector.services.reclaim import candidates, reclaim_idle
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.notifications import finding_notifications
from gpuledger_collector.wiring import notification_writers, reclaim_backends
from gpuledger_common.escapes import escape_lines

MAX_LISTED = 200
MAX_REASON = 500
FAILED = {"failed", "doing"}
NOTIFICATION_COLUMNS = tuple(
    Column(name)
    for name in ("id", "notified_at", "kind", "standing", "team", "subject", "recipients")
)
ACTION_COLUMNS = tuple(
    Column(name) for name in ("at", "state", "what", "team", "workload", "detail")
)
CANDIDATE_COLUMNS = tuple(
    Column(name) for name in ("verdict", "what", "team", "workload", "label", "since", "due", "why")
)

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
    with open_session(dsn, config) as session, session.database.connect() as connection:
        notified = [
            (notification, finding_notifications.subject_of(connection, notification))
            for notification in finding_notifications.newest(connection, MAX_LISTED)
        ]
    rows = [
        {
            "id": notification.id,
            "notified_at": format_instant(notification.notified_ms),
            "kind": notification.kind,
            "standing": _standing(notification, session.now_ms),
            "team": notification.team,
            "subject": subject,
            "recipients": ", ".join(notification.recipients),
        }
        for notification, subject in notified
    ]
    if form is not options.Format.table:
        emit(form, NOTIFICATION_COLUMNS, rows)
        return
    for row in rows:
        say(
            f"{row['id']:>6}  {row['notified_at']}  {row['kind']:7}  {row['standing']:26}  "
            f"{row['team'] or '(unattributed)'}  {row['subject']}  to {row['recipients']}"
        )


def _standing(notification: Notification, now_ms: int) -> str:
    if notification.ack_until_ms is not None and notification.is_acknowledged(now_ms):
        return f"acknowledged to {format_date(notification.ack_until_ms)}"
    if notification.closed_ms is not None:
        return "ended"
    return "escalated" if notification.escalated_ms is not None else "ongoing"


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
    with (
        open_session(dsn, config) as session,
        session.database.transaction(dry_run=dry_run) as connection,
    ):
        until_ms = session.now_ms + days * DAY_MS
        reason, person = why[:MAX_REASON], audit.person()
        acknowledged = finding_notifications.acknowledge(
            connection, number, person, until_ms, reason, session.now_ms
        )
    if acknowledged is None:
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
    with open_session(dsn, config) as session, session.database.connect() as connection:
        listed = finding_notifications.actions(connection, MAX_LISTED)
    rows = [
        {
            "at": format_instant(action.done_ms or action.acted_ms or action.last_shown_ms),
            **{name: getattr(action, name) for name in ("state", "what", "team", "detail")},
            "workload": action.target.get("workload"),
        }
        for action in listed
    ]
    if form is not options.Format.table:
        emit(form, ACTION_COLUMNS, rows)
    for row in rows if form is options.Format.table else ():
        detail = f"  ({row['detail']})" if row["detail"] else ""
        say(
            f"{row['at']}  {row['state']:7}  {row['what']}  {row['team']} "
            f" {row['workload']}{detail}"
        )
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
    with open_session(dsn, config) as session, session.database.connect() as connection:
        reclaimable = candidates(connection, session.now_ms)
        open_actions = finding_notifications.open_actions(connection)
    shown_since = {action.key: action.first_shown_ms for action in open_actions}
    rows = []
    for candidate in reclaimable:
        since_ms = shown_since.get(candidate.key, session.now_ms)
        due_ms = since_ms + candidate.rule.dry_run_hours * HOUR_MS
        rows.append(
            {
                "verdict": "spared" if candidate.spared else "shown",
                "what": candidate.rule.do,
                "team": candidate.workload.team,
                "workload": candidate.workload.external_id,
                "label": candidate.workload.label,
                "since": None if candidate.spared else format_instant(since_ms),
                "due": None if candidate.spared else format_instant(due_ms),
                "why": candidate.spared,
            }
        )
    if form is not options.Format.table:
        emit(form, CANDIDATE_COLUMNS, rows)
    for row in rows if form is options.Format.table else ():
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
        result = reclaim_idle(
            session.database,
            session.now_ms,
            reclaim_backends(settings),
            finding_mail.acted,
            enabled=True,
        )
    print(result)
    if result.failed:
        raise typer.Exit(FINDINGS)

"""gpuledger notifications and actions: who was told of what is idle, and what is done where nobody answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, DryRun, Dsn, database, refuse, settings, untouched
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.terminal import say
from gpuledger_common.escapes import escape_lines

if TYPE_CHECKING:
    import psycopg

    from gpuledger_collector.storage.notifications.finding_rules import Notification

SHOWN = 200
LETTER_COLUMNS = ("id", "told_at", "kind", "standing", "team", "subject", "recipients")
ACTION_COLUMNS = ("at", "state", "what", "team", "workload", "detail")
REHEARSED_COLUMNS = ("verdict", "what", "team", "workload", "label", "since", "due", "why")
Form = Annotated[Shape, typer.Option("--format", help="Form of the output.")]
Connect = Callable[[], "psycopg.Connection[tuple[Any, ...]]"]


def register(root: typer.Typer) -> None:
    """Add `gpuledger notifications` and `gpuledger actions`."""
    notifications = typer.Typer(help="Who was told of idle GPUs and of spending that stands out.", no_args_is_help=True)
    notifications.command("list", epilog="Example: gpuledger notifications list")(list_notifications)
    notifications.command("write", epilog="Example: gpuledger notifications write --dry-run")(write)
    notifications.command("ack", epilog='Example: gpuledger notifications ack 17 --days 7 --why "deadline on Friday"')(
        ack
    )
    root.add_typer(notifications, name="notifications")
    actions = typer.Typer(help="What is given back by itself, where a team opted in.", no_args_is_help=True)
    actions.command("list", epilog="Example: gpuledger actions list")(list_actions)
    actions.command("dry-run", epilog="Example: gpuledger actions dry-run")(dry_run)
    actions.command("run", epilog="Example: gpuledger actions run")(run)
    root.add_typer(actions, name="actions")


@contextmanager
def _opened(dsn: Dsn, config: Config) -> Iterator[tuple[Connect, int]]:
    """Opens connections to the ledger's database; and now, in unix ms."""
    with database(dsn, config) as opened:
        from gpuledger_collector.wiring import now

        yield opened.connect, int(now().timestamp() * 1000)


def list_notifications(shape: Form = Shape.table, dsn: Dsn = None, config: Config = None) -> None:
    """List the last letters, newest first: of what, since when, to whom, and what came of it."""
    from gpuledger_collector.accounting.period import format_instant
    from gpuledger_collector.storage.notifications import finding_notifications as notifications

    with _opened(dsn, config) as (connect, now_ms), connect() as connection:
        found = [(one, notifications.subject_of(connection, one)) for one in notifications.newest(connection, SHOWN)]
    if shape is not Shape.table:
        _emit(
            shape,
            LETTER_COLUMNS,
            [
                (
                    one.id,
                    format_instant(one.notified_ms),
                    one.kind,
                    _standing(one, now_ms),
                    one.team,
                    name,
                    ", ".join(one.recipients),
                )
                for one, name in found
            ],
        )
        return
    for one, name in found:
        say(
            f"{one.id:>6}  {format_instant(one.notified_ms)}  {one.kind:7}  {_standing(one, now_ms):22}  "
            f"{one.team or '(unattributed)'}  {name}  to {', '.join(one.recipients)}"
        )


def _emit(shape: Shape, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from gpuledger_collector.export.cells import rows_as

    sys.stdout.write(rows_as(shape.value, columns, rows))


def _standing(one: Notification, now_ms: int) -> str:
    from gpuledger_collector.accounting.period import format_date

    if one.ack_until_ms is not None and one.is_acknowledged(now_ms):
        return f"meant so to {format_date(one.ack_until_ms)}"
    if one.closed_ms is not None:
        return "ended"
    return "escalated" if one.escalated_ms is not None else "goes on"


def write(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the letters, and write to nobody.")] = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Write the letters that are due now, as the collector does on its schedule; with --dry-run, show them."""
    from gpuledger_collector.jobs.notify_findings import notify_findings
    from gpuledger_collector.wiring import notification_writers, now

    with database(dsn, config) as opened:
        writers = notification_writers(settings(config, dsn))
        report = notify_findings(opened, int(now().timestamp() * 1000), writers, dry_run=dry_run)
    for message in report.messages if dry_run else ():
        say(f"To: {message.recipient}")
        say(f"Subject: {message.content.subject}")
        print(f"\n{escape_lines(message.content.text)}")
    print(f"{report} (dry run: nobody is notified)" if dry_run else report)


def ack(
    number: Annotated[
        int, typer.Argument(metavar="LETTER", help="Number of the letter (gpuledger notifications list).")
    ],
    days: Annotated[int, typer.Option("--days", min=1, max=90, help="For how long it is meant so.")] = 7,
    why: Annotated[str, typer.Option("--why", help="The reason, kept in the audit log.")] = "",
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say of a letter's episode that it is meant so: nobody is told of it, and nothing is done about it, until then."""
    from gpuledger_collector.accounting.period import DAY_MS, format_instant
    from gpuledger_collector.storage.access import audit
    from gpuledger_collector.storage.notifications import finding_notifications as notifications

    with (
        _opened(dsn, config) as (connect, now_ms),
        connect() as connection,
        connection.transaction(force_rollback=dry_run),
    ):
        until_ms = now_ms + days * DAY_MS
        found = notifications.acknowledge(connection, number, audit.person(), until_ms, why[:500], now_ms)
    if found is None:
        refuse(f"{number} is the number of no letter; gpuledger notifications list shows them")
    print(f"noted until {format_instant(until_ms)}" + untouched(dry_run))


def list_actions(shape: Form = Shape.table, dsn: Dsn = None, config: Config = None) -> None:
    """List the last actions, newest first. Ends with 1 when one of them failed or was begun and not ended."""
    from gpuledger_collector.accounting.period import format_instant
    from gpuledger_collector.storage.notifications import finding_notifications as notifications

    with _opened(dsn, config) as (connect, _), connect() as connection:
        found = notifications.actions(connection, SHOWN)
    rows = [
        (
            format_instant(one.done_ms or one.acted_ms or one.last_shown_ms),
            one.state,
            one.what,
            one.team,
            one.target.get("workload"),
            one.detail,
        )
        for one in found
    ]
    if shape is not Shape.table:
        _emit(shape, ACTION_COLUMNS, rows)
    else:
        for at, state, what, team, workload, detail in rows:
            say(f"{at}  {state:7}  {what}  {team}  {workload}" + (f"  ({detail})" if detail else ""))
    if any(one.state in {"failed", "doing"} for one in found):
        raise typer.Exit(FINDINGS)


def dry_run(shape: Form = Shape.table, dsn: Dsn = None, config: Config = None) -> None:
    """Show what would be given back, and since when that is shown; and what is spared, and why. Changes nothing."""
    from gpuledger_collector.accounting.period import HOUR_MS, format_instant
    from gpuledger_collector.jobs.reclaim_idle import candidates
    from gpuledger_collector.storage.notifications import finding_notifications

    enabled = settings(config, dsn).actions
    with _opened(dsn, config) as (connect, now_ms), connect() as connection:
        found = candidates(connection, now_ms)
        shown = {action.key: action for action in finding_notifications.open_actions(connection)}
    rows = []
    for one in found:
        since_ms = shown[one.key].first_shown_ms if one.key in shown else now_ms
        due_ms = since_ms + one.rule.dry_run_hours * HOUR_MS
        when = (None, None) if one.spared else (format_instant(since_ms), format_instant(due_ms))
        rows.append(
            (
                "spared" if one.spared else "shown",
                one.rule.do,
                one.workload.team,
                one.workload.external_id,
                one.workload.label,
                *when,
                one.spared,
            )
        )
    if shape is not Shape.table:
        _emit(shape, REHEARSED_COLUMNS, rows)
    else:
        for verdict, do, team, workload, label, since, due, why in rows:
            said = why or f"since {since}, done from {due} on"
            say(f"{verdict:6}  {do}  {team}  {workload}  {label}  ({said})")
    if not enabled:
        print("actions are off: nothing is ever done, only shown (actions = true in the settings)", file=sys.stderr)


def run(dsn: Dsn = None, config: Config = None) -> None:
    """Do now what a dry run has shown for long enough, as the collector does on its schedule. Ends with 1 on a failure.

    Needs `actions = true` in the settings, an [[action]] of the team, and a letter that its people had before.
    """
    from gpuledger_collector.jobs.reclaim_idle import reclaim_idle
    from gpuledger_collector.notifications import finding_mail as finding_mail
    from gpuledger_collector.wiring import now, reclaim_backends

    chosen = settings(config, dsn)
    if not chosen.actions:
        refuse(
            "actions are off: set actions = true in the settings; gpuledger actions dry-run shows what would be done"
        )
    with database(dsn, config) as opened:
        now_ms = int(now().timestamp() * 1000)
        done = reclaim_idle(opened, now_ms, reclaim_backends(chosen), finding_mail.acted, enabled=True)
    print(done)
    if done.failed:
        raise typer.Exit(FINDINGS)

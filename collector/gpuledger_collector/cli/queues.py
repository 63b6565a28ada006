"""gpuledger queues: queues of Kubernetes schedulers, their quotas and what became of them."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import TimeRange, dry_run_note, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import Session, clock_ms, ledger_command
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.report import Item, Report
from gpuledger_collector.export.scheduler_queues import (
    EVICTIONS,
    NOTHING_KNOWN,
    QUEUE_TIMES,
    QUOTAS,
    TENANTS,
    say_remedy,
)
from gpuledger_collector.services import scheduler_queues
from gpuledger_collector.services.database import Connection
from gpuledger_common.plurals import plural

MOST_NOTES = 3
"""Queues of which is said what would have served what waited."""

app = new_app(
    name="queues",
    help="Queues of Kubernetes schedulers, their quotas, and what was borrowed and lost.",
    no_args_is_help=True,
)


@app.command("list", epilog="Example: gpuledger queues list --period 2026-10 --format csv")
@ledger_command
def list_queues(
    session: Session,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
) -> None:
    """List the GPU-hours of each queue: reserved, used, borrowed, lent, waited for and lost; those
    that waited beside unused quota first.

    They are those of quotas, which count requests: bills count what was held.
    """
    asked = time_range(period, start, end, days)
    _list(session, asked, form, QUEUE_TIMES, scheduler_queues.list_times, say_remedy)


@app.command(epilog="Example: gpuledger queues quotas --days 90")
@ledger_command
def quotas(
    session: Session,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
) -> None:
    """List quotas with borrowing and lending limits as they were: a row for each change."""
    asked = time_range(period, start, end, days)
    _list(session, asked, form, QUOTAS, scheduler_queues.list_quotas)


@app.command(epilog="Example: gpuledger queues evictions --period 2026-10")
@ledger_command
def evictions(
    session: Session,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
) -> None:
    """List workloads that Kueue stopped before they had finished, newest first: what they lost and
    who preempted them.
    """
    asked = time_range(period, start, end, days)
    _list(session, asked, form, EVICTIONS, scheduler_queues.list_evictions)


@app.command(epilog="Example: gpuledger queues names --format csv")
@ledger_command
def names(
    session: Session,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
) -> None:
    """List the queues that workloads name, as bills have them, and the queue with their quota."""
    asked = time_range(period, start, end, days)
    _list(session, asked, form, TENANTS, scheduler_queues.list_tenants)


@app.command(epilog="Example: gpuledger queues read --config west.toml")
@ledger_command
def read(session: Session, dry_run: options.DryRun = False) -> None:
    """Read the queues of a cluster once: of one that is not the collector's own, every minute by a
    timer.
    """
    from gpuledger_collector import wiring

    chosen = session.settings
    if not chosen.queue_schedulers:
        refuse("kubernetes_queues names no scheduler: kueue, volcano, kai")
    count = scheduler_queues.read_queues(
        session.database,
        wiring.queue_client(chosen),
        chosen.queue_schedulers,
        chosen.kubernetes_cluster,
        clock_ms,
        dry_run=dry_run,
    )
    say(f"{plural(count, 'queue')} with a quota{dry_run_note(dry_run)}")


def _list(
    session: Session,
    asked: TimeRange,
    form: options.Format,
    report: Report[Item],
    read: Callable[[Connection, Period], list[Item]],
    note: Callable[[Item], str] = lambda _: "",
) -> None:
    with session.database.transaction(read_only=True) as connection:
        found = read(connection, asked.resolve(session.calendar, session.now_ms))
    notes = [text for text in map(note, found[:MOST_NOTES]) if text]
    emit_report(form, report, found, notes if found else [NOTHING_KNOWN])

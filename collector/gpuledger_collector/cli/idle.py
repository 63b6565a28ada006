"""gpuledger idle: accelerators that cost money and do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from typer import Option

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import end_with, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.export.cells import instant_text
from gpuledger_collector.export.findings import IDLE, report_groups, silent_text
from gpuledger_collector.export.idle_services import SERVICES
from gpuledger_collector.insight.idle.episodes import SHOWN
from gpuledger_collector.insight.idle.serving_replicas import ServiceReplicas
from gpuledger_collector.services.findings import FindingList, WholeFleet, holder, list_findings
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.idle_search import find_idle, searched_until
from gpuledger_collector.services.nodes import count_nodes
from gpuledger_collector.services.serving_replicas import assess_services
from gpuledger_common.plurals import plural

app = new_app()
TABLE_ROWS = 20
MOST_BEHIND_MS = 600_000
"""A search of the collector's job that is older than this is not what is idle now."""
NOT_OBSERVED = "not known: no node has reported what its GPUs do, and imported usage does not say"
STATES = [state.name.lower() for state in SHOWN]


class By(StrEnum):
    """Groups of idle accelerators."""

    state = "state"
    team = "team"


@app.command(epilog="Example: gpuledger idle --now")
def idle(
    only_now: Annotated[bool, Option("--now", help="Only what is ongoing now.")] = False,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    team: Annotated[str | None, Option("--team", help="Only this team's.")] = None,
    state: Annotated[
        str | None, Option("--state", help="Only this state, such as gone_idle or never_used.")
    ] = None,
    search: Annotated[
        bool,
        Option(
            "--search",
            help="With --now: search what has arrived since the collector's last search, too.",
        ),
    ] = False,
    services: Annotated[
        bool,
        Option(
            "--services", help="Warm replicas: what each service holds, and needs when busiest."
        ),
    ] = False,
    by: Annotated[By | None, Option("--by", help="A row for each state, or team.")] = None,
    top: Annotated[
        int | None,
        Option("--top", min=0, help="Only the first N; 0: all. Default: 20 in a table, else all."),
    ] = None,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List idle accelerators: who has them, since when, how sure that is, and what it costs so far
    and per day.

    The list has what was idle at some time in the period, each finding with its full time and cost.
    With --now it is what the collector's job last found, if that was in the last ten minutes, and
    says when; otherwise, and with --search, everything that has arrived is searched first.

    Warm replicas of services are not in it; --services judges them over the last seven days: all
    that were busy at once in 99 of 100 minutes are needed, and one in reserve.
    """
    if (only_now or services) and (period, start, end, days) != (None,) * 4:
        refuse(
            "--now and --services have their own time: --period, --from, --to and --days do not go"
            " with them"
        )
    if services and (only_now or state is not None or by is not None):
        refuse("--services judges a week of replicas: --now, --state and --by do not go with it")
    if search and not only_now:
        refuse("--search goes with --now: a list of a period is always searched first")
    if state is not None and state not in STATES:
        refuse(f"--state: {state!r} is none of {', '.join(STATES)}")
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        if services:
            fold_usage(session.database)
            judged = assess_services(session.database, session.now_ms)
            end_with(
                print_services(
                    [service for service in judged if team in {None, service.team}], form
                ),
                exit_code,
            )
            return
        span = asked.resolve(session.calendar, session.now_ms)
        # Ends are not included: one millisecond is what is ongoing at this instant.
        bounds = (session.now_ms, session.now_ms + 1) if only_now else (span.start_ms, span.end_ms)
        searched_ms = _searched_ms(session) if only_now and not search else None
        if searched_ms is None:
            fold_usage(session.database)
            find_idle(session.database, session.now_ms)
        with session.database.transaction(read_only=True) as connection:
            found = list_findings(connection, "idle", Period(*bounds), WholeFleet())
            counts = count_nodes(connection, session.now_ms)
    chosen = found.only(
        lambda item: (
            (not only_now or item.is_ongoing)
            and team in {None, holder(item)}
            and state in {None, item.state}
        )
    )
    summaries = [summarize(chosen)] if found.items or counts.nodes else [NOT_OBSERVED]
    if searched_ms is not None:
        summaries = [*summaries, f"as the collector found it up to {instant_text(searched_ms)}"]
    if only_now and counts.silent:
        # Without a node that reports, nothing found does not mean that nothing is idle.
        unknown = silent_text(counts.silent, counts.nodes, shows_fleet=True)
        summaries = [*summaries, unknown] if found.items or counts.reports else [unknown]
    if by is None:
        print_findings(
            chosen,
            TABLE_ROWS if top is None and form is options.Format.table else top,
            form,
            summaries,
        )
    else:
        emit_report(form, report_groups(by.value), chosen.groups(by.value), summaries)
    end_with(bool(chosen.items), exit_code)


def _searched_ms(session: Session) -> int | None:
    """Up to when the collector's job has searched, None where that does not stand for now."""
    within_ms = min(2 * session.settings.idle_seconds * 1000, MOST_BEHIND_MS)
    return searched_until(session.database, session.now_ms, within_ms)


def print_findings(
    found: FindingList, top: int | None, form: options.Format, summaries: Sequence[str]
) -> None:
    """Print the first `top` findings (None or 0: all) and what all of them amount to."""
    shown = found.items[: top or None]
    left = len(found.items) - len(shown)
    emit_report(
        form,
        IDLE,
        shown,
        [*([f"... and {left} more (--top 0 shows all)"] if left else []), *summaries],
    )


def summarize(found: FindingList) -> str:
    """What all of it amounts to, by currency."""
    so_far = ", ".join(map(str, found.costs)) or ("no known price" if found.items else "nothing")
    daily = ", ".join(map(str, found.per_day)) or "nothing"
    count = plural(len(found.items), "finding")
    return (
        f"{count}, {len(found.ongoing.items)} ongoing: {so_far} so far, {daily} for each"
        " further day"
    )


def print_services(services: Sequence[ServiceReplicas], form: options.Format) -> bool:
    """Print every service, those with most to spare first; whether any has something to spare."""
    note = "needed: busy at once in 99 of 100 minutes of seven days, and one in reserve"
    emit_report(form, SERVICES, services, [f"{plural(len(services), 'service')}; {note}"])
    return any(service.assessment.spare for service in services)

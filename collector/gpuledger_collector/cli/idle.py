"""gpuledger idle: accelerators that cost money and do nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

from typer import Option

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.cli import options
from gpuledger_collector.cli.amounts import hours_text, to_minute
from gpuledger_collector.cli.common import end_with, new_app, refuse, time_range
from gpuledger_collector.cli.output import Column, Row, emit, hidden, number
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.export.findings import Finding, idle_row
from gpuledger_collector.insight.findings import is_free
from gpuledger_collector.insight.idle.episodes import SHOWN
from gpuledger_collector.jobs.find_idle import find_idle
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.serving_replicas import ServiceReplicas, assess_services
from gpuledger_collector.storage.findings.findings import named
from gpuledger_collector.storage.ledger import overview
from gpuledger_common.plurals import plural

app = new_app()
TABLE_ROWS = 20
NOBODY = "(nobody)"
NOT_OBSERVED = "not known: no node has reported what its GPUs do, and imported usage does not say"
COLUMNS = (
    Column("node"),
    number("gpu"),
    hidden("accelerator"),
    hidden("model"),
    Column("state"),
    Column("team"),
    Column("workload", is_optional=True),
    Column("user", is_optional=True),
    Column("since", is_optional=True, show=to_minute),
    hidden("until"),
    number("hours"),
    number("confidence", is_optional=True),
    number("cost"),
    number("per_day"),
    hidden("currency"),
)
SERVICE_COLUMNS = (
    Column("service"),
    Column("team"),
    Column("pool", is_optional=True),
    Column("model", is_optional=True),
    *(number(name) for name in ("held", "busiest", "needed", "spare", "known", "per_day")),
)
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
    state: Annotated[str | None, Option("--state", help="Only this state, such as gone_idle or never_used.")] = None,
    services: Annotated[
        bool, Option("--services", help="Warm replicas: what each service holds, and needs when busiest.")
    ] = False,
    by: Annotated[By | None, Option("--by", help="A row for each state, or team.")] = None,
    top: Annotated[
        int | None, Option("--top", min=0, help="Only the first N; 0: all. Default: 20 in a table, else all.")
    ] = None,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List idle accelerators: who has them, since when, how sure that is, and what it costs so far and per day.

    The list has what was idle at some time in the period, each finding with its full time and cost. Warm replicas of
    services are not in it; --services judges them over the last seven days: all that were busy at once in 99 of 100
    minutes are needed, and one in reserve.
    """
    if (only_now or services) and (period, start, end, days) != (None,) * 4:
        refuse("--now and --services have their own time: --period, --from, --to and --days do not go with them")
    if services and (only_now or state is not None or by is not None):
        refuse("--services judges a week of replicas: --now, --state and --by do not go with it")
    if state is not None and state not in STATES:
        refuse(f"--state: {state!r} is none of {', '.join(STATES)}")
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        fold_usage(session.database)
        if services:
            judged = assess_services(session.database, session.now_ms)
            end_with(print_services([service for service in judged if team in {None, service.team}], form), exit_code)
            return
        span = asked.resolve(session.calendar, session.now_ms)
        # Ends are not included: one millisecond is what is ongoing at this instant.
        bounds = (session.now_ms, session.now_ms + 1) if only_now else (span.start_ms, span.end_ms)
        findings = find(session, bounds)
        is_unknown = not findings and not _has_nodes(session)
    chosen = [
        finding
        for finding in findings
        if (not only_now or finding["resolved_ms"] is None)
        and team in {None, _holder(finding)}
        and state in {None, finding["state"]}
    ]
    summary = NOT_OBSERVED if is_unknown else summarize(chosen)
    if by is None:
        print_findings(chosen, TABLE_ROWS if top is None and form is options.Format.table else top, form, summary)
    else:
        measures = (number(name) for name in ("findings", "hours", "cost", "ongoing"))
        emit(form, (Column(by.value), *measures, Column("mostly")), group_rows(chosen, by), [summary])
    end_with(bool(chosen), exit_code)


def find(session: Session, bounds: tuple[int, int]) -> list[dict[str, Any]]:
    """Findings between two instants, after searching all evidence that has arrived."""
    find_idle(session.database, session.now_ms)
    with session.database.transaction() as connection:
        return named(connection, "idle", *bounds)


def _has_nodes(session: Session) -> bool:
    """Whether any node has ever reported: of imported usage nobody knows what its GPUs did."""
    with session.database.transaction(read_only=True) as connection:
        return overview.fleet(connection, session.now_ms).nodes > 0


def print_findings(findings: Sequence[Finding], top: int | None, form: options.Format, summary: str) -> None:
    """Print the first `top` findings (None or 0: all) and what all of them amount to."""
    rows = [idle_row(finding) for finding in findings[: top or None]]
    left = len(findings) - len(rows)
    emit(form, COLUMNS, rows, [*([f"... and {left} more (--top 0 shows all)"] if left else []), summary])


def _holder(finding: Finding) -> str:
    """The team that holds it; in parentheses nobody, or somebody whose team is not known."""
    return finding["team"] or (NOBODY if is_free(finding) else UNATTRIBUTED)


def group_rows(findings: Sequence[Finding], by: By) -> list[Row]:
    """A row for each state or team: how often, how long, what it cost, and where most of it; dearest first."""
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        name = _holder(finding) if by is By.team else finding["state"]
        groups[name, finding["currency"] or ""].append(finding)
    rows = []
    for (name, currency), group in groups.items():
        costs = [finding["cost_micro"] for finding in group if finding["cost_micro"] is not None]
        cost_by_place: Counter[str] = Counter()
        for finding in group:
            place = finding["workload_name"] or finding["evidence"].get("node", "")
            cost_by_place[place] += finding["cost_micro"] or 0
        row = {
            by.value: name,
            "findings": str(len(group)),
            "hours": hours_text(sum(finding["until_ms"] - finding["since_ms"] for finding in group), 1),
            "cost": str(Money(sum(costs), currency)) if costs and currency else "",
            "ongoing": str(sum(finding["resolved_ms"] is None for finding in group)),
            "mostly": ", ".join(place for place, _ in cost_by_place.most_common(2) if place),
        }
        rows.append((sum(costs), row))
    return [row for _, row in sorted(rows, key=lambda entry: (-entry[0], entry[1][by.value]))]


def summarize(findings: Sequence[Finding]) -> str:
    """What all of it amounts to, by currency."""
    cost: Counter[str] = Counter()
    per_day: Counter[str] = Counter()
    for finding in findings:
        if finding["currency"] is not None and finding["cost_micro"] is not None:
            cost[finding["currency"]] += finding["cost_micro"]
            if finding["resolved_ms"] is None:
                per_day[finding["currency"]] += finding["per_day_micro"] or 0
    ongoing = sum(finding["resolved_ms"] is None for finding in findings)
    so_far = ", ".join(str(Money(micro, currency)) for currency, micro in sorted(cost.items())) or "no known price"
    daily = ", ".join(str(Money(micro, currency)) for currency, micro in sorted(per_day.items())) or "nothing"
    return f"{plural(len(findings), 'finding')}, {ongoing} ongoing: {so_far} so far, {daily} for each further day"


def print_services(services: Sequence[ServiceReplicas], form: options.Format) -> bool:
    """Print every service, those with most to spare first; whether any has something to spare."""
    rows = [
        {
            "service": service.name,
            "team": service.team,
            "pool": service.pool,
            "model": service.model,
            "held": str(service.assessment.held),
            "busiest": str(service.assessment.peak),
            "needed": str(service.assessment.needed),
            "spare": "not known" if service.assessment.spare is None else str(service.assessment.spare),
            "known": f"{service.assessment.known:.2f}",
            "per_day": str(Money(service.per_day_micro, service.currency))
            if service.per_day_micro is not None and service.currency
            else "",
        }
        for service in services
    ]
    note = "needed: busy at once in 99 of 100 minutes of seven days, and one in reserve"
    emit(form, SERVICE_COLUMNS, rows, [f"{plural(len(rows), 'service')}; {note}"])
    return any(service.assessment.spare for service in services)

"""gpuledger idle: accelerators that cost money and do nothing."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, Config, Dsn, database, period_of, refuse
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.terminal import print_table
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.accounting.period import Period

DAY_MS = 86_400_000
SHOWN_ROWS = 20
COLUMNS = (
    "node",
    "gpu",
    "accelerator",
    "model",
    "state",
    "team",
    "workload",
    "user",
    "since",
    "until",
    "hours",
    "confidence",
    "cost",
    "per_day",
    "currency",
)

SERVICE_COLUMNS = ("service", "team", "pool", "model", "held", "busiest", "needed", "spare", "known", "per_day")


class By(StrEnum):
    """What idle accelerators are summed up by."""

    state = "state"
    team = "team"


def register(root: typer.Typer) -> None:
    """Add `gpuledger idle`."""
    root.command(epilog="Example: gpuledger idle --now")(idle)


def idle(
    now: bool = typer.Option(False, "--now", help="Only what goes on now."),
    days: int | None = typer.Option(
        None, "--days", min=1, max=36_500, help="How far back to look; 7.", show_default=False
    ),
    start: str | None = typer.Option(
        None, "--from", metavar="DATE", help="Instead: first day (of the billing zone), included."
    ),
    end: str | None = typer.Option(None, "--to", metavar="DATE", help="Last day (of the billing zone), not included."),
    team: str | None = typer.Option(None, "--team", help="Only this team's."),
    state: str | None = typer.Option(None, "--state", help="Only this state, such as gone_idle or never_used."),
    services: bool = typer.Option(
        False, "--services", help="Warm replicas instead: what each service holds, and needs in its busiest minutes."
    ),
    by: By | None = typer.Option(None, "--by", help="Sum up: a row for each state, or team."),
    top: int | None = typer.Option(
        None, "--top", min=0, help="Only so many; 0: all. Default: 20 in a table, else all."
    ),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List idle accelerators: who has them, since when, how sure that is, and what it costs so far and per day.

    With --from and --to it lists what was idle at some time in those days, each with its whole time and cost. Ends
    with 1 when something is idle. Warm replicas of services are not listed; --services judges them together, by the
    last seven days: all but the busiest hundredth of the minutes, and one replica in reserve.
    """
    asked = _asked(days, start, end, now or services)
    if services:
        if now or state is not None or by is not None:
            refuse("--services: judges a week of replicas; --now, --state and --by do not go with it")
        raise typer.Exit(FINDINGS if show_services(dsn, config, team, shape) else DONE)
    if state is not None and state not in _states():
        refuse(f"--state: {state!r} is none of {', '.join(_states())}")
    found = search(dsn, config, asked, now)
    chosen = [
        one
        for one in found
        if (not now or one["resolved_ms"] is None) and team in {None, one["team"]} and state in {None, one["state"]}
    ]
    if by is not None:
        sums_up(chosen, by, shape)
        raise typer.Exit(FINDINGS if chosen else DONE)
    most = SHOWN_ROWS if top is None and shape is Shape.table else top
    emit([row_of(one) for one in chosen[: most or None]], chosen, shape)
    raise typer.Exit(FINDINGS if chosen else DONE)


def show_services(dsn: str | None, config: Path | None, team: str | None, shape: Shape) -> bool:
    """Print every service, those with most to spare first; whether any has something to spare."""
    from gpuledger_collector.accounting.budgets import money_text
    from gpuledger_collector.services.hourly_usage import fold_usage
    from gpuledger_collector.services.serving_replicas import assess_services
    from gpuledger_collector.wiring import now as clock

    with database(dsn, config) as opened:
        fold_usage(opened)
        found = assess_services(opened, round(clock().timestamp() * 1000))
    found = [one for one in found if team in {None, one.team}]
    rows = []
    for one in found:
        spare = "not known" if one.assessment.spare is None else str(one.assessment.spare)
        day = "" if one.per_day_micro is None or not one.currency else money_text(one.per_day_micro, one.currency)
        rows.append(
            [
                one.name,
                one.team,
                one.pool,
                one.model,
                str(one.assessment.held),
                str(one.assessment.peak),
                str(one.assessment.needed),
                spare,
                f"{one.assessment.known:.2f}",
                day,
            ]
        )
    if shape is Shape.table:
        from gpuledger_collector.export.tables import Table

        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for column in SERVICE_COLUMNS:
            right = column in {"held", "busiest", "needed", "spare", "known", "per_day"}
            table.add_column(column.replace("_", " "), justify="right" if right else "left")
        for row in rows:
            table.add_row(*row)
        print_table(table, 170)
        print(
            f"{plural(len(rows), 'service')}; needed: busy at once in 99 of 100 minutes of seven days, "
            "and one in reserve"
        )
    else:
        from gpuledger_collector.export.cells import rows_as

        sys.stdout.write(rows_as(shape.value, SERVICE_COLUMNS, rows))
    return any(one.assessment.spare for one in found)


def _asked(days: int | None, start: str | None, end: str | None, fixed: bool) -> Period | int:
    """The days that were asked for, by their names, or how many back from now."""
    if start is None and end is None:
        return 7 if days is None else days
    if start is None or end is None:
        refuse("say both --from and --to, or how many --days")
    if days is not None or fixed:
        refuse("--from and --to name the days: --days, --now and --services do not go with them")
    return period_of(None, start, end)


def _states() -> list[str]:
    from gpuledger_collector.insight.idle.episodes import SHOWN

    return [state.name.lower() for state in SHOWN]


def search(dsn: str | None, config: Path | None, asked: Period | int, now: bool) -> list[dict[str, Any]]:
    """Findings of these days, or of so many back, after everything that has come in was looked at."""
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.jobs.find_idle import find_idle
    from gpuledger_collector.services.hourly_usage import fold_usage
    from gpuledger_collector.storage.findings.findings import named
    from gpuledger_collector.storage.ledger import zones
    from gpuledger_collector.wiring import now as clock

    now_ms = round(clock().timestamp() * 1000)
    with database(dsn, config) as opened:
        fold_usage(opened)
        find_idle(opened, now_ms)
        with opened.transaction() as connection:
            if isinstance(asked, Period):
                asked = zones.in_zone(connection, asked)
                return named(connection, "idle", asked.start_ms, asked.end_ms)
            return named(connection, "idle", now_ms if now else now_ms - asked * DAY_MS, now_ms + 1)


def row_of(one: Mapping[str, Any]) -> dict[str, str]:
    """A finding as people read it, by COLUMNS; empty where something is unknown or unpriced."""
    from gpuledger_collector.accounting.money import MICRO, format_minor, minor_digits
    from gpuledger_collector.accounting.period import format_instant
    from gpuledger_collector.accounting.quantity import round_half_even_div

    def money(micro: int | None) -> str:
        if micro is None or one["currency"] is None:
            return ""
        digits = minor_digits(one["currency"])
        return format_minor(round_half_even_div(micro, MICRO // 10**digits), digits)

    return {
        "node": one["evidence"].get("node", ""),
        "gpu": "" if one["gpu_index"] is None else str(one["gpu_index"]),
        "accelerator": one["subject"],
        "model": one["model"] or "",
        "state": one["state"],
        "team": one["team"],
        "workload": one["workload_name"] or one["workload"] or "",
        "user": one["user_name"] or "",
        "since": format_instant(one["since_ms"]),
        "until": "" if one["resolved_ms"] is None else format_instant(one["resolved_ms"]),
        "hours": f"{(one['until_ms'] - one['since_ms']) / 3_600_000:.1f}",
        "confidence": f"{one['confidence']:.2f}",
        "cost": money(one["cost_micro"]),
        "per_day": money(one["per_day_micro"]) if one["resolved_ms"] is None else "",
        "currency": one["currency"] or "",
    }


def emit(rows: Sequence[Mapping[str, str]], found: Sequence[Mapping[str, Any]], shape: Shape) -> None:
    """Print the rows."""
    if shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import neutral

        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: neutral(cell) for name, cell in row.items()} for row in rows)
    elif shape is Shape.json:
        import json

        print(json.dumps([{"key": one["key"], **row} for one, row in zip(found, rows, strict=False)], indent=2))
    else:
        _table(rows, found)


def _table(rows: Sequence[Mapping[str, str]], found: Sequence[Mapping[str, Any]]) -> None:
    from gpuledger_collector.export.tables import Table

    shown = ("node", "gpu", "state", "team", "workload", "user", "since", "hours", "confidence", "cost", "per_day")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in shown:
        right = name in {"hours", "confidence", "cost", "per_day"}
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] if name != "since" else row[name][:16] + "Z" for name in shown))
    print_table(table, 170)
    if len(rows) < len(found):
        print(f"... and {len(found) - len(rows)} more (--top 0 shows all)")
    print(summary(found))


def sums_up(found: Sequence[Mapping[str, Any]], by: By, shape: Shape) -> None:
    """A row for each state or team: how often, how long, what it cost, and whose cost most; dearest first."""
    from gpuledger_collector.accounting.budgets import money_text

    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        groups[one[by.value] or "(nobody)", one["currency"] or ""].append(one)
    made = []
    for (name, currency), ones in groups.items():
        known = [one["cost_micro"] for one in ones if one["cost_micro"] is not None]
        of: Counter[str] = Counter()
        for one in ones:
            of[one["workload_name"] or one["evidence"].get("node", "")] += one["cost_micro"] or 0
        hours = sum(one["until_ms"] - one["since_ms"] for one in ones) / 3_600_000
        row = {
            by.value: name,
            "findings": str(len(ones)),
            "hours": f"{hours:.1f}",
            "cost": money_text(sum(known), currency) if known and currency else "",
            "go_on": str(sum(one["resolved_ms"] is None for one in ones)),
            "mostly": ", ".join(name for name, _ in of.most_common(2) if name),
        }
        made.append((sum(known), row))
    rows = [row for _, row in sorted(made, key=lambda entry: (-entry[0], entry[1][by.value]))]
    if shape is Shape.table:
        from gpuledger_collector.export.tables import Table

        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for column in (by.value, "findings", "hours", "cost", "go_on", "mostly"):
            table.add_column(column.replace("_", " "), justify="left" if column in {by.value, "mostly"} else "right")
        for row in rows:
            table.add_row(*row.values())
        print_table(table, 170)
        print(summary(found))
    else:
        from gpuledger_collector.export.cells import rows_as

        columns = (by.value, "findings", "hours", "cost", "go_on", "mostly")
        sys.stdout.write(rows_as(shape.value, columns, [list(row.values()) for row in rows]))


def summary(found: Iterable[Mapping[str, Any]]) -> str:
    """What it all comes to, by currency."""
    from gpuledger_collector.accounting.budgets import money_text

    found = list(found)
    cost: dict[str, int] = {}
    day: dict[str, int] = {}
    for one in found:
        if one["currency"] is not None and one["cost_micro"] is not None:
            cost[one["currency"]] = cost.get(one["currency"], 0) + one["cost_micro"]
            if one["resolved_ms"] is None:
                day[one["currency"]] = day.get(one["currency"], 0) + (one["per_day_micro"] or 0)
    going = sum(one["resolved_ms"] is None for one in found)
    so_far = ", ".join(money_text(micro, currency) for currency, micro in sorted(cost.items())) or "no price known"
    more = ", ".join(money_text(micro, currency) for currency, micro in sorted(day.items())) or "nothing"
    goes = "goes" if going == 1 else "go"
    return f"{plural(len(found), 'finding')}, {going} of them {goes} on: {so_far} so far, {more} for each further day"

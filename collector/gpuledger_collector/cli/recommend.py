"""gpuledger recommend: what to do about waste, what it would have saved, and what it did save."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuledger_collector.cli.common import (
    BAD_INPUT,
    DONE,
    FINDINGS,
    Config,
    DryRun,
    Dsn,
    database,
    refuse,
    settings,
    untouched,
)
from gpuledger_collector.cli.terminal import print_table, say
from gpuledger_collector.cli.what_if import Shape

MONTH_DAYS = 30
STATES = ("open", "accepted", "rejected", "done", "expired")
WHICH = ("low", "expected", "high")
COLUMNS = (
    "id",
    "kind",
    "subject",
    "team",
    "advice",
    "state",
    *(f"{what}_{which}" for what in ("cash", "capacity", "energy") for which in WHICH),
    "currency",
    "freed_gpu_hours",
    "from",
    "to",
    "price_ids",
    "expires",
    "decided_by",
    "reason",
    "realised",
    "realised_until",
)

app = typer.Typer(
    name="recommend",
    help="What to do about waste, with its price, and what came of it.",
    invoke_without_command=True,
    epilog="Example: gpuledger recommend --format csv",
)


def register(root: typer.Typer) -> None:
    """Add `gpuledger recommend`."""
    root.add_typer(app)


@app.callback()
def recommend(
    context: typer.Context,
    state: Annotated[str, typer.Option("--state", help=f"Which: {', '.join(STATES)}, or all.")] = "open,accepted",
    team: Annotated[str | None, typer.Option("--team", help="Only this team's.")] = None,
    top: Annotated[int, typer.Option("--top", min=0, help="Only so many; 0: all.")] = 0,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="Look as of this instant, not before the last look. Default: now.")
    ] = None,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List recommendations: low, expected and high savings of the last four weeks, cash apart from freed capacity.

    Ends with 1 when there is open advice.
    """
    if context.invoked_subcommand is not None:
        return
    wanted = STATES if state == "all" else tuple(name.strip() for name in state.split(","))
    if unknown := [name for name in wanted if name not in STATES]:
        refuse(f"--state: {unknown[0]!r} is none of {', '.join(STATES)} or all")
    found, run = look(dsn, config, wanted, past("--as-of", as_of))
    chosen = [one for one in found if team in {None, one["team"]}]
    emit(chosen[: top or None], len(chosen), run, shape)
    raise typer.Exit(FINDINGS if any(one["state"] == "open" for one in chosen) else DONE)


def past(option: str, text: str | None) -> int:
    """The instant of an option (unix ms), now where it was not given; one to come is refused."""
    from gpuledger_collector.accounting.period import parse_instant
    from gpuledger_collector.wiring import now

    now_ms = round(now().timestamp() * 1000)
    if text is None:
        return now_ms
    try:
        at_ms = parse_instant(text)
    except ValueError as error:
        refuse(f"{option}: {error}")
    if at_ms > now_ms:
        refuse(f"{option}: {text} has not come yet")
    return at_ms


def look(
    dsn: str | None, config: Path | None, states: Sequence[str], now_ms: int
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Recommendations after everything that has come in was looked at, and the look itself."""
    from gpuledger_collector.accounting.period import DAY_MS, Period, format_instant
    from gpuledger_collector.jobs.find_idle import find_idle
    from gpuledger_collector.jobs.recommend import recommend
    from gpuledger_collector.services.recommendation_window import WINDOW_DAYS
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.findings.recommendations import last_run, listed
    from gpuledger_collector.wiring import tariff

    with database(dsn, config) as opened:
        with opened.transaction() as connection:
            before = last_run(connection)
        if before is not None and now_ms < before["end_ms"]:
            refuse(
                f"--as-of: advice was made up to {format_instant(before['end_ms'])}; a look does not go back behind it"
            )
        refresh(opened, Period(now_ms - (WINDOW_DAYS + 1) * DAY_MS, now_ms), now_ms)
        find_idle(opened, now_ms)
        recommend(opened, now_ms, tariff(settings(config, dsn)))
        with opened.transaction() as connection:
            return listed(connection, states), last_run(connection)


@app.command(epilog="Example: gpuledger recommend accept 12 --reason 'the notebook is stopped'")
def accept(
    number: Annotated[int, typer.Argument(metavar="ID", help="As the list shows it.")],
    reason: Annotated[str, typer.Option("--reason", help="What was decided.")] = "",
    at: Annotated[str | None, typer.Option("--at", help="When it was decided. Default: now.")] = None,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say that a recommendation is followed: from then on its realised saving is measured by the ledger."""
    decided(number, "accepted", reason, past("--at", at), dsn, config, dry_run=dry_run)


@app.command(epilog="Example: gpuledger recommend reject 12 --reason 'kept for the deadline'")
def reject(
    number: Annotated[int, typer.Argument(metavar="ID", help="As the list shows it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why not.")] = "",
    at: Annotated[str | None, typer.Option("--at", help="When it was decided. Default: now.")] = None,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say that a recommendation is not followed: it is not made again before it would have expired."""
    decided(number, "rejected", reason, past("--at", at), dsn, config, dry_run=dry_run)


def decided(
    number: int, state: str, reason: str, at_ms: int, dsn: str | None, config: Path | None, *, dry_run: bool = False
) -> None:
    """Write a decision under the name of whoever runs the command."""
    from gpuledger_collector.storage.access.audit import person
    from gpuledger_collector.storage.findings.recommendations import decide

    with database(dsn, config) as opened, opened.transaction(dry_run=dry_run) as connection:
        before = decide(connection, number, state, person(), reason, at_ms)
    if before is None:
        refuse(f"there is no recommendation {number}; `gpuledger recommend` lists them", BAD_INPUT)
    if before != "open":
        refuse(f"recommendation {number} is {before} already: only what is open is decided on", BAD_INPUT)
    print(f"recommendation {number} is {state}" + untouched(dry_run))


def row_of(one: Mapping[str, Any]) -> dict[str, str]:
    """A recommendation as people read it, by COLUMNS; empty where something is unknown or unpriced."""
    from gpuledger_collector.accounting.period import format_instant
    from gpuledger_collector.accounting.quantity import hours_decimal

    (hours,) = hours_decimal([one["freed_gpu_ns"]])
    amounts = {
        f"{what}_{which}": money(one[f"{what}_{which}_micro"], one["currency"])
        for what in ("cash", "capacity", "energy")
        for which in WHICH
    }
    until = one["realised_until_ms"]
    return {
        "id": str(one["id"]),
        "kind": one["kind"],
        "subject": one["subject"],
        "team": one["team"],
        "advice": one["advice"],
        "state": one["state"],
        **amounts,
        "currency": one["currency"] or "",
        "freed_gpu_hours": f"{hours:.2f}",
        "from": format_instant(one["start_ms"]),
        "to": format_instant(one["end_ms"]),
        "price_ids": " ".join(map(str, one["price_ids"])),
        "expires": format_instant(one["expires_ms"]),
        "decided_by": one["decided_by"],
        "reason": one["reason"],
        "realised": money(one["realised_micro"], one["currency"]),
        "realised_until": "" if until is None else format_instant(until),
    }


def money(micro: int | None, currency: str | None) -> str:
    """An amount in minor units; empty where there is none."""
    from gpuledger_collector.accounting.money import format_minor, minor_digits, to_minor_units

    if micro is None or currency is None:
        return ""
    digits = minor_digits(currency)
    return format_minor(to_minor_units([micro], digits)[0], digits)


def emit(found: Sequence[Mapping[str, Any]], count: int, run: Mapping[str, Any] | None, shape: Shape) -> None:
    """Print the rows, what they come to together, and what could not be judged."""
    rows = [row_of(one) for one in found]
    if shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import neutral

        writer = csv.writer(sys.stdout, lineterminator="\n")
        texts = {"subject", "team", "advice", "decided_by", "reason"}
        writer.writerow(COLUMNS)
        writer.writerows([neutral(row[name]) if name in texts else row[name] for name in COLUMNS] for row in rows)
    elif shape is Shape.json:
        import json

        items = [
            {**row, "key": one["key"], "evidence": one["evidence"], "realised_by": one["realised"]}
            for row, one in zip(rows, found, strict=True)
        ]
        told = {
            "items": items,
            "joint": {} if run is None else run["joint"],
            "not_evaluated": [] if run is None else run["not_evaluated"],
        }
        print(json.dumps(told, indent=2))
    else:
        _table(rows, found, count, run)


def _table(
    rows: Sequence[Mapping[str, str]], found: Sequence[Mapping[str, Any]], count: int, run: Mapping[str, Any] | None
) -> None:
    from gpuledger_collector.export.tables import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name, right in (
        ("id", True),
        ("kind", False),
        ("team", False),
        ("advice", False),
        ("cash", True),
        ("capacity", True),
        ("energy", True),
        ("", False),
        ("state", False),
        ("realised", True),
    ):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(
            row["id"],
            row["kind"],
            row["team"],
            row["advice"],
            span(row, "cash"),
            span(row, "capacity"),
            span(row, "energy"),
            row["currency"],
            row["state"],
            row["realised"] or ("not known" if row["realised_until"] else ""),
        )
    print_table(table, 170)
    if len(rows) < count:
        print(f"... and {count - len(rows)} more (--top 0 shows all)")
    for sentence in sentences(found, run):
        say(sentence)


def span(row: Mapping[str, str], what: str) -> str:
    """Expected, with low and high: `12.00 (3.00 to 15.00)`."""
    low, expected, high = (row[f"{what}_{which}"] for which in WHICH)
    if not expected:
        return "not known" if what != "energy" else ""
    return expected if low == expected == high else f"{expected} ({low} to {high})"


def sentences(found: Iterable[Mapping[str, Any]], run: Mapping[str, Any] | None) -> list[str]:
    """What it comes to together, how the month is reckoned, the prices, and what could not be judged."""
    from gpuledger_collector.accounting.budgets import money_text
    from gpuledger_collector.accounting.period import DAY_MS, format_date

    if run is None:
        return ["nothing was looked at: there is no inventory yet"]
    made = [
        f"amounts are of the observed window, {format_date(run['start_ms'])} to {format_date(run['end_ms'])}: "
        "expected (low to high)"
    ]
    window = run["end_ms"] - run["start_ms"]
    for currency, amounts in sorted(run["joint"].items()):
        if "cash" not in amounts:
            continue
        cash, capacity = amounts["cash"], amounts["capacity"]
        month = [money_text(value * MONTH_DAYS * DAY_MS // window, currency, 0) for value in cash]
        made.append(
            f"all open advice at once, counted once: {money_text(cash[1], currency)} cash "
            f"({money_text(cash[0], currency)} to {money_text(cash[2], currency)}) and capacity worth "
            f"{money_text(capacity[1], currency)} freed; extrapolated to {MONTH_DAYS} days: {month[1]} cash "
            f"({month[0]} to {month[2]})"
        )
    prices = sorted({price for one in found for price in one["price_ids"]})
    if prices:
        made.append(f"priced with rates {', '.join(map(str, prices))} of the price book")
    gaps = run["not_evaluated"]
    if gaps:
        made.append(f"could not be evaluated ({len(gaps)}):")
        made += unjudged(gaps)
    return made


def unjudged(gaps: Iterable[Mapping[str, str]]) -> list[str]:
    """A line for each reason, with whom it is about."""
    about: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        about.setdefault((gap["kind"], gap["reason"]), []).append(gap["subject"])
    made = []
    for (kind, reason), subjects in about.items():
        more = f" and {len(subjects) - 3} more" if len(subjects) > 3 else ""
        made.append(f"  {kind}: {', '.join(subjects[:3])}{more}: {reason}")
    return [*made[:20], *([f"  ... and {len(made) - 20} more reasons (--format json)"] if len(made) > 20 else [])]

"""gpuledger recommend: what to do about waste, what it would have saved, and what it did save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import (
    DAY_MS,
    Period,
    format_date,
    format_instant,
    parse_instant,
)
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.cli import options
from gpuledger_collector.cli.amounts import minor_amount
from gpuledger_collector.cli.common import dry_run_note, end_with, new_app, refuse
from gpuledger_collector.cli.output import Column, Row, emit, hidden, number, print_json
from gpuledger_collector.cli.session import Session, clock_ms, load_settings, open_session
from gpuledger_collector.insight.findings import AT_LISTED_RATES
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.stored_recommendations import WINDOW_DAYS, still_hold
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.access.audit import person
from gpuledger_collector.storage.findings.recommendations import decide, last_run, listed
from gpuledger_collector.wiring import tariff

MONTH_DAYS = 30
YEAR_2000_MS = 946_684_800_000
STATES = ("open", "accepted", "rejected", "done", "expired")
SAVINGS = ("cash", "capacity", "energy")
BOUNDS = ("low", "expected", "high")
MAX_SUBJECTS, MAX_REASONS = 3, 20
COLUMNS = (
    number("id"),
    Column("kind", is_optional=True),
    hidden("subject"),
    Column("team"),
    Column("advice"),
    *(number(name, is_optional=name != "cash") for name in SAVINGS),
    Column("currency"),
    Column("state"),
    number("realized_text", "realized", is_optional=True),
)
CSV_COLUMNS = (
    *(Column(name) for name in ("id", "kind", "subject", "team", "advice", "state")),
    *(number(f"{saving}_{bound}") for saving in SAVINGS for bound in BOUNDS),
    Column("currency"),
    number("freed_gpu_hours"),
    *(Column(name) for name in ("from", "to", "price_ids", "expires", "decided_by", "reason")),
    number("realized"),
    Column("realized_until"),
)
Number = Annotated[int, Argument(metavar="ID", help="As the list shows it.")]
DecidedAt = Annotated[
    str | None, Option("--at", metavar="INSTANT", help="When it was decided; else now.")
]

app = new_app(
    name="recommend",
    help="What to do about waste, with its price, and what came of it.",
    invoke_without_command=True,
)


@app.callback(epilog="Example: gpuledger recommend --format csv")
def recommend(
    context: typer.Context,
    state: Annotated[
        str, Option("--state", help=f"Which: {', '.join(STATES)}, or all.")
    ] = "open,accepted",
    team: Annotated[str | None, Option("--team", help="Only this team's.")] = None,
    top: options.Top = 0,
    fresh: Annotated[
        bool,
        Option(
            "--fresh", help="Compute them again, also when nothing that they rest on has changed."
        ),
    ] = False,
    as_of: Annotated[
        str | None,
        Option(
            "--as-of",
            metavar="INSTANT",
            help="Judge as of this instant, not before the last time; else now.",
        ),
    ] = None,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List recommendations: low, expected and high savings of the last four weeks, cash apart from
    freed capacity.

    Those that the collector computed last are read while nothing that they rest on has changed; the
    list says of when they are. Otherwise they are computed again, at the latest after
    `recommend_seconds` of the settings.

    With --exit-code it ends with 1 when a recommendation is open.
    """
    if context.invoked_subcommand is not None:
        return
    states = STATES if state == "all" else tuple(name.strip() for name in state.split(","))
    if unknown := [name for name in states if name not in STATES]:
        refuse(f"--state: {unknown[0]!r} is none of {', '.join(STATES)} or all")
    at_ms = past_instant("--as-of", as_of)
    with open_session(dsn, config) as session:
        settings = load_settings(config, dsn)
        refresh_recommendations(session, at_ms, settings, fresh=fresh or as_of is not None)
        with session.database.transaction() as connection:
            recommendations, run = listed(connection, states), last_run(connection)
    chosen = [item for item in recommendations if team in {None, item["team"]}]
    print_recommendations(chosen[: top or None], len(chosen), run, form)
    end_with(any(item["state"] == "open" for item in chosen), exit_code)


def past_instant(option: str, text: str | None) -> int:
    """The instant of an option (unix ms), now where it is not given; a future one is refused."""
    now_ms = clock_ms()
    if text is None:
        return now_ms
    try:
        at_ms = parse_instant(text)
    except ValueError as error:
        refuse(f"{option}: {error}")
    if not YEAR_2000_MS <= at_ms <= now_ms:
        refuse(
            f"{option}: {text} is {'in the future' if at_ms > now_ms else 'before the year 2000'}"
        )
    return at_ms


def refresh_recommendations(
    session: Session, now_ms: int, settings: Settings, *, fresh: bool
) -> None:
    """Bring the recommendations up to date with everything that has arrived; a read replica has the
    last ones.

    `fresh` makes them again also where the last ones still hold.
    """
    if session.database.standby:
        return
    with session.database.transaction() as connection:
        before = last_run(connection)
    if before is not None and now_ms < before["end_ms"]:
        last = format_instant(before["end_ms"])
        refuse(
            f"--as-of: recommendations were made as of {last}; they are not made again for an"
            " earlier instant"
        )
    refresh(session.database, Period(now_ms - (WINDOW_DAYS + 1) * DAY_MS, now_ms), now_ms)
    prices = tariff(settings)
    if not fresh:
        with session.database.transaction(read_only=True) as connection:
            if still_hold(connection, now_ms, settings.recommend_seconds * 1000, prices):
                return
    # Here, because they take longer to import than the stored recommendations to be read.
    from gpuledger_collector.services.idle_search import find_idle
    from gpuledger_collector.services.recommendation_search import recommend as make_recommendations

    find_idle(session.database, now_ms)
    make_recommendations(session.database, now_ms, prices)


@app.command(epilog="Example: gpuledger recommend accept 12 --reason 'the notebook is stopped'")
def accept(
    number: Number,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="What was decided.")] = "",
    at: DecidedAt = None,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Accept a recommendation: from then on the ledger measures its realized saving."""
    with open_session(dsn, config) as session:
        record_decision(session, number, "accepted", reason, past_instant("--at", at), dry_run)


@app.command(epilog="Example: gpuledger recommend reject 12 --reason 'kept for the deadline'")
def reject(
    number: Number,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why not.")] = "",
    at: DecidedAt = None,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Reject a recommendation: it is not made again before it would have expired."""
    with open_session(dsn, config) as session:
        record_decision(session, number, "rejected", reason, past_instant("--at", at), dry_run)


def record_decision(
    session: Session, number: int, state: str, reason: str, at_ms: int, dry_run: bool
) -> None:
    """Record a decision under the name of whoever runs the command."""
    with session.database.transaction(dry_run=dry_run) as connection:
        before = decide(connection, number, state, person(), reason, at_ms)
    if before is None:
        refuse(f"there is no recommendation {number}; `gpuledger recommend` lists them")
    if before != "open":
        refuse(f"recommendation {number} is {before} already: only open ones are decided on")
    print(f"recommendation {number} is {state}" + dry_run_note(dry_run))


def to_row(item: Mapping[str, Any]) -> Row:
    """A recommendation as text, by CSV_COLUMNS; empty where something is unknown or unpriced."""
    (hours,) = hours_decimal([item["freed_gpu_ns"]])
    amounts = {
        f"{saving}_{bound}": minor_amount(item[f"{saving}_{bound}_micro"], item["currency"])
        for saving in SAVINGS
        for bound in BOUNDS
    }
    until_ms = item["realized_until_ms"]
    return {
        **{
            name: item[name]
            for name in ("kind", "subject", "team", "advice", "state", "decided_by", "reason")
        },
        **amounts,
        "id": str(item["id"]),
        "currency": item["currency"] or "",
        "freed_gpu_hours": f"{hours:.2f}",
        "from": format_instant(item["start_ms"]),
        "to": format_instant(item["end_ms"]),
        "price_ids": " ".join(map(str, item["price_ids"])),
        "expires": format_instant(item["expires_ms"]),
        "realized": minor_amount(item["realized_micro"], item["currency"]),
        "realized_until": "" if until_ms is None else format_instant(until_ms),
    }


def print_recommendations(
    items: Sequence[Mapping[str, Any]],
    count: int,
    run: Mapping[str, Any] | None,
    form: options.Format,
) -> None:
    """Print the rows, what they amount to together, and what could not be evaluated."""
    rows = [to_row(item) for item in items]
    if form is options.Format.csv:
        emit(form, CSV_COLUMNS, rows)
    elif form is options.Format.json:
        more = [
            {"key": item["key"], "evidence": item["evidence"], "realized_by": item["realized"]}
            for item in items
        ]
        print_json(
            {
                "as_of": None if run is None else format_instant(run["made_ms"]),
                "items": [{**row, **extra} for row, extra in zip(rows, more, strict=True)],
                "joint": {} if run is None else run["joint"],
                "not_evaluated": [] if run is None else run["not_evaluated"],
            }
        )
    else:
        left = count - len(rows)
        footer = [
            *([f"... and {left} more (--top 0 shows all)"] if left else []),
            *sentences(items, run),
        ]
        emit(form, COLUMNS, [to_table_row(row) for row in rows], footer)


def to_table_row(row: Row) -> Row:
    """A row with each saving in one cell."""
    realized = row["realized"] or ("not known" if row["realized_until"] else "")
    return {
        **row,
        **{saving: saving_text(row, saving) for saving in SAVINGS},
        "realized_text": realized,
    }


def saving_text(row: Row, saving: str) -> str:
    """Expected, with low and high: `12.00 (3.00 to 15.00)`."""
    low, expected, high = (row[f"{saving}_{bound}"] for bound in BOUNDS)
    if not expected:
        return "not known" if saving != "energy" else ""
    return str(expected) if low == expected == high else f"{expected} ({low} to {high})"


def sentences(items: Iterable[Mapping[str, Any]], run: Mapping[str, Any] | None) -> list[str]:
    """The joint savings, their extrapolation to a month, the prices, and what could not be
    evaluated.
    """
    if run is None:
        return ["nothing was evaluated: there is no inventory yet"]
    lines = [
        (
            f"amounts are of the observed window, {format_date(run['start_ms'])} to"
            f" {format_date(run['end_ms'])}, {AT_LISTED_RATES}: expected (low to high)"
        ),
        f"as of {format_instant(run['made_ms'])}; --fresh computes them again",
    ]
    window_ms = run["end_ms"] - run["start_ms"]
    for currency, amounts in sorted(run["joint"].items()):
        if "cash" not in amounts:
            continue
        cash, capacity = amounts["cash"], amounts["capacity"]
        month = [
            f"{currency} {Money(value * MONTH_DAYS * DAY_MS // window_ms, currency).estimate()}"
            for value in cash
        ]
        lines.append(
            f"all open advice together, counted once: {Money(cash[1], currency)} cash"
            f" ({Money(cash[0], currency)} to {Money(cash[2], currency)}) and capacity worth"
            f" {Money(capacity[1], currency)} freed; extrapolated to {MONTH_DAYS} days: {month[1]}"
            f" cash ({month[0]} to {month[2]})"
        )
    prices = sorted({price for item in items for price in item["price_ids"]})
    if prices:
        lines.append(f"priced with rates {', '.join(map(str, prices))} of the price book")
    if run["not_evaluated"]:
        lines.append(f"could not be evaluated ({len(run['not_evaluated'])}):")
        lines += reason_lines(run["not_evaluated"])
    return lines


def reason_lines(gaps: Iterable[Mapping[str, str]]) -> list[str]:
    """A line for each reason, with its subjects."""
    subjects_by_reason: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        subjects_by_reason.setdefault((gap["kind"], gap["reason"]), []).append(gap["subject"])
    lines = []
    for (kind, reason), subjects in subjects_by_reason.items():
        more = f" and {len(subjects) - MAX_SUBJECTS} more" if len(subjects) > MAX_SUBJECTS else ""
        lines.append(f"  {kind}: {', '.join(subjects[:MAX_SUBJECTS])}{more}: {reason}")
    left = len(lines) - MAX_REASONS
    return [
        *lines[:MAX_REASONS],
        *([f"  ... and {left} more reasons (--format json)"] if left > 0 else []),
    ]

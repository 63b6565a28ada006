"""gpuledger recommend: what to do about waste, what it would have saved, and what it did save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import DAY_MS, format_date, format_instant, parse_instant
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import dry_run_note, end_with, new_app, refuse
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import Session, clock_ms, load_settings, open_session
from gpuledger_collector.export.recommendations import ADVICE, RECOMMENDATIONS
from gpuledger_collector.insight.findings import AT_LISTED_RATES
from gpuledger_collector.insight.recommendation_record import (
    STATES,
    RecommendationRun,
    StoredRecommendation,
)
from gpuledger_collector.services.findings import WholeFleet
from gpuledger_collector.services.recommendations import (
    LaterRun,
    decide_recommendation,
    list_recommendations,
    refresh_recommendations,
)
from gpuledger_collector.wiring import tariff

MONTH_DAYS = 30
YEAR_2000_MS = 946_684_800_000
MAX_SUBJECTS, MAX_REASONS = 3, 20
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
        try:
            refresh_recommendations(
                session.database,
                at_ms,
                settings.recommend_seconds * 1000,
                tariff(settings),
                fresh=fresh or as_of is not None,
            )
        except LaterRun as error:
            refuse(
                f"--as-of: recommendations were made as of {format_instant(error.end_ms)}; they are"
                " not made again for an earlier instant"
            )
        with session.database.transaction() as connection:
            listed = list_recommendations(connection, states, WholeFleet())
    chosen = [item for item in listed.items if team in {None, item.team}]
    print_recommendations(chosen[: top or None], len(chosen), listed.run, form)
    end_with(any(item.state == "open" for item in chosen), exit_code)


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
    before = decide_recommendation(session.database, number, state, reason, at_ms, dry_run=dry_run)
    if before is None:
        refuse(f"there is no recommendation {number}; `gpuledger recommend` lists them")
    if before != "open":
        refuse(f"recommendation {number} is {before} already: only open ones are decided on")
    print(f"recommendation {number} is {state}" + dry_run_note(dry_run))


def print_recommendations(
    items: Sequence[StoredRecommendation],
    count: int,
    run: RecommendationRun | None,
    form: options.Format,
) -> None:
    """Print the rows, what they amount to together, and what could not be evaluated."""
    if form is options.Format.json:
        print_json(
            {
                "as_of": None if run is None else format_instant(run.made_ms),
                "items": [RECOMMENDATIONS.texts(item) for item in items],
                "joint": {} if run is None else run.joint,
                "not_evaluated": [] if run is None else run.not_evaluated,
            }
        )
        return
    left = count - len(items)
    footer = [
        *([f"... and {left} more (--top 0 shows all)"] if left else []),
        *sentences(items, run),
    ]
    emit_report(form, ADVICE if form is options.Format.table else RECOMMENDATIONS, items, footer)


def sentences(items: Iterable[StoredRecommendation], run: RecommendationRun | None) -> list[str]:
    """The joint savings, their extrapolation to a month, the prices, and what could not be
    evaluated.
    """
    if run is None:
        return ["nothing was evaluated: there is no inventory yet"]
    lines = [
        (
            f"amounts are of the observed window, {format_date(run.start_ms)} to"
            f" {format_date(run.end_ms)}, {AT_LISTED_RATES}: expected (low to high)"
        ),
        f"as of {format_instant(run.made_ms)}; --fresh computes them again",
    ]
    window_ms = run.end_ms - run.start_ms
    for currency, amounts in sorted(run.joint.items()):
        if "cash" not in amounts:
            continue
        cash, capacity = (
            [Money(micro, currency) for micro in amounts[name] if micro is not None]
            for name in ("cash", "capacity")
        )
        month = [
            Money(amount.micro * MONTH_DAYS * DAY_MS // window_ms, currency).estimate()
            for amount in cash
        ]
        lines.append(
            f"all open advice together, counted once: {cash[1]} cash ({cash[0]} to {cash[2]}) and"
            f" capacity worth {capacity[1]} freed; extrapolated to {MONTH_DAYS} days: {currency}"
            f" {month[1]} cash ({currency} {month[0]} to {currency} {month[2]})"
        )
    prices = sorted({price for item in items for price in item.price_ids})
    if prices:
        lines.append(f"priced with rates {', '.join(map(str, prices))} of the price book")
    if run.not_evaluated:
        lines.append(f"could not be evaluated ({len(run.not_evaluated)}):")
        lines += reason_lines(run.not_evaluated)
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

"""gpuledger disputes: an owner contests lines, the evidence is sealed, finance answers and decides."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.disputes import (
    RESOLVED,
    STATES,
    BadStep,
    Dispute,
    Remedy,
    Reversal,
)
from gpuledger_collector.accounting.owner_tree import path_of
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import (
    FINDINGS,
    declared_owner,
    dry_run_note,
    new_app,
    refuse,
    time_range,
)
from gpuledger_collector.cli.output import Column, Row, emit, print_json
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.disputes import (
    amounts,
    as_object,
    as_text,
    days_text,
    difference_text,
    line_cells,
    more_or_less,
    move_lines,
    owner_text,
    reversal_lines,
)
from gpuledger_collector.services.dispute_preview import (
    affected_days,
    preview_decision,
    preview_reversals,
)
from gpuledger_collector.services.hourly_usage import fold_requested
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import decided_costs, disputes
from gpuledger_collector.storage.billing.decided_costs import Costs
from gpuledger_collector.storage.billing.dispute_evidence import line_id
from gpuledger_collector.storage.billing.disputes import Contest, NoDispute
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_common.plurals import plural

app = new_app(
    name="disputes", help="Lines that owners contest, with their evidence.", no_args_is_help=True
)
SHOWN_LINES = 20
OPTIONS = ("owner", "accelerator", "workload", "line", "reason", "note")
"""Errors of the ledger that begin with one of these are about the option of that name."""
COLUMNS = tuple(Column(name) for name in ("id", "state", "owner", "days", "amount", "reason"))

Number = Annotated[int, Argument(metavar="ID", min=1, help="Number of the dispute.")]
Owner = Annotated[
    list[str],
    Option("--owner", metavar="TEAM|LEVEL=VALUE", help="Whose lines; may be repeated per level."),
]
Accelerator = Annotated[
    str | None, Option("--accelerator", metavar="UUID", help="Of this accelerator.")
]
Workload = Annotated[str | None, Option("--workload", metavar="ID", help="Of this workload.")]
Line = Annotated[
    str | None, Option("--line", metavar="HASH", help="This line, by the start of its hash.")
]


@app.command(
    epilog="Example: gpuledger disputes lines --owner vision --from 2026-10-01 --to 2026-10-03"
)
def lines(
    owner: Owner,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    accelerator: Accelerator = None,
    workload: Workload = None,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show the lines that an owner is charged, each with the hash that names it."""
    payer = declared_owner(_as_levels(owner))
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        contest = Contest(payer, session.rated(asked), accelerator, workload, None)
        with session.database.transaction() as connection:
            try:
                charges = disputes.lines_of(connection, contest)
            except ValueError as error:
                refuse(f"--{error}")
    # The table shows the start of the hash, which is enough for --line.
    rows: list[Row] = [{"id": line_id(line), **line_cells(line)} for line in charges]
    if form is not options.Format.table:
        emit(form, [*map(Column, rows[0] if rows else ("id",))], rows)
        return
    for row in rows:
        say("  ".join((row["id"][:12], *map(str, list(row.values())[1:]))))
    print(plural(len(rows), "line"))


@app.command(
    "open",
    epilog=(
        "Example: gpuledger disputes open --owner vision --from 2026-10-01 --to 2026-10-03 --reason"
        ' "not us"'
    ),
)
def open_dispute(
    owner: Owner,
    reason: Annotated[
        str, Option("--reason", metavar="TEXT", help="Why these lines are contested.")
    ],
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    accelerator: Accelerator = None,
    workload: Workload = None,
    line: Line = None,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Contest what an owner is charged; the evidence is attached and sealed as it stands now.

    Nothing changes in the ledger until the dispute is resolved.
    """
    payer = declared_owner(_as_levels(owner))
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        contest = Contest(payer, session.rated(asked), accelerator, workload, line)
        dispute = _step(
            session,
            lambda connection, person: disputes.open_dispute(
                connection, contest, reason, person, session.now_ms
            ),
            dry_run,
        )
    name = "a dispute" if dry_run else f"dispute {dispute.id}"
    sealed = f"{amounts(dispute.cost)} contested; seal of the evidence {dispute.seal}"
    say(f"{name} is open: {sealed}" + dry_run_note(dry_run))


@app.command("list", epilog="Example: gpuledger disputes list --all")
def list_disputes(
    everything: Annotated[bool, Option("--all", help="Resolved ones too.")] = False,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show the disputes that wait for an answer or a decision, newest first."""
    states = [state for state in STATES if everything or state not in RESOLVED]
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        listed = disputes.listed(connection, states)
    if form is options.Format.json:
        print_json([as_object(dispute) for dispute in listed])
        return
    rows = [
        {
            "id": dispute.id,
            "state": dispute.state,
            "owner": owner_text(dispute.owner),
            "days": days_text(dispute),
            "amount": amounts(dispute.cost),
            "reason": dispute.reason,
        }
        for dispute in listed
    ]
    emit(form, COLUMNS, rows, [plural(len(rows), "dispute")])


@app.command(epilog="Example: gpuledger disputes show 3 --evidence 3.json")
def show(
    number: Number,
    evidence: Annotated[
        Path | None,
        Option("--evidence", metavar="FILE", help="Write the evidence; its sha256sum is the seal."),
    ] = None,
    form: options.PageForm = options.PageFormat.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show a dispute: the statements, the lines, the evidence, and what became of them.

    Ends with 1 when the evidence is not what was sealed.
    """
    with open_session(dsn, config) as session:
        with session.database.transaction() as connection:
            try:
                dispute = disputes.read(connection, number)
            except NoDispute as error:
                refuse(str(error))
            text = disputes.evidence(connection, number)
            holds = disputes.seal_holds(connection, dispute)
            billed, rated = disputes.billed_now(connection, dispute)
        changes = _effect_of_acceptance(session, dispute)
    if evidence is not None:
        evidence.write_text(text, encoding="utf-8", newline="")
    content = json.loads(text)
    if form is options.PageFormat.json:
        standing = {"seal_holds": holds, "billed_now": billed, "rated": rated, "evidence": content}
        print_json({**as_object(dispute), **standing})
    else:
        sys.stdout.write(as_text(dispute, content, holds, billed, rated, SHOWN_LINES, changes))
    if not holds:
        raise typer.Exit(FINDINGS)


@app.command(
    epilog='Example: gpuledger disputes answer 3 --note "job 42 was submitted by your user mk"'
)
def answer(
    number: Number,
    note: Annotated[str, Option("--note", metavar="TEXT", help="The answer.")],
    from_owner: Annotated[
        bool,
        Option(
            "--from-owner", help="It comes from the owner: the dispute waits for an answer again."
        ),
    ] = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Add a statement to a dispute, as finance."""
    with open_session(dsn, config) as session:
        dispute = _step(
            session,
            lambda connection, person: disputes.answer(
                connection, number, note, person, session.now_ms, from_owner=from_owner
            ),
            dry_run,
        )
    print(f"dispute {number} is {dispute.state}" + dry_run_note(dry_run))


@app.command(
    epilog=(
        'Example: gpuledger disputes resolve 3 --accept --to team=speech --note "borrowed, see'
        ' ticket 9"'
    )
)
def resolve(
    number: Number,
    note: Annotated[str, Option("--note", metavar="TEXT", help="The reason of the decision.")],
    accept: Annotated[bool, Option("--accept", help="The owner is right.")] = False,
    reject: Annotated[bool, Option("--reject", help="The lines stay as they are.")] = False,
    to: Annotated[
        list[str] | None,
        Option(
            "--to",
            metavar="LEVEL=VALUE",
            help="With --accept: who pays for the time; repeated per level.",
        ),
    ] = None,
    nobody: Annotated[
        bool, Option("--unattributed", help="With --accept: nobody is known to pay.")
    ] = False,
    unavailable: Annotated[
        bool, Option("--unavailable", help="With --accept: the accelerator could not be used.")
    ] = False,
    reverse: Annotated[
        bool,
        Option(
            "--reverse", help="With --accept, of adjustments: take them back by opposite entries."
        ),
    ] = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Decide a dispute, once.

    Accepting moves the contested time to its owner, or takes contested adjustments back.

    Only time that is charged to the contesting owner moves; what moves is shown, with --dry-run
    before anything does. Days of open months are rated again; what lies in a closed month becomes
    corrections of an open one.
    """
    remedy = _remedy(accept, reject, to or [], nobody, unavailable, reverse)
    days = 0

    def decide(connection: Connection, person: str) -> Dispute:
        nonlocal days
        dispute, days = disputes.resolve(connection, number, remedy, note, person, session.now_ms)
        return dispute

    with open_session(dsn, config) as session:
        if remedy is None:
            dispute = _step(session, decide, dry_run)
            print(f"dispute {number} is {dispute.state}" + dry_run_note(dry_run))
            return
        if isinstance(remedy, Reversal):
            _take_back(session, number, decide, dry_run)
            return
        affected = _affected(session, number, remedy)
        if not dry_run:
            session.rate(_hull(affected))
        before, moves = _preview(session, number, remedy, affected)
        dispute = _step(session, decide, dry_run)
        print(f"dispute {number} is {dispute.state}" + dry_run_note(dry_run))
        print("\n".join(["this would move:" if dry_run else "this moves:", *moves]))
        if dry_run:
            return
        session.rate(_hull(affected))
        with session.database.transaction(read_only=True) as connection:
            after = decided_costs.charged(connection, affected)
    payer = None if remedy.owner is None else path_of(remedy.owner)
    loss, gain = decided_costs.change(before, after, payer)
    say(f"{plural(days, 'day')} rated again; {difference_text(dispute.owner, loss, payer, gain)}")


def _take_back(
    session: Session, number: int, decide: Callable[[Connection, str], Dispute], dry_run: bool
) -> None:
    """Accept a dispute about adjustments: show what their reversals book, and by how much the
    ledger changed.
    """
    try:
        with session.database.transaction(read_only=True) as connection:
            shares = preview_reversals(connection, disputes.proposed_reversals(connection, number))
    except (BadStep, NoDispute, ValueError) as error:
        refuse(str(error))
    days = [
        session.calendar.day_of(day_ms) for day_ms in sorted({share.day_ms for share in shares})
    ]
    if not dry_run:
        for day in days:
            session.rate(day)
    with session.database.transaction(read_only=True) as connection:
        before = decided_costs.charged(connection, days)
    dispute = _step(session, decide, dry_run)
    print(f"dispute {number} is {dispute.state}" + dry_run_note(dry_run))
    print("this would be booked:" if dry_run else "this is booked:")
    for sentence in reversal_lines(shares, session.calendar):
        say(sentence)
    if dry_run:
        return
    for day in days:
        session.rate(day)
    with session.database.transaction(read_only=True) as connection:
        after = decided_costs.charged(connection, days)
    loss, _ = decided_costs.change(before, after, None)
    paid = more_or_less({currency: -micro for currency, micro in loss.items() if micro})
    say(f"{plural(len(days), 'day')} rated again; {owner_text(dispute.owner)} pays {paid}")


def _affected(session: Session, number: int, remedy: Remedy) -> list[Period]:
    """The days whose charges depend on a decision; refuses a decision that is not possible."""
    with session.database.transaction(read_only=True) as connection:
        try:
            decisions = disputes.proposed(connection, number, remedy)
        except (BadStep, NoDispute, ValueError) as error:
            refuse(str(error))
        return affected_days(connection, decisions, session.now_ms)


def _hull(days: Sequence[Period]) -> Period:
    return Period(days[0].start_ms, days[-1].end_ms)


def _remedy(
    accept: bool, reject: bool, to: list[str], nobody: bool, unavailable: bool, reverse: bool
) -> Remedy | Reversal | None:
    targets = bool(to) + nobody + unavailable + reverse
    if accept == reject:
        refuse("give either --accept or --reject")
    if reject:
        if targets:
            refuse(
                "--reject changes nothing: --to, --unattributed, --unavailable and --reverse go"
                " with --accept"
            )
        return None
    if targets != 1:
        refuse(
            "--accept: say who pays for the time, by --to team=NAME, --unattributed or"
            " --unavailable; of adjustments, --reverse"
        )
    if reverse:
        return Reversal()
    if unavailable:
        return Remedy(None)
    return Remedy({} if nobody else declared_owner(_as_levels(to), "--to"))


def _as_levels(owner: list[str]) -> list[str]:
    """A bare name is a team's."""
    return [text if "=" in text else f"team={text}" for text in owner]


def _step(session: Session, work: Callable[[Connection, str], Dispute], dry_run: bool) -> Dispute:
    """Take a step of a dispute in one transaction, undone in a dry run; what is not possible is
    refused.
    """
    try:
        with session.database.transaction(dry_run=dry_run) as connection:
            return work(connection, audit.person())
    except (BadStep, NoDispute, ValueError) as error:
        refuse(f"--{error}" if str(error).partition(":")[0] in OPTIONS else str(error))


def _preview(
    session: Session, number: int, remedy: Remedy, days: Sequence[Period]
) -> tuple[Costs, list[str]]:
    """What the ledger charges for the affected days, and what accepting a dispute moves, in
    sentences.
    """
    with session.database.transaction(Lock.LEDGER, dry_run=True) as connection:
        before = decided_costs.charged(connection, days)
        # Evidence that arrived since the last fold moves as well; it is folded here and rolled back
        # with the rest.
        fold_requested(connection, usage.recompute_requests(connection, _hull(days)))
        return before, _moves(session, connection, number, remedy)


def _effect_of_acceptance(session: Session, dispute: Dispute) -> list[str]:
    """What accepting an open dispute would move away from its owner, or take back; nothing for a
    decided one.
    """
    if dispute.state in RESOLVED:
        return []
    with session.database.transaction(read_only=True) as connection:
        if disputes.is_about_adjustments(connection, dispute.id):
            try:
                opposites = disputes.proposed_reversals(connection, dispute.id)
            except ValueError as error:
                return [f"  nothing: {error}"]
            return reversal_lines(preview_reversals(connection, opposites), session.calendar)
        try:
            return _moves(session, connection, dispute.id, Remedy({}))
        except ValueError as error:
            return [f"  nothing: {error}"]


def _moves(session: Session, connection: Connection, number: int, remedy: Remedy) -> list[str]:
    """What accepting a dispute moves, in sentences. Raises BadStep, NoDispute, ValueError."""
    decisions = disputes.proposed(connection, number, remedy)
    return move_lines(preview_decision(connection, decisions, session.now_ms), session.calendar)

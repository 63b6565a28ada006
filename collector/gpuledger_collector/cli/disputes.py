"""gpuledger disputes: an owner contests lines, the evidence is sealed, finance answers and decides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.adjustments import EntryRefused
from gpuledger_collector.accounting.contested_lines import Contest
from gpuledger_collector.accounting.dispute_moves import Decided
from gpuledger_collector.accounting.disputes import (
    RESOLVED,
    BadStep,
    DisputeRecord,
    DisputeRefused,
    NoDispute,
    Remedy,
    Reversal,
)
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import (
    FINDINGS,
    declared_owner,
    dry_run_note,
    new_app,
    refuse,
    time_range,
)
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.disputes import (
    DISPUTES,
    LINES,
    LINES_TABLE,
    amounts,
    as_object,
    as_text,
    difference_text,
    more_or_less,
    move_lines,
    owner_text,
    record_object,
    reversal_lines,
)
from gpuledger_collector.services import disputes
from gpuledger_collector.services.database import person
from gpuledger_collector.services.dispute_preview import Effect, preview_default
from gpuledger_collector.services.disputes import Resolution
from gpuledger_collector.services.findings import WholeFleet
from gpuledger_common.plurals import plural

app = new_app(
    name="disputes", help="Lines that owners contest, with their evidence.", no_args_is_help=True
)
SHOWN_LINES = 20
OPTIONS = ("owner", "accelerator", "workload", "line", "reason", "note")
"""Errors of the ledger that begin with one of these are about the option of that name."""

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
        contest = Contest(payer, session.rate_range(asked), accelerator, workload, None)
        try:
            charges = disputes.list_contestable_lines(session.database, contest)
        except DisputeRefused as error:
            refuse(f"--{error}")
    if form is options.Format.table:
        emit_report(form, LINES_TABLE, charges, [plural(len(charges), "line")])
    else:
        emit_report(form, LINES if charges else LINES.select("id"), charges)


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
        contest = Contest(payer, session.rate_range(asked), accelerator, workload, line)
        with _refusals(), session.database.transaction(dry_run=dry_run) as connection:
            dispute = disputes.open_dispute(connection, contest, reason, person(), session.now_ms)
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
    """Show the disputes that wait for an answer or a resolution, newest first."""
    with open_session(dsn, config) as session:
        listed = disputes.list_disputes(session.database, WholeFleet(), everything=everything)
    if form is options.Format.json:
        print_json([as_object(dispute) for dispute in listed])
        return
    emit_report(form, DISPUTES, listed, [plural(len(listed), "dispute")])


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
        try:
            record = disputes.read_record(session.database, number, WholeFleet())
        except NoDispute as error:
            refuse(str(error))
        changes = _effect_of_acceptance(session, record)
    if evidence is not None:
        evidence.write_text(record.evidence, encoding="utf-8", newline="")
    if form is options.PageFormat.json:
        print_json(record_object(record))
    else:
        sys.stdout.write(as_text(record, SHOWN_LINES, changes))
    if not record.seal_holds:
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
    with open_session(dsn, config) as session, _refusals():
        dispute = disputes.answer_dispute(
            session.database,
            number,
            note,
            person(),
            session.now_ms,
            from_owner=from_owner,
            viewer=WholeFleet(),
            dry_run=dry_run,
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
    with open_session(dsn, config) as session:
        resolution = Resolution(number, remedy, note, person(), session.now_ms)
        with _refusals():
            if remedy is None:
                dispute, _ = disputes.resolve_dispute(session.database, resolution, dry_run=dry_run)
                print(f"dispute {number} is {dispute.state}" + dry_run_note(dry_run))
                return
            accepted = disputes.accept_dispute(
                session.database, resolution, session.rate, dry_run=dry_run
            )
        print(f"dispute {number} is {accepted.dispute.state}" + dry_run_note(dry_run))
        for sentence in _effect_lines(session, accepted.effect, dry_run):
            say(sentence)
        if dry_run:
            return
        loss, gain = disputes.measure_change(session.database, accepted, session.rate)
    owner = accepted.dispute.owner
    if isinstance(remedy, Reversal):
        paid = more_or_less({currency: -micro for currency, micro in loss.items() if micro})
        say(f"{plural(len(accepted.days), 'day')} rated again; {owner_text(owner)} pays {paid}")
        return
    changed = difference_text(owner, loss, accepted.recipient, gain)
    say(f"{plural(accepted.to_rate, 'day')} rated again; {changed}")


def _effect_lines(session: Session, effect: Effect, dry_run: bool) -> list[str]:
    """What an acceptance changes, in sentences."""
    if isinstance(effect, Decided):
        heading = "this would move:" if dry_run else "this moves:"
        return [heading, *move_lines(effect, session.calendar)]
    heading = "this would be booked:" if dry_run else "this is booked:"
    return [heading, *reversal_lines(effect, session.calendar)]


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


@contextmanager
def _refusals() -> Iterator[None]:
    """Refuse a step of a dispute that is not possible."""
    try:
        yield
    except (BadStep, NoDispute, DisputeRefused, EntryRefused) as error:
        refuse(f"--{error}" if str(error).partition(":")[0] in OPTIONS else str(error))


def _effect_of_acceptance(session: Session, record: DisputeRecord) -> list[str]:
    """What accepting an open dispute would move away from its owner, or take back; nothing for a
    decided one.
    """
    if record.dispute.state in RESOLVED:
        return []
    try:
        effect = preview_default(session.database, record, session.now_ms)
    except (DisputeRefused, EntryRefused) as error:
        return [f"  nothing: {error}"]
    if isinstance(effect, Decided):
        return move_lines(effect, session.calendar)
    return reversal_lines(effect, session.calendar)

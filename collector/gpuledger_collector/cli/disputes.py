"""gpuledger disputes: an owner contests lines, the evidence is sealed, finance answers and decides."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, DryRun, Dsn, database, declared_owner, refuse, untouched
from gpuledger_collector.cli.dispute_moves import preview, would_move
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.accounting.disputes import Dispute, Remedy
    from gpuledger_collector.accounting.ledger import ExportedCharge
    from gpuledger_collector.storage.billing.disputes import Contest
    from gpuledger_collector.storage.locks import Connection

app = typer.Typer(name="disputes", help="Lines that owners contest, with their evidence.", no_args_is_help=True)
SHOWN = 20
"""Lines of a dispute that the page shows."""

Number = Annotated[int, typer.Argument(metavar="ID", min=1, help="Number of the dispute.")]
Owner = Annotated[
    list[str], typer.Option("--owner", metavar="TEAM|LEVEL=VALUE", help="Whose lines; may be repeated per level.")
]
Start = Annotated[str, typer.Option("--from", metavar="DATE", help="First day, included.")]
End = Annotated[str, typer.Option("--to", metavar="DATE", help="Last day, not included.")]
Accelerator = Annotated[str | None, typer.Option("--accelerator", metavar="UUID", help="Of this accelerator.")]
Workload = Annotated[str | None, typer.Option("--workload", metavar="ID", help="Of this workload.")]
Line = Annotated[str | None, typer.Option("--line", metavar="HASH", help="This line, by the start of its hash.")]


class Shape(enum.StrEnum):
    """Forms of the output."""

    table = "table"
    json = "json"


Form = Annotated[Shape, typer.Option("--format", help="Form of the output.")]


def register(root: typer.Typer) -> None:
    """Add `gpuledger disputes`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger disputes lines --owner vision --from 2026-10-01 --to 2026-10-03")
def lines(
    owner: Owner,
    start: Start,
    end: End,
    accelerator: Accelerator = None,
    workload: Workload = None,
    shape: Form = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Show the lines that an owner is charged, each with the hash that names it."""
    contest = _contest(owner, start, end, accelerator, workload, None)
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.billing import disputes
        from gpuledger_collector.storage.billing.dispute_evidence import line_id

        contest = _rated(opened.dsn, contest)
        with opened.transaction() as connection:
            try:
                found = disputes.lines_of(connection, contest)
            except ValueError as error:
                refuse(f"--{error}")
    rows = [(line_id(one), one) for one in found]
    if shape is Shape.json:
        from gpuledger_collector.export.cells import json_text

        print(json_text([{"id": name, **_line(one)} for name, one in rows]))
        return
    for name, one in rows:
        say("  ".join((name[:12], *(str(value) for value in _line(one).values()))))
    print(plural(len(rows), "line"))


@app.command(
    "open", epilog='Example: gpuledger disputes open --owner vision --from 2026-10-01 --to 2026-10-03 --reason "not us"'
)
def open_(
    owner: Owner,
    start: Start,
    end: End,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why these lines are contested.")],
    accelerator: Accelerator = None,
    workload: Workload = None,
    line: Line = None,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Contest what an owner is charged; the evidence is attached and sealed as it stands now.

    Nothing changes in the ledger until the dispute is resolved.
    """
    contest = _contest(owner, start, end, accelerator, workload, line)
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import audit
        from gpuledger_collector.storage.billing import disputes
        from gpuledger_collector.wiring import now

        contest = _rated(opened.dsn, contest)
        with opened.transaction(dry_run=dry_run) as connection:
            try:
                made = disputes.open_dispute(connection, contest, reason, audit.person(), int(now().timestamp() * 1000))
            except ValueError as error:
                refuse(f"--{error}" if str(error).partition(":")[0] in _OPTIONS else str(error))
    called = "a dispute" if dry_run else f"dispute {made.id}"
    say(f"{called} is open: {_amounts(made.cost)} contested; seal of the evidence {made.seal}" + untouched(dry_run))


_OPTIONS = ("owner", "accelerator", "workload", "line", "reason", "note")


@app.command("list", epilog="Example: gpuledger disputes list --all")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Resolved ones too.")] = False,
    shape: Form = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Show the disputes that wait for an answer or a decision, newest first."""
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.disputes import RESOLVED, STATES
        from gpuledger_collector.storage.billing import disputes

        wanted = [state for state in STATES if everything or state not in RESOLVED]
        with opened.transaction() as connection:
            found = disputes.listed(connection, wanted)
    if shape is Shape.json:
        from gpuledger_collector.export.cells import json_text
        from gpuledger_collector.export.disputes import as_object

        print(json_text([as_object(one) for one in found]))
        return
    for one in found:
        say(f"{one.id:>4}  {one.state:<9} {_owner(one.owner):<24} {_days(one)}  {_amounts(one.cost)}  {one.reason}")
    print(f"{len(found)} dispute{'s' * (len(found) != 1)}")


@app.command(epilog="Example: gpuledger disputes show 3 --evidence 3.json")
def show(
    number: Number,
    evidence: Annotated[
        Path | None, typer.Option("--evidence", metavar="FILE", help="Write the evidence; its sha256sum is the seal.")
    ] = None,
    shape: Form = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Show a dispute: what was said, the lines, what they rest on, and what became of them.

    Ends with 1 when the evidence is not what was sealed.
    """
    with database(dsn, config) as opened:
        from gpuledger_collector.export.cells import json_text
        from gpuledger_collector.export.disputes import as_object, as_text
        from gpuledger_collector.storage.billing import disputes

        with opened.transaction() as connection:
            one = _known(connection, number)
            text = disputes.evidence(connection, number)
            holds = disputes.seal_holds(connection, one)
            billed, rated = disputes.billed_now(connection, one)
        moves = would_move(opened.dsn, one)
    if evidence is not None:
        evidence.write_text(text, encoding="utf-8", newline="")
    content = json.loads(text)
    if shape is Shape.json:
        told = {**as_object(one), "seal_holds": holds, "billed_now": billed, "rated": rated, "evidence": content}
        print(json_text(told))
    else:
        sys.stdout.write(as_text(one, content, holds, billed, rated, SHOWN, moves))
    if not holds:
        raise typer.Exit(FINDINGS)


@app.command(epilog='Example: gpuledger disputes answer 3 --note "job 42 was submitted by your user mk"')
def answer(
    number: Number,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What is said.")],
    from_owner: Annotated[
        bool, typer.Option("--from-owner", help="The owner says it: the dispute waits for an answer again.")
    ] = False,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say something in a dispute, as finance."""

    def work(connection: Connection, who: str, now_ms: int) -> Dispute:
        from gpuledger_collector.storage.billing import disputes

        return disputes.answer(connection, number, note, who, now_ms, from_owner=from_owner)

    made = _step(dsn, config, work, dry_run=dry_run)
    print(f"dispute {number} is {made.state}" + untouched(dry_run))


@app.command(epilog='Example: gpuledger disputes resolve 3 --accept --to team=speech --note "borrowed, see ticket 9"')
def resolve(
    number: Number,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why it is decided so.")],
    accept: Annotated[bool, typer.Option("--accept", help="The owner is right.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="The lines stay as they are.")] = False,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="LEVEL=VALUE", help="With --accept: who bears the time; repeated per level."),
    ] = None,
    nobody: Annotated[bool, typer.Option("--unattributed", help="With --accept: nobody known bears it.")] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="With --accept: the accelerator could not be used.")
    ] = False,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Decide a dispute, once. Accepting moves the contested time to whom it belongs.

    Only time that is charged to the contesting owner moves; what moves is shown, with --dry-run before anything does.
    Days of open months are rated again; what lies in a closed month becomes corrections of an open one.
    """
    remedy = _remedy(accept, reject, to or [], nobody, unavailable)
    moves = [] if remedy is None else preview(dsn, config, number, remedy)
    days = 0

    def work(connection: Connection, who: str, now_ms: int) -> Dispute:
        nonlocal days
        from gpuledger_collector.storage.billing import disputes

        made, days = disputes.resolve(connection, number, remedy, note, who, now_ms)
        return made

    made = _step(dsn, config, work, dry_run=dry_run)
    print(f"dispute {number} is {made.state}" + untouched(dry_run))
    if remedy is None:
        return
    print("\n".join(["this would move:" if dry_run else "this moves:", *moves]))
    if dry_run:
        return
    with database(dsn, config) as opened:
        from gpuledger_collector.cli.progress import bar
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.billing import disputes
        from gpuledger_collector.wiring import now

        with bar("rating") as on_day:
            refresh(opened, made.period, int(now().timestamp() * 1000), on_day)
        with opened.transaction() as connection:
            billed, _ = disputes.billed_now(connection, made)
    say(
        f"{plural(days, 'day')} rated again; {_owner(made.owner)} bore {_amounts(made.cost)}, "
        f"and bears {_amounts(billed)} now"
    )


def _remedy(accept: bool, reject: bool, to: list[str], nobody: bool, unavailable: bool) -> Remedy | None:
    from gpuledger_collector.accounting.disputes import Remedy

    ways = bool(to) + nobody + unavailable
    if accept == reject:
        refuse("say either --accept or --reject")
    if reject:
        if ways:
            refuse("--reject changes nothing: --to, --unattributed and --unavailable go with --accept")
        return None
    if ways != 1:
        refuse("--accept: say who bears the time, by --to team=NAME, --unattributed or --unavailable")
    if unavailable:
        return Remedy(None)
    return Remedy({} if nobody else declared_owner(_named(to), "--to"))


def _named(owner: list[str]) -> list[str]:
    """A bare name is a team's."""
    return [text if "=" in text else f"team={text}" for text in owner]


def _contest(
    owner: list[str], start: str, end: str, accelerator: str | None, workload: str | None, line: str | None
) -> Contest:
    from gpuledger_collector.accounting.period import date_range
    from gpuledger_collector.storage.billing.disputes import Contest

    try:
        period = date_range(start, end)
    except ValueError as error:
        refuse(str(error))
    return Contest(declared_owner(_named(owner)), period, accelerator, workload, line)


def _rated(dsn: str, contest: Contest) -> Contest:
    """The contest with its days in the billing zone, once they are rated."""
    from dataclasses import replace

    from gpuledger_collector.cli.progress import bar
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.database import Database
    from gpuledger_collector.storage.ledger import zones
    from gpuledger_collector.wiring import now

    opened = Database(dsn)
    with opened.transaction() as connection:
        contest = replace(contest, period=zones.in_zone(connection, contest.period))
    with bar("rating") as on_day:
        refresh(opened, contest.period, int(now().timestamp() * 1000), on_day)
    return contest


def _step(dsn: str | None, config: Path | None, work: Any, *, dry_run: bool) -> Dispute:
    """A step of a dispute in one transaction, undone in a dry run; what is not possible is refused."""
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.disputes import BadStep
        from gpuledger_collector.storage.access import audit
        from gpuledger_collector.storage.billing.disputes import NoDispute
        from gpuledger_collector.wiring import now

        with opened.transaction(dry_run=dry_run) as connection:
            try:
                made: Dispute = work(connection, audit.person(), int(now().timestamp() * 1000))
            except (BadStep, NoDispute, ValueError) as error:
                refuse(f"--{error}" if str(error).partition(":")[0] in _OPTIONS else str(error))
    return made


def _known(connection: Connection, number: int) -> Dispute:
    from gpuledger_collector.storage.billing import disputes

    try:
        return disputes.read(connection, number)
    except disputes.NoDispute as error:
        refuse(str(error))


def _line(one: ExportedCharge) -> dict[str, object]:
    from gpuledger_collector.export.disputes import line_cells

    return line_cells(one)


def _owner(owner: Any) -> str:
    from gpuledger_collector.export.disputes import owner_text

    return owner_text(owner)


def _amounts(cost: Any) -> str:
    from gpuledger_collector.export.disputes import amounts

    return amounts(cost)


def _days(one: Dispute) -> str:
    from gpuledger_collector.export.disputes import days_text

    return days_text(one)

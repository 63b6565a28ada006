"""gpuledger audit: who changed what, and whether the log is intact."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, new_app, refuse
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.access import AUDIT
from gpuledger_collector.export.cells import instant_text
from gpuledger_collector.services.audit import list_newest_changes, verify_log
from gpuledger_common.plurals import plural

app = new_app(
    name="audit",
    help="Who changed prices, rules, budgets, tokens and months.",
    no_args_is_help=True,
)


@app.command("list", epilog="Example: gpuledger audit list --what price --last 20")
@ledger_command
def list_entries(
    session: Session,
    what: Annotated[
        str | None, Option("--what", help="Only price, rule, budget, token or close.")
    ] = None,
    last: Annotated[int, Option("--last", min=1, help="How many, the newest.")] = 50,
    form: options.Form = options.Format.table,
) -> None:
    """List the newest changes, oldest of them first."""
    entries = list_newest_changes(session.database, last, what)
    if form is options.Format.json:
        print_json([AUDIT.exact(entry) | {"at": instant_text(entry.at_ms)} for entry in entries])
        return
    if form is options.Format.csv:
        emit_report(form, AUDIT, entries)
        return
    for entry in entries:
        at = instant_text(entry.at_ms)
        say(
            f"{entry.number:>6}  {at}  {entry.who:<12} {entry.what:<7} {entry.change:<7} "
            f" {entry.subject}"
        )
        for line in entry.differences():
            say(f"{'':8}{line}")
    if not entries:
        print("nothing was changed yet")


@app.command(epilog="Example: gpuledger audit verify --noted 1289:5f1c...")
@ledger_command
def verify(
    session: Session,
    noted: Annotated[
        str | None,
        Option("--noted", metavar="NUMBER:HASH", help="A head noted before, to be found again."),
    ] = None,
) -> None:
    """Check every row of the log and the chain between them; prints the head, to be noted
    elsewhere.

    Ends with 1 when a row was removed, changed or moved, or when the noted head is not in the log.
    """
    number, _, hashed = (noted or "").partition(":")
    if noted is not None and not (number.isascii() and number.isdigit() and hashed):
        refuse(f"--noted: {noted!r} is not NUMBER:HASH")
    result = verify_log(session.database, None if noted is None else (int(number), hashed))
    if result.fault is not None:
        say(f"the log is NOT intact: {result.fault}")
        raise typer.Exit(FINDINGS)
    print(f"{plural(result.rows, 'row')}, every one as it was written")
    if result.rows:
        print(f"head {result.head[0]}:{result.head[1]}")

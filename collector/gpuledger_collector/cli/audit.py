"""gpuledger audit: who changed what, and whether the log is intact."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.amounts import instant_text
from gpuledger_collector.cli.common import FINDINGS, new_app, refuse
from gpuledger_collector.cli.output import Column, Row, emit
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.access.audit import Entry
from gpuledger_common.plurals import plural

app = new_app(
    name="audit",
    help="Who changed prices, rules, budgets, tokens and months.",
    no_args_is_help=True,
)
COLUMNS = tuple(
    Column(name) for name in ("number", "at", "who", "what", "subject", "before", "after", "hash")
)


@app.command("list", epilog="Example: gpuledger audit list --what price --last 20")
def list_entries(
    what: Annotated[
        str | None, Option("--what", help="Only price, rule, budget, token or close.")
    ] = None,
    last: Annotated[int, Option("--last", min=1, help="How many, the newest.")] = 50,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the newest changes, oldest of them first."""
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        entries = audit.newest(connection, last, what)
    if form is not options.Format.table:
        emit(form, COLUMNS, [to_row(entry, form) for entry in entries])
        return
    for entry in entries:
        at = instant_text(entry.at_ms)
        say(
            f"{entry.number:>6}  {at}  {entry.who:<12} {entry.what:<7} {_change(entry):<7} "
            f" {entry.subject}"
        )
        for line in _differences(entry):
            say(f"{'':8}{line}")
    if not entries:
        print("nothing was changed yet")


def to_row(entry: Entry, form: options.Format) -> Row:
    """An entry by COLUMNS; before and after are JSON, as text in CSV."""
    states = {"before": entry.before, "after": entry.after}
    if form is options.Format.json:
        states = {name: None if text is None else json.loads(text) for name, text in states.items()}
    return {
        **{name: getattr(entry, name) for name in ("number", "who", "what", "subject", "hash")},
        "at": instant_text(entry.at_ms),
        **states,
    }


def _change(entry: Entry) -> str:
    if entry.before is None:
        return "added"
    return "ended" if entry.after is None else "changed"


def _differences(entry: Entry) -> list[str]:
    """The fields that changed."""
    if entry.before is None or entry.after is None:
        return []
    old, new = json.loads(entry.before), json.loads(entry.after)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [f"{name}: {json.dumps(old.get(name))} -> {json.dumps(new.get(name))}" for name in names]


@app.command(epilog="Example: gpuledger audit verify --noted 1289:5f1c...")
def verify(
    noted: Annotated[
        str | None,
        Option("--noted", metavar="NUMBER:HASH", help="A head noted before, to be found again."),
    ] = None,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Check every row of the log and the chain between them; prints the head, to be noted
    elsewhere.

    Ends with 1 when a row was removed, changed or moved, or when the noted head is not in the log.
    """
    number, _, hashed = (noted or "").partition(":")
    if noted is not None and not (number.isascii() and number.isdigit() and hashed):
        refuse(f"--noted: {noted!r} is not NUMBER:HASH")
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        result = audit.verify(connection, None if noted is None else (int(number), hashed))
    if result.fault is not None:
        say(f"the log is NOT intact: {result.fault}")
        raise typer.Exit(FINDINGS)
    print(f"{plural(result.rows, 'row')}, every one as it was written")
    if result.rows:
        print(f"head {result.head[0]}:{result.head[1]}")

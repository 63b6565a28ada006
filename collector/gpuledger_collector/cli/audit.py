"""gpuledger audit: who changed what, and whether the log is whole."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database, refuse
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.storage.access.audit import Entry

app = typer.Typer(name="audit", help="Who changed prices, rules, budgets, tokens and months.", no_args_is_help=True)


class Shape(enum.StrEnum):
    """Forms of the list."""

    table = "table"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger audit`."""
    root.add_typer(app)


@app.command("list", epilog="Example: gpuledger audit list --what price --last 20")
def list_entries(
    what: Annotated[str | None, typer.Option("--what", help="Only price, rule, budget, token or close.")] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many, the newest.")] = 50,
    shape: Annotated[Shape, typer.Option("--format", help="Form.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List the newest changes, oldest of them first."""
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import audit

        with opened.transaction() as connection:
            found = audit.newest(connection, last, what)
    if shape is Shape.json:
        print(json.dumps([_row(entry) for entry in found], indent=2))
        return
    for entry in found:
        row = _row(entry)
        say(f"{entry.number:>6}  {row['at']}  {entry.who:<12} {entry.what:<7} {_done(entry)}  {entry.subject}")
        for line in _differences(entry):
            say(f"{'':8}{line}")
    if not found:
        print("nothing was changed yet")


def _row(entry: Entry) -> dict[str, object]:
    from gpuledger_collector.accounting.period import format_instant

    return {
        "number": entry.number,
        "at": format_instant(entry.at_ms - entry.at_ms % 1000),
        "who": entry.who,
        "what": entry.what,
        "subject": entry.subject,
        "before": None if entry.before is None else json.loads(entry.before),
        "after": None if entry.after is None else json.loads(entry.after),
        "hash": entry.hash,
    }


def _done(entry: Entry) -> str:
    if entry.before is None:
        return "added  "
    return "ended  " if entry.after is None else "changed"


def _differences(entry: Entry) -> list[str]:
    """The fields that a change changed."""
    if entry.before is None or entry.after is None:
        return []
    old, new = json.loads(entry.before), json.loads(entry.after)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [f"{name}: {json.dumps(old.get(name))} -> {json.dumps(new.get(name))}" for name in names]


@app.command(epilog="Example: gpuledger audit verify --noted 1289:5f1c...")
def verify(
    noted: Annotated[
        str | None, typer.Option("--noted", metavar="NUMBER:HASH", help="A head seen before, to be found again.")
    ] = None,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Check every row of the log and the chain between them; prints the head to be noted elsewhere.

    Ends with 1 when a row was removed, changed or moved, or when the noted head is not in the log.
    """
    number, _, hashed = (noted or "").partition(":")
    if noted is not None and not (number.isascii() and number.isdigit() and hashed):
        refuse(f"--noted: {noted!r} is not NUMBER:HASH")
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import audit

        with opened.transaction() as connection:
            found = audit.verify(connection, None if noted is None else (int(number), hashed))
    if found.fault is not None:
        say(f"the log is NOT whole: {found.fault}")
        raise typer.Exit(FINDINGS)
    print(f"{plural(found.rows, 'row')}, every one as it was written")
    if found.rows:
        print(f"head {found.head[0]}:{found.head[1]}")

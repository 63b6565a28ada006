"""gpuledger statement: the month of one owner as a page to read, to print and to keep."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database, owner_levels, refuse
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.storage.locks import Connection


def register(root: typer.Typer) -> None:
    """Add `gpuledger statement`."""
    root.command(epilog="Example: gpuledger statement --owner vision --period 2026-10 -o vision.html")(statement)


def statement(
    period: Annotated[str, typer.Option("--period", metavar="YYYY-MM", help="The month (of the billing zone).")],
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            metavar="[LEVEL=]NAME",
            help="Whose month: vision, or project=nlp; (unattributed) is an owner, too.",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option("--level", help="Level of the owner tree where --owner says none; team.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The page; without it, standard output.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="A page for each owner of the level, and an index.")] = False,
    folder: Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Where --all writes its pages.")] = None,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Write the statement of an owner for a month: held, used, wasted, what changed and why, budgets and findings.

    One HTML file that needs nothing else; printed, it is a PDF. Its amounts are those of `gpuledger chargeback --by
    LEVEL`. Ends with 1 when that owner was billed nothing in that month.
    """
    from gpuledger_collector.accounting.period import month
    from gpuledger_collector.services.statement import require_level

    if everyone == (owner is not None) or everyone != (folder is not None) or (everyone and output is not None):
        refuse("say either --owner NAME (and -o FILE), or --all --dir DIR")
    level, owner = _asked(level, owner)
    try:
        require_level(level)
        asked = month(period)
    except ValueError as error:
        refuse(str(error))
    if output is not None and not output.parent.is_dir():
        refuse(f"{output.parent} is no folder to write to")
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.period import Period
        from gpuledger_collector.accounting.statement import month_before
        from gpuledger_collector.cli.progress import bar
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.ledger import zones
        from gpuledger_collector.wiring import now

        now_ms = int(now().timestamp() * 1000)
        with opened.transaction() as connection:
            calendar = zones.calendar(connection)
        asked = calendar.named(asked)
        with bar("rating") as on_day:
            refresh(opened, Period(month_before(asked, calendar).start_ms, asked.end_ms), now_ms, on_day)
        with opened.transaction(read_only=True) as connection:
            if folder is not None:
                _write_all(connection, level, period, asked, folder, now_ms)
            else:
                _write_one(connection, level, owner or "", period, output, now_ms)


def _asked(level: str | None, owner: str | None) -> tuple[str, str | None]:
    """Level and name of `--owner`: its first `=` parts the two where a level stands before it, else the name has it."""
    from gpuledger_collector.accounting.owner_tree import LEVELS

    if owner is None or owner.partition("=")[0] not in LEVELS or "=" not in owner:
        return level or "team", owner
    ((of, name),) = owner_levels([owner]).items()
    if level not in {None, of}:
        refuse(f"--level {level} and --owner {owner} say two levels: leave --level out")
    return of, name


def _write_one(connection: Connection, level: str, owner: str, period: str, output: Path | None, now_ms: int) -> None:
    from gpuledger_collector.export.statement import as_html
    from gpuledger_collector.services.statement import NoStatement, read_statement

    try:
        text = as_html(read_statement(connection, level, owner, period, now_ms))
    except NoStatement as error:
        refuse(str(error), FINDINGS)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")


def _write_all(connection: Connection, level: str, name: str, period: Period, folder: Path, now_ms: int) -> None:
    from urllib.parse import quote

    from gpuledger_collector.cli.progress import over
    from gpuledger_collector.export.statement import as_html, index
    from gpuledger_collector.services.statement import monthly_chargeback, read_statement
    from gpuledger_collector.storage.billing import statements

    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, str]] = []
    taken = {"index.html"}
    chargeback = monthly_chargeback(connection, level, name, now_ms)
    for owner in over("writing statements", list(statements.owners(connection, level, period))):
        file = _free_name(owner, taken)
        made = read_statement(connection, level, owner, name, now_ms, chargeback)
        (folder / file).write_text(as_html(made), encoding="utf-8")
        rows.append((owner, quote(file)))
    (folder / "index.html").write_text(index(level, name, rows, chargeback.report), encoding="utf-8")
    print(f"{plural(len(rows), 'statement')} of {name} and index.html in {folder}")


def _free_name(owner: str, taken: set[str]) -> str:
    """A file name made of the owner's letters and digits that no other statement of the folder has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", owner).strip("._")[:80] or "owner"
    name, number = f"{plain}.html", 1
    while name.lower() in taken:
        number += 1
        name = f"{plain}-{number}.html"
    taken.add(name.lower())
    return name

"""gpuledger statement: the month of one owner as a page to read, to print and to keep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from typer import Option

from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period, month, months_of, parse_period
from gpuledger_collector.accounting.statement import month_before
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import (
    FINDINGS,
    named_period,
    new_app,
    owner_levels,
    refuse,
    require_folder,
)
from gpuledger_collector.cli.output import write_text
from gpuledger_collector.cli.progress import show_progress
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.export.statement import as_html, index
from gpuledger_collector.services.fair_share import roll_up_period
from gpuledger_collector.services.statement import (
    MonthStatements,
    NoStatement,
    read_every_statement,
    read_statement,
    require_level,
)
from gpuledger_common.plurals import plural

app = new_app()
MAX_FILE_NAME = 80


@app.command(epilog="Example: gpuledger statement --owner vision --period 2026-10 -o vision.html")
@ledger_command
def statement(
    session: Session,
    period: options.StatementPeriod = None,
    zone: options.BillingZone = None,
    owner: Annotated[
        str | None,
        Option(
            "--owner",
            metavar="[LEVEL=]NAME",
            help="Whose month: vision, project=nlp or (unattributed).",
        ),
    ] = None,
    level: Annotated[
        str | None,
        Option("--level", help="Level of the owner tree where --owner names none; else team."),
    ] = None,
    output: options.Output = None,
    everyone: Annotated[
        bool, Option("--all", help="A page for each owner of the level, and an index.")
    ] = False,
    folder: Annotated[
        Path | None, Option("--dir", metavar="DIR", help="Where --all writes its pages.")
    ] = None,
) -> None:
    """Write the statement of an owner for a month: held, used, wasted, what changed and why,
    budgets and findings.

    One self-contained HTML file; printed, it is a PDF. Its amounts are those of `gpuledger
    chargeback --by LEVEL`. Ends with 1 when that owner was billed nothing in that month.
    """
    if (
        everyone == (owner is not None)
        or everyone != (folder is not None)
        or (everyone and output is not None)
    ):
        refuse("give either --owner NAME (and -o FILE), or --all --dir DIR")
    level, owner = _split_owner(level, owner)
    try:
        require_level(level)
        if period is not None and len(months_of(parse_period(period, 1))) > 1 and folder is None:
            refuse(
                f"a statement is of one month, and {period} has several: --all --dir DIR writes"
                " them all"
            )
    except ValueError as error:
        refuse(str(error))
    require_folder(output)
    session.require_zone(zone)
    names = (
        [] if period is None else session.calendar.months_of(named_period(session.calendar, period))
    )
    for name in names or [session.calendar.month_of(session.now_ms)]:
        span = session.calendar.days_named(month(name))
        if len(names) > 1 and span.start_ms > session.now_ms:
            break
        # The page compares with the month before, so both are rated.
        session.rate(Period(month_before(span, session.calendar).start_ms, span.end_ms))
        roll_up_period(session.database, span)
        with session.database.transaction(read_only=True) as connection:
            if folder is not None:
                own = folder / name if len(names) > 1 else folder
                _write_all(
                    read_every_statement(connection, level, name, session.now_ms), level, name, own
                )
                continue
            try:
                text = as_html(read_statement(connection, level, owner or "", name, session.now_ms))
            except NoStatement as error:
                refuse(str(error), FINDINGS)
            write_text(text, output)


def _split_owner(level: str | None, owner: str | None) -> tuple[str, str | None]:
    """Level and name of `--owner`: split at its first `=` when a level stands before it; otherwise
    it is all name.
    """
    if owner is None or owner.partition("=")[0] not in LEVELS or "=" not in owner:
        return level or "team", owner
    ((own_level, name),) = owner_levels([owner]).items()
    if level not in {None, own_level}:
        refuse(f"--level {level} and --owner {owner} name two levels: leave --level out")
    return own_level, name


def _write_all(month: MonthStatements, level: str, name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    taken = {"index.html"}
    for statement in show_progress("writing statements", month.statements, len(month.owners)):
        file = _free_name(statement.owner, taken)
        (folder / file).write_text(as_html(statement), encoding="utf-8")
        files[statement.owner] = quote(file)
    (folder / "index.html").write_text(
        index(level, name, month.bill, files=files), encoding="utf-8"
    )
    print(f"{plural(len(files), 'statement')} of {name} and index.html in {folder}")


def _free_name(owner: str, taken: set[str]) -> str:
    """A file name of the owner's letters and digits that no other statement of the folder has."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", owner).strip("._")[:MAX_FILE_NAME] or "owner"
    name, number = f"{stem}.html", 1
    while name.lower() in taken:
        number += 1
        name = f"{stem}-{number}.html"
    taken.add(name.lower())
    return name

"""gpuledger focus: checks for files in the FinOps Foundation's format, anybody's."""

from __future__ import annotations

import datetime as dt
import enum
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database, refuse
from gpuledger_collector.cli.terminal import say

app = typer.Typer(name="focus", help="Files in FOCUS, the FinOps Foundation's format.", no_args_is_help=True)
SHOWN = 5
"""Violations of one rule in one column that are shown, unless all are asked for."""


class Version(enum.StrEnum):
    """Versions of FOCUS that can be checked."""

    v1_2 = "1.2"
    v1_4 = "1.4"


class Shape(enum.StrEnum):
    """Forms of the output."""

    table = "table"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger focus`."""
    root.add_typer(app)


@app.command("check", epilog="Example: gpuledger focus check october.csv")
def check_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file of charges in FOCUS (CSV).")],
    version: Annotated[
        Version | None, typer.Option("--focus-version", help="Version to check against; else what its header speaks.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every violation.")] = False,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
) -> None:
    """Check a FOCUS file: columns, values and formats, and whether the bill adds up. Needs no database.

    Ends with 1 when the file breaks a rule; each violation names its line and column.
    """
    from gpuledger_collector.export.focus_check import NotFocus, Violation, check

    counts: Counter[tuple[str, str]] = Counter()
    shown: list[Violation] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for violation in check(file, version):
                key = (violation.rule, violation.column)
                counts[key] += 1
                if everything or counts[key] <= SHOWN:
                    shown.append(violation)
    except NotFocus as error:
        refuse(f"{path}: {error}")
    found = sum(counts.values())
    if shape is Shape.json:
        content = {
            "file": str(path),
            "violations": found,
            "shown": [
                {"line": one.line, "rule": one.rule, "column": one.column, "sentence": one.sentence} for one in shown
            ],
        }
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        for one in sorted(shown, key=lambda one: one.line):
            say(f"{path}:{one.line}: {one.rule}: {one.sentence}")
        if found > len(shown):
            print(f"... and {found - len(shown)} more like these (--all shows them)")
        print(f"{path}: {f'{found} violations' if found else 'no violation'}")
    if found:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger focus periods -o billing-periods.csv")
def periods(
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")] = None,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Write FOCUS 1.4's billing periods: every month that was rated, Open or Closed.

    A closed month never opens again; what is found later is a Correction row of an open one.
    """
    with database(dsn, config) as opened:
        from gpuledger_collector.export import focus, focus_split
        from gpuledger_collector.storage.billing import periods as months
        from gpuledger_collector.storage.ledger import reports, zones

        with opened.transaction() as connection:
            calendar = zones.calendar(connection)
            closed = {one.name: one.closed_ms for one in months.closed(connection)}
            rated: dict[str, dt.datetime] = {}
            for day_ms, at in reports.proved(connection):
                name = calendar.month_of(day_ms)
                rated[name] = max(at, rated.get(name, at))
        rows = focus_split.periods({*closed, *rated}, rated, closed, focus.Issuer(), calendar)
        if output is None:
            focus.write(rows, sys.stdout, focus_split.PERIOD_COLUMNS)
            return
        with output.open("w", encoding="utf-8", newline="") as file:
            focus.write(rows, file, focus_split.PERIOD_COLUMNS)

"""gpuledger focus: checks for files in the FinOps Foundation's format, whoever wrote them."""

from __future__ import annotations

import enum
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.chargeback import text_file
from gpuledger_collector.cli.common import FINDINGS, new_app, refuse
from gpuledger_collector.cli.output import print_json
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.files import bounded_lines
from gpuledger_collector.export import focus, focus_split
from gpuledger_collector.export.focus_check import NotFocus, Violation, check
from gpuledger_collector.storage.billing import periods as closed_periods
from gpuledger_collector.storage.billing import reports

app = new_app(
    name="focus", help="Files in FOCUS, the FinOps Foundation's format.", no_args_is_help=True
)
SHOWN = 5
"""Violations of one rule in one column that are shown, unless all are asked for."""


class Version(enum.StrEnum):
    """Versions of FOCUS that can be checked."""

    v1_2 = "1.2"
    v1_4 = "1.4"


@app.command("check", epilog="Example: gpuledger focus check october.csv")
def check_file(
    path: Annotated[Path, Argument(metavar="FILE", help="A file of charges in FOCUS (CSV).")],
    version: Annotated[
        Version | None,
        Option("--focus-version", help="Version to check against; else the one of its header."),
    ] = None,
    everything: Annotated[bool, Option("--all", help="Show every violation.")] = False,
    form: options.PageForm = options.PageFormat.table,
) -> None:
    """Check a FOCUS file: columns, values and formats, and whether the bill adds up.

    Needs no database.

    Ends with 1 when the file breaks a rule; each violation names its line and column.
    """
    counts: Counter[tuple[str, str]] = Counter()
    shown: list[Violation] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for violation in check(bounded_lines(path, file), version):
                key = (violation.rule, violation.column)
                counts[key] += 1
                if everything or counts[key] <= SHOWN:
                    shown.append(violation)
    except NotFocus as error:
        refuse(f"{path}: {error}")
    total = counts.total()
    if form is options.PageFormat.json:
        fields = ("line", "rule", "column", "sentence")
        objects = [{name: getattr(violation, name) for name in fields} for violation in shown]
        print_json({"file": str(path), "violations": total, "shown": objects})
    else:
        for violation in sorted(shown, key=lambda violation: violation.line):
            say(f"{path}:{violation.line}: {violation.rule}: {violation.sentence}")
        if total > len(shown):
            print(f"... and {total - len(shown)} more like these (--all shows them)")
        print(f"{path}: {f'{total} violations' if total else 'no violation'}")
    if total:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger focus periods -o billing-periods.csv")
def periods(
    output: options.Output = None, dsn: options.Dsn = None, config: options.Config = None
) -> None:
    """Write FOCUS 1.4's billing periods: every month that was rated, Open or Closed.

    A closed month never opens again; what is found later is a Correction row of an open one.
    """
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        closed = {period.name: period.closed_ms for period in closed_periods.closed(connection)}
        rated: dict[str, int] = {}
        for day_ms, rated_ms in reports.proved(connection):
            name = session.calendar.month_of(day_ms)
            rated[name] = max(rated_ms, rated.get(name, rated_ms))
        rows = focus_split.periods(
            {*closed, *rated}, rated, closed, focus.Issuer(), session.calendar
        )
        with text_file(output) as file:
            focus.write(rows, file, focus_split.PERIOD_COLUMNS)

"""gpuledger focus: checks for files in the FinOps Foundation's format, whoever wrote them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, new_app, refuse
from gpuledger_collector.cli.output import print_json, write_pieces
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.files import bounded_lines, require_few_problems
from gpuledger_collector.export.focus_check import NotFocus, Violation, check
from gpuledger_collector.export.focus_split import BILLING_PERIODS
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.services.bill_exports import FocusVersion, list_billing_months

app = new_app(
    name="focus", help="Files in FOCUS, the FinOps Foundation's format.", no_args_is_help=True
)
SHOWN = 5
"""Violations of one rule in one column that are shown, unless all are asked for."""


@app.command("check", epilog="Example: gpuledger focus check october.csv")
def check_file(
    path: Annotated[Path, Argument(metavar="FILE", help="A file of charges in FOCUS (CSV).")],
    version: Annotated[
        FocusVersion | None,
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
                    require_few_problems(path, shown)
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
@ledger_command
def periods(session: Session, output: options.Output = None) -> None:
    """Write FOCUS 1.4's billing periods: every month that was rated, Open or Closed.

    A closed month never opens again; what is found later is a Correction row of an open one.
    """
    months = list_billing_months(session.database)
    write_pieces(csv_pieces(BILLING_PERIODS.csv_rows(months)), output)

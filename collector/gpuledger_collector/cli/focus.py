"""gpuledger focus: checks for files in the FinOps Foundation's format, anybody's."""

from __future__ import annotations

import enum
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gpuledger_collector.cli.common import FINDINGS, refuse

app = typer.Typer(name="focus", help="Files in FOCUS, the FinOps Foundation's format.", no_args_is_help=True)
SHOWN = 5
"""Violations of one rule in one column that are shown, unless all are asked for."""


class Shape(enum.StrEnum):
    """Forms of the output."""

    table = "table"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger focus`."""
    root.add_typer(app)


@app.command("check", epilog="Example: gpuledger focus check october.csv")
def check_file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A FOCUS 1.2 file of charges (CSV).")],
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
            for violation in check(file):
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
            print(f"{path}:{one.line}: {one.rule}: {one.sentence}")
        if found > len(shown):
            print(f"... and {found - len(shown)} more like these (--all shows them)")
        print(f"{path}: {f'{found} violations' if found else 'no violation'}")
    if found:
        raise typer.Exit(FINDINGS)

"""gpuledger tags: which tags and rules attribute usage, and which usage has no owner."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, new_app, require_level, time_range
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.export.tag_check import TAGS, as_text
from gpuledger_collector.services.tag_check import check_tags

app = new_app(name="tags", no_args_is_help=True)


@app.callback()
def tags() -> None:
    """Tags and attribution rules."""


@app.command(epilog="Example: gpuledger tags check --period 2026-10")
@ledger_command
def check(
    session: Session,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    level: Annotated[str, Option("--level", help="The level that should be attributed.")] = "team",
    form: options.Form = options.Format.table,
) -> None:
    """Say which tags and rules match which usage, what stays unattributed, and which tag may be a
    misspelt level.

    Ends with 1 when some usage has no owner at that level.
    """
    require_level(level)
    asked = time_range(period, start, end, days)
    result = check_tags(session.database, session.rate_range(asked), level)
    if form is options.Format.table:
        sys.stdout.write(as_text(result, level))
    elif form is options.Format.json:
        print_json(
            [TAGS.texts(line) | {"workloads": len(line.usage.workloads)} for line in result.lines]
        )
    else:
        emit_report(form, TAGS, result.lines)
    if result.unattributed:
        raise typer.Exit(FINDINGS)

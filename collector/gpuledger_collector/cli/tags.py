"""gpuledger tags: which tags and rules attribute usage, and what nobody is known to pay for."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, Config, Dsn, database, refuse
from gpuledger_collector.cli.forecast import Shape

app = typer.Typer(name="tags", help="Tags and attribution rules.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `gpuledger tags`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger tags check --from 2026-10-01 --to 2026-11-01")
def check(
    start: Annotated[str, typer.Option("--from", metavar="DATE", help="First day (UTC), included.")],
    end: Annotated[str, typer.Option("--to", metavar="DATE", help="Last day (UTC), not included.")],
    level: Annotated[str, typer.Option("--level", help="The level that should be attributed.")] = "team",
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say which tags and rules match which usage, what stays unattributed, and which tag may be a misspelt level.

    Ends with 1 when some usage has no owner at the level asked for.
    """
    from gpuledger_collector.accounting.owner_tree import LEVELS
    from gpuledger_collector.accounting.period import date_range

    if level not in LEVELS:
        refuse(f"--level: {level!r} is none of {', '.join(LEVELS)}")
    try:
        period = date_range(start, end)
    except ValueError as error:
        refuse(str(error))
    with database(dsn, config) as opened:
        from gpuledger_collector.cli.progress import bar
        from gpuledger_collector.export import tag_check
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.services.tag_check import check_tags
        from gpuledger_collector.storage.ledger import reports, zones
        from gpuledger_collector.wiring import now

        with opened.transaction() as connection:
            period = zones.in_zone(connection, period)
        with bar("rating") as on_day:
            refresh(opened, period, int(now().timestamp() * 1000), on_day)
        from gpuledger_collector.storage.locks import Lock

        with opened.transaction(Lock.LEDGER) as connection:
            found = check_tags(connection, reports.held_by(connection, period), level)
    if shape is not Shape.table:
        from gpuledger_collector.export.cells import rows_as

        rows = tag_check.as_rows(found)
        sys.stdout.write(rows_as(shape.value, tag_check.COLUMNS, rows))
        raise typer.Exit(FINDINGS if found.unattributed else DONE)
    sys.stdout.write(tag_check.as_text(found, level))
    if found.unattributed:
        raise typer.Exit(FINDINGS)

"""gpuledger apply: what is declared in a file becomes what is in force."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuledger_collector.cli.common import Config, DryRun, Dsn, database, refuse, untouched
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

COLUMNS = ("what", "added", "superseded", "unchanged", "days_to_rate_again", "dry_run")


def register(root: typer.Typer) -> None:
    """Add `gpuledger apply`."""
    root.command(epilog="Example: gpuledger apply ledger.toml --dry-run")(apply)


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="[[rule]], [[price]] and [[budget]] tables.")],
    shape: Annotated[Shape, typer.Option("--format", help="Form of what is said.")] = Shape.table,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Apply attribution rules, prices and budgets declared in a file; the same file again changes nothing.

    If the file has [[rule]] tables, the rules in force become exactly these, in this order; rules that are gone are
    superseded, never deleted. So it is with [[budget]], [[shared_cost]], [[carbon]], [[recipient]], [[contact]],
    [[action]] and [[pool]] tables. Prices are added as `import prices` does. What they touch is rated again.
    """
    from gpuledger_collector.accounting.problems import in_order
    from gpuledger_collector.config.declared import apply_declared, read_declared

    declared = read_declared(file)
    for problem in in_order(declared.problems):
        say(str(problem), error=True)
    if declared.problems:
        refuse(f"{file}: {plural(len(declared.problems), 'problem')}, nothing was applied")
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.billing.prices import CurrencyChanged
        from gpuledger_collector.wiring import now

        with opened.transaction(dry_run=dry_run) as connection:
            try:
                done = apply_declared(connection, declared, now())
            except CurrencyChanged as error:
                for problem in error.problems:
                    print(problem, file=sys.stderr)
                refuse(f"{file}: {plural(len(error.problems), 'problem')}, nothing was applied")
    if shape is not Shape.table:
        from gpuledger_collector.export.cells import rows_as

        rows = [
            (name, one.added, one.updated, one.unchanged, one.days_to_recompute, dry_run) for name, one in done.items()
        ]
        sys.stdout.write(rows_as(shape.value, COLUMNS, rows))
        return
    if not done:
        print(f"{file} declares nothing: nothing was changed")
    for name, outcome in done.items():
        print(
            f"{name}: {outcome.added} added, {outcome.updated} superseded, {outcome.unchanged} unchanged; "
            f"{plural(outcome.days_to_recompute, 'day')} to rate again" + untouched(dry_run)
        )

"""gpuledger apply: what is declared in a file becomes what is in force."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuledger_collector.cli.common import Config, Dsn, database, refuse


def register(root: typer.Typer) -> None:
    """Add `gpuledger apply`."""
    root.command(epilog="Example: gpuledger apply ledger.toml --dry-run")(apply)


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="[[rule]], [[price]] and [[budget]] tables.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and change nothing.")] = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Apply attribution rules, prices and budgets declared in a file; the same file again changes nothing.

    If the file has [[rule]] tables, the rules in force become exactly these, in this order; rules that are gone are
    superseded, never deleted. So it is with [[budget]], [[recipient]], [[contact]] and [[action]] tables. Prices are
    added as `import prices` does. What they touch is rated again.
    """
    from gpuledger_collector.ingest.files.declared import read_declared
    from gpuledger_collector.ingest.files.usage import in_order

    declared = read_declared(file)
    for problem in in_order(declared.problems):
        print(problem, file=sys.stderr)
    if declared.problems:
        refuse(f"{file}: {len(declared.problems)} problems, nothing was applied")
    with database(dsn, config) as opened:
        from gpuledger_collector.storage import budgets, letter_rules, prices, rules
        from gpuledger_collector.storage.ledgers import Ledger
        from gpuledger_collector.wiring import now

        with Ledger(opened.dsn).connect() as connection:
            at = now()
            done = {"prices": prices.add(connection, declared.prices, at)}
            if declared.rules is not None:
                done["rules"] = rules.replace(connection, declared.rules, at)
            if declared.budgets is not None:
                done["budgets"] = budgets.replace(connection, declared.budgets, at)
            if declared.recipients is not None:
                done["recipients"] = letter_rules.replace_recipients(connection, declared.recipients, at)
            if declared.contacts is not None:
                done["contacts"] = letter_rules.replace_contacts(connection, declared.contacts, at)
            if declared.actions is not None:
                done["actions"] = letter_rules.replace_actions(connection, declared.actions, at)
            if dry_run:
                connection.rollback()
    for name, outcome in done.items():
        print(
            f"{name}: {outcome.added} added, {outcome.updated} superseded, {outcome.unchanged} unchanged; "
            f"{outcome.dirty_days} days to rate again" + (" (dry run: nothing was changed)" if dry_run else "")
        )

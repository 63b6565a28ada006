"""gpuledger apply: what is declared in a file becomes what is in force."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import Config, DryRun, Dsn, database, refuse, untouched
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.accounting.ports import ImportOutcome
    from gpuledger_collector.config.declared import Declared
    from gpuledger_collector.storage.locks import Connection

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
    from gpuledger_collector.config.declared import read_declared
    from gpuledger_collector.ingest.files.usage import in_order

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
                done = _done(connection, declared, now())
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


def _done(connection: Connection, declared: Declared, at: dt.datetime) -> dict[str, ImportOutcome]:
    """Put in force what the file declares, in this order; what it says nothing about stays as it is."""
    from gpuledger_collector.storage import declared as stored
    from gpuledger_collector.storage.billing import bills, budgets, commitments, prices
    from gpuledger_collector.storage.capacity import scaling
    from gpuledger_collector.storage.ledger import rules, zones
    from gpuledger_collector.storage.notifications import notification_rules as notification_rules

    steps: tuple[tuple[str, Any, Callable[[Connection, Any, dt.datetime], ImportOutcome]], ...] = (
        ("billing zone", declared.billing_zone, zones.replace),
        ("prices", declared.prices or None, prices.add),  # added, never taken away: without any there is nothing to say
        ("owned hardware", declared.owned, prices.add_derived),
        ("commitments", declared.commitments, commitments.replace),
        ("choices of purchase", declared.purchases, commitments.replace_choices),
        ("exchange rates", declared.exchange, commitments.replace_exchange),
        ("rules", declared.rules, rules.replace),
        ("budgets", declared.budgets, budgets.replace),
        ("shared costs", declared.shared_costs, stored.replace_shared_costs),
        ("carbon", declared.carbon, stored.replace_carbon),
        ("recipients", declared.recipients, notification_rules.replace_recipients),
        ("contacts", declared.contacts, notification_rules.replace_contacts),
        ("actions", declared.actions, notification_rules.replace_actions),
        ("bill matches", declared.bill_matches, bills.replace_matches),
        ("pools", declared.pools, scaling.replace),
    )
    _lock(connection, declared)
    return {name: replace(connection, wanted, at) for name, wanted, replace in steps if wanted is not None}


def _lock(connection: Connection, declared: Declared) -> None:
    """Take the locks of these steps in the order of a close and of `prices set`: the audit log's comes last.

    Else a file with prices and shared costs and a close would wait for each other.
    """
    from gpuledger_collector.storage import locks
    from gpuledger_collector.storage.locks import Lock

    needs = (
        (Lock.LEDGER, (declared.billing_zone, declared.shared_costs, declared.carbon)),
        (Lock.PRICES, (declared.prices, declared.owned)),
    )
    for lock, steps in needs:
        if any(wanted is not None for wanted in steps):
            locks.take(connection, lock)

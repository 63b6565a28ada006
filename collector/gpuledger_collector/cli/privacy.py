"""gpuledger privacy: what the ledger knows of a person, and how it forgets."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpuledger_collector.cli.common import Config, Dsn, database
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

app = typer.Typer(name="privacy", help="What is known of a person, and its erasure.", no_args_is_help=True)
COLUMNS = ("table", "column", "rows", "stays")
Name = Annotated[str, typer.Argument(metavar="USER", help="The name as the scheduler or the system knows it.")]


def register(root: typer.Typer) -> None:
    """Add `gpuledger privacy`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger privacy show amina --format json")
def show(
    user: Name,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say in which tables a user's name stands, in how many rows, and where it stays after an erasure."""
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import privacy
        from gpuledger_collector.storage.database import open_connection

        with open_connection(opened.dsn) as connection:
            found = privacy.show(connection, user)
    if shape is not Shape.table:
        from gpuledger_collector.export.cells import rows_as

        rows = [(place.table, place.column, place.rows, place.kept) for place in found]
        sys.stdout.write(rows_as(shape.value, COLUMNS, rows))
        return
    for place in found:
        print(
            f"{place.table}.{place.column}: {plural(place.rows, 'row')}"
            + (f" (stays: {place.kept})" if place.kept else "")
        )
    if not found:
        say(f"{user} stands nowhere")


@app.command(epilog="Example: gpuledger privacy erase amina --dry-run")
def erase(
    user: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and change nothing.")] = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Put a random pseudonym in place of a user's name; hours and money stay as they are.

    Sealed months and the audit log keep what they hold. A running job of that user brings the name back: erase when
    the user has left.
    """
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.period import DAY_MS, Period
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.access import privacy
        from gpuledger_collector.storage.access.audit import person
        from gpuledger_collector.storage.database import open_connection
        from gpuledger_collector.wiring import now

        now_ms = round(now().timestamp() * 1000)
        with open_connection(opened.dsn) as connection:
            if dry_run:
                found, pseudonym = privacy.show(connection, user), "a pseudonym"
            else:
                pseudonym, found = privacy.erase(connection, user, person(), now_ms)
                row = connection.execute("SELECT min(day_ms), max(day_ms) FROM day_recompute").fetchone()
                if row is not None and row[0] is not None:
                    refresh(opened, Period(row[0], row[1] + DAY_MS), now_ms)
                privacy.forget_owners(connection, user)
    for place in found:
        said = f"stays: {place.kept}" if place.kept else f"-> {pseudonym}"
        print(f"{place.table}.{place.column}: {plural(place.rows, 'row')} {said}")
    say(f"{user} stands nowhere" if not found else "dry run: nothing was changed" if dry_run else "done")

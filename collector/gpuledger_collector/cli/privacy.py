"""gpuledger privacy: what the ledger stores about a person, and how it is erased."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app
from gpuledger_collector.cli.output import Column, emit, number
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.access import privacy
from gpuledger_collector.storage.access.audit import person
from gpuledger_collector.storage.locks import Lock
from gpuledger_common.plurals import plural

app = new_app(
    name="privacy", help="What is stored about a person, and its erasure.", no_args_is_help=True
)
COLUMNS = (Column("table"), Column("column"), number("rows"), Column("stays"))
Name = Annotated[
    str, Argument(metavar="USER", help="The name as the scheduler or the system knows it.")
]


@app.command(epilog="Example: gpuledger privacy show amina --format json")
def show(
    user: Name,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Say in which tables a user's name is stored, in how many rows, and where it stays after an
    erasure.
    """
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        places = privacy.show(connection, user)
    if form is not options.Format.table:
        rows = [
            {"table": place.table, "column": place.column, "rows": place.rows, "stays": place.kept}
            for place in places
        ]
        emit(form, COLUMNS, rows)
        return
    for place in places:
        stays = f" (stays: {place.kept})" if place.kept else ""
        print(f"{place.table}.{place.column}: {plural(place.rows, 'row')}{stays}")
    if not places:
        say(f"{user} is not stored")


@app.command(epilog="Example: gpuledger privacy erase amina --dry-run")
def erase(
    user: Name,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Replace a user's name by a random pseudonym; hours and money stay as they are.

    Sealed months and the audit log keep the name. A running job of that user brings it back: erase
    when the user has left.
    """
    with open_session(dsn, config) as session, session.database.connect() as connection:
        if dry_run:
            places, pseudonym = privacy.show(connection, user), "a pseudonym"
        else:
            pseudonym, places = privacy.erase(connection, user, person(), session.now_ms)
            row = connection.execute(
                "SELECT min(day_ms), max(day_ms) FROM day_recompute"
            ).fetchone()
            if row is not None and row[0] is not None:
                refresh(session.database, Period(row[0], row[1] + DAY_MS), session.now_ms)
            # Under the ledger's lock: rating commits an owner before the charges that refer to it.
            with session.database.transaction(Lock.LEDGER) as rated:
                privacy.forget_owners(rated, user)
    for place in places:
        outcome = f"stays: {place.kept}" if place.kept else f"-> {pseudonym}"
        print(f"{place.table}.{place.column}: {plural(place.rows, 'row')} {outcome}")
    say(
        f"{user} is not stored"
        if not places
        else "dry run: nothing was changed"
        if dry_run
        else "done"
    )

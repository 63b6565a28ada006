"""gpuledger privacy: what the ledger stores about a person, and how it is erased."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.access import PRIVACY
from gpuledger_collector.services.privacy import erase_person, find_person
from gpuledger_common.plurals import plural

app = new_app(
    name="privacy", help="What is stored about a person, and its erasure.", no_args_is_help=True
)
Name = Annotated[
    str, Argument(metavar="USER", help="The name as the scheduler or the system knows it.")
]


@app.command(epilog="Example: gpuledger privacy show amina --format json")
@ledger_command
def show(
    session: Session,
    user: Name,
    form: options.Form = options.Format.table,
) -> None:
    """Say in which tables a user's name is stored, in how many rows, and where it stays after an
    erasure.
    """
    places = find_person(session.database, user)
    if form is options.Format.json:
        print_json([PRIVACY.exact(place) for place in places])
        return
    if form is options.Format.csv:
        emit_report(form, PRIVACY, places)
        return
    for place in places:
        stays = f" (stays: {place.kept})" if place.kept else ""
        print(f"{place.table}.{place.column}: {plural(place.rows, 'row')}{stays}")
    if not places:
        say(f"{user} is not stored")


@app.command(epilog="Example: gpuledger privacy erase amina --dry-run")
@ledger_command
def erase(
    session: Session,
    user: Name,
    dry_run: options.DryRun = False,
) -> None:
    """Replace a user's name by a random pseudonym; hours and money stay as they are.

    Sealed months and the audit log keep the name. A running job of that user brings it back: erase
    when the user has left.
    """
    if dry_run:
        pseudonym, places = "a pseudonym", find_person(session.database, user)
    else:
        pseudonym, places = erase_person(session.database, user, session.now_ms)
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

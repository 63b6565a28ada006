"""gpuledger apply: put in force what a file declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument

from gpuledger_collector import wiring
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.problems import DeclarationRefused, shorten_problems
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import dry_run_note, new_app, refuse
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.declared import read_declared
from gpuledger_collector.export.disputes import owner_text
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.services.declarations import apply_file
from gpuledger_common.plurals import plural

app = new_app()
NAMED_MONTHS = 3
"""Closed months that a note names one by one."""


def applied_report(*, dry_run: bool) -> Report[tuple[str, ImportOutcome]]:
    """What became of each kind of table of a file."""
    return Report(
        "applied",
        (
            Column("what", lambda item: item[0]),
            Column("added", lambda item: item[1].added, Kind.COUNT),
            Column("superseded", lambda item: item[1].updated, Kind.COUNT),
            Column("unchanged", lambda item: item[1].unchanged, Kind.COUNT),
            Column("days_to_rate_again", lambda item: item[1].days_to_recompute, Kind.COUNT),
            Column("dry_run", lambda _: dry_run),
        ),
    )


@app.command(epilog="Example: gpuledger apply ledger.toml --dry-run")
def apply(
    file: Annotated[
        Path, Argument(metavar="FILE.toml", help="[[rule]], [[price]] and [[budget]] tables.")
    ],
    form: options.Form = options.Format.table,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Apply attribution rules, prices and budgets declared in a file; the same file again changes
    nothing.

    If the file has [[rule]] tables, the rules in force become exactly these, in this order; other
    rules are superseded, never deleted. The same holds for [[adjustment]] (markups, discounts,
    tiers), [[location]], [[node_cost]], [[budget]], [[shared_cost]], [[share]], [[cost_center]],
    [[carbon]], [[recipient]], [[contact]], [[anomaly_floor]], [[action]] and [[pool]] tables.
    Prices are added as `import prices` does; credits and debits are booked once. The affected days
    are rated again.
    """
    parsed = read_declared(file)
    for sentence in shorten_problems(parsed.problems):
        say(sentence, error=True)
    if parsed.problems:
        refuse(f"{file}: {plural(len(parsed.problems), 'problem')}, nothing was applied")
    with open_session(dsn, config) as session:
        try:
            applied = apply_file(session.database, parsed, wiring.read_clock(), dry_run=dry_run)
        except DeclarationRefused as error:
            for sentence in shorten_problems(error.problems):
                say(sentence, error=True)
            refuse(f"{file}: {plural(len(error.problems), 'problem')}, nothing was applied")
    outcomes = applied.outcomes
    warn_of_regions(applied.unknown_regions)
    warn_of_owners(applied.uncharged_owners)
    if form is not options.Format.table:
        emit_report(form, applied_report(dry_run=dry_run), outcomes.items(), is_exact=True)
        return
    if not outcomes:
        print(f"{file} declares nothing: nothing was changed")
    for name, done in outcomes.items():
        changes = f"{done.added} added, {done.updated} superseded, {done.unchanged} unchanged"
        print(f"{name}: {changes}; {days_note(done)}" + dry_run_note(dry_run))
    if applied.closed_months:
        print(closed_note(applied.closed_months))


def days_note(outcome: ImportOutcome) -> str:
    """How many days of the bill a change affects, and which months among them are closed."""
    days = outcome.days_to_recompute
    if not days:
        return "no bill changes"
    closed = f"; {closed_note(outcome.closed_months)}" if outcome.closed_months else ""
    return f"{plural(days, 'day')} to rate again{closed}"


def closed_note(months: Sequence[str]) -> str:
    """What a change means for closed months among the days that it affects."""
    named = (
        f"{months[0]} is closed and stays"
        if len(months) == 1
        else f"{', '.join(months)} are closed and stay"
        if len(months) <= NAMED_MONTHS
        else f"{len(months)} months from {months[0]} to {months[-1]} are closed and stay"
    )
    return f"{named} as billed: what changes there is a correction in an open month"


def warn_of_regions(regions: Iterable[str]) -> None:
    """Name regions of rates and commitments in which no pool stands: a typing error would be silent
    otherwise.
    """
    for region in regions:
        say(f"gpuledger: {no_pool_in(region)}", error=True)


def warn_of_owners(owners: Iterable[Mapping[str, str]]) -> None:
    """Name owners of credits and debits whom nobody ever charged: a typing error would be silent
    otherwise.
    """
    for owner in owners:
        say(f"gpuledger: nobody of this name was ever charged: {owner_text(owner)}", error=True)


def no_pool_in(region: str) -> str:
    """Say what a region without pools means."""
    return (
        f"no pool stands in region {region!r}: what names it matches nothing until a [[location]]"
        " does"
    )

"""What people declare in a file, put in force in one transaction, and what of it nothing matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.config.declared import Declared, apply_declared
from gpuledger_collector.storage.billing import adjustments, locations, periods
from gpuledger_collector.storage.database import Database


@dataclass(frozen=True, slots=True)
class Applied:
    """What a file changed, by title; regions where no pool stands, and owners of entries whom
    nobody ever charged: most likely their names are misspelled.

    `closed_months` are among the days to rate again: they stay, and what changes is a correction.
    """

    outcomes: Mapping[str, ImportOutcome]
    unknown_regions: Sequence[str]
    uncharged_owners: Sequence[Mapping[str, str]]
    closed_months: Sequence[str]


def apply_file(
    database: Database, declared: Declared, now_ms: int, *, dry_run: bool = False
) -> Applied:
    """Put in force what a file declares. Raises DeclarationRefused."""
    with database.transaction(dry_run=dry_run) as connection:
        marks = periods.last_marks(connection)
        outcomes = apply_declared(connection, declared, now_ms)
        return Applied(
            outcomes,
            locations.unknown_regions(connection),
            adjustments.uncharged_owners(connection, declared.values.get("adjustment", ())),
            periods.closed_months_marked(connection, marks),
        )

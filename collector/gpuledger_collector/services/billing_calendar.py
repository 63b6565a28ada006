"""When days, months and fiscal years of the bill begin, for those who ask in days."""

from __future__ import annotations

from gpuledger_collector.accounting.period import Calendar
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones


def read_calendar(database: Database) -> Calendar:
    """Read the calendar of the bill; UTC while no zone is declared."""
    with database.transaction() as connection:
        return zones.calendar(connection)

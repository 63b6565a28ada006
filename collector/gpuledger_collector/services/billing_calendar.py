"""When days, months and fiscal years of the bill begin, for those who ask in days."""

from __future__ import annotations

from gpuledger_collector.accounting.period import Calendar
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


def calendar_of(connection: Connection) -> Calendar:
    """Read the calendar of the bill in a snapshot that the caller shares; UTC while no zone is
    declared.
    """
    return zones.calendar(connection)


def read_calendar(database: Database) -> Calendar:
    """Read the calendar of the bill."""
    with database.transaction() as connection:
        return calendar_of(connection)

"""Who changed what, and whether the log of it is intact."""

from __future__ import annotations

from gpuledger_collector.accounting.audit_log import Entry, Verdict, check_chain
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.database import Database


def list_newest_changes(database: Database, most: int, what: str | None = None) -> list[Entry]:
    """The last rows of the log (of a kind), oldest first."""
    with database.transaction() as connection:
        return audit.newest(connection, most, what)


def list_changes(database: Database, after: int, most: int) -> list[Entry]:
    """Rows of the log in their order, from the one after number `after`."""
    with database.transaction(read_only=True) as connection:
        return list(audit.entries(connection, after, most))


def verify_log(database: Database, noted: tuple[int, str] | None = None) -> Verdict:
    """Check the whole chain; `noted` is a head (number, hash) noted before, which must be found."""
    with database.transaction() as connection:
        return check_chain(audit.entries(connection), noted)

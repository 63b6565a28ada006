"""What is stored about a person, and how the ledger forgets a name."""

from __future__ import annotations

from gpuledger_collector.accounting.personal_data import Place
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.access import audit, privacy
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import token_counters
from gpuledger_collector.storage.locks import Lock


def find_person(database: Database, name: str) -> list[Place]:
    """The columns in which a name is stored, in how many rows, and why it stays where it does."""
    with database.transaction() as connection:
        return privacy.show(connection, name)


def erase_person(database: Database, name: str, now_ms: int) -> tuple[str, list[Place]]:
    """Replace a name by a pseudonym, and rate the days again whose owners bear it; return the
    pseudonym, and where the name was.
    """
    with database.connect() as connection:
        with connection.transaction():
            token_counters.keep_series(connection, name)
            pseudonym, places = privacy.erase(connection, name, audit.person(), now_ms)
        days = privacy.requested_days(connection)
        if days is not None:
            refresh(database, days, now_ms)
        # Under the ledger's lock: rating commits an owner before the charges that refer to it.
        with database.transaction(Lock.LEDGER, one_snapshot=False) as rated:
            privacy.forget_owners(rated, name)
    return pseudonym, places

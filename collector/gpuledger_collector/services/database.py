"""What callers of services hold without looking inside: the ledger's database, a connection whose
reads see one snapshot, the errors that they turn into a sentence or a status, and what one question
may hold: its sessions, which can be cancelled, and lines in memory; and who runs this process.

Commands, addresses, pages and assistants take these from here and import nothing of storage: a
question's SQL, its lock and its row-level security are the service's.
"""

from __future__ import annotations

from gpuledger_collector.storage.access.audit import person
from gpuledger_collector.storage.cancellation import (
    LARGE_LINES,
    MOST_LINES_IN_MEMORY,
    Sessions,
    collected_in,
)
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import (
    EnvironmentLacks,
    QuestionAbandoned,
    ReadReplica,
    SchemaBehind,
    ServerUnavailable,
    StorageError,
    TablesLocked,
    TooManyLines,
)
from gpuledger_collector.storage.locks import Connection

__all__ = [
    "LARGE_LINES",
    "MOST_LINES_IN_MEMORY",
    "Connection",
    "Database",
    "EnvironmentLacks",
    "QuestionAbandoned",
    "ReadReplica",
    "SchemaBehind",
    "ServerUnavailable",
    "Sessions",
    "StorageError",
    "TablesLocked",
    "TooManyLines",
    "collected_in",
    "person",
]

"""Errors that storage raises on purpose: one root, and a `permanent` bit for errors that no retry
cures.
"""

from __future__ import annotations


class StorageError(Exception):
    """Root of this package; the message is one sentence for people."""

    permanent = False


class ServerUnavailable(StorageError):
    """No Postgres can be reached or started; the message says what to do."""


class EnvironmentLacks(StorageError):
    """This machine or installation lacks something that must be installed or configured first."""

    permanent = True


class QuestionAbandoned(StorageError):
    """Nobody waits for the answer any more."""

    def __init__(self) -> None:
        super().__init__("the question was abandoned: nobody waits for its answer any more")


class TooManyLines(StorageError, ValueError):
    """An answer needs more lines of the ledger than one may have in memory."""

    permanent = True

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the answer needs more than {most:,} lines of the ledger: ask for a shorter period or"
            " fewer dimensions, or use the command of gpuledger that answers the same, which has"
            " no limit"
        )


class ReadReplica(StorageError):
    """The database is a read replica, and this needs to write."""

    permanent = True

    def __init__(self) -> None:
        super().__init__(
            "the database is a read replica, which takes no writes: give this command the address"
            " of the primary"
        )


class TablesLocked(StorageError):
    """A migration did not get its locks in any of its attempts."""


class SchemaBehind(StorageError):
    """The database's schema is not the one that this version reads and writes."""

    permanent = True

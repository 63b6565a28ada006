"""What storage raises on purpose: one root, and a `permanent` bit that says whether trying again can help."""

from __future__ import annotations


class StorageError(Exception):
    """Root of this package; the message is one sentence for people."""

    permanent = False


class ServerUnavailable(StorageError):
    """No Postgres can be reached or started; the sentence says what cures it."""


class EnvironmentLacks(StorageError):
    """This machine or installation lacks something that must be put there first."""

    permanent = True


class TablesLocked(StorageError):
    """A migration did not get its locks in all of its tries."""


class SchemaBehind(StorageError):
    """The database's schema is not the one that this version reads and writes."""

    permanent = True

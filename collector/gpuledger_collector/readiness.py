"""Readiness: whether this collector can take batches now, by its disk, its writers and its
database.

/readyz answers it, and the heartbeat stores it for `gpuledger doctor`. It writes nothing, so that a
probe causes no work.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass
class Readiness:
    """Checks everything that a batch needs.

    `folder`: of the embedded database, None for one given by DSN.
    """

    folder: Path | None
    min_free_bytes: int
    writers: Sequence[Callable[[], str | None]]
    """The fault of each group of writers, in a sentence."""
    database: Callable[[], str | None]
    """What keeps the database from being used, in a sentence; may block."""
    partitions: Callable[[], int] = lambda: 0
    """Counts the partitions of evidence; may block, and raise StorageError or psycopg.Error."""
    most_partitions: int = 0
    refusals: Callable[[], str | None] = lambda: None
    """Who was refused lately, in a sentence."""
    heartbeat: Callable[[], str] = lambda: ""
    """Why the last heartbeat failed; empty when it was written."""

    def problem(self) -> str | None:
        """Return what keeps this collector from taking batches, in a sentence; None when nothing
        does.
        """
        if self.folder is not None and (problem := disk_problem(self.folder, self.min_free_bytes)):
            return problem
        for writer in self.writers:
            if problem := writer():
                return problem
        if problem := self.database():
            return problem
        if error := self.heartbeat():
            return f"the database takes no writes: {error}"
        return None

    def note(self) -> str | None:
        """Return what needs attention although batches are taken; asked only without a problem."""
        return "; ".join(filter(None, (self.refusals(), self._partition_note()))) or None

    def _partition_note(self) -> str | None:
        try:
            count = self.partitions()
        except Exception as error:
            return f"the partitions could not be counted: {str(error).partition(chr(10))[0]}"
        if count <= self.most_partitions:
            return None
        return (
            f"{count} partitions of evidence, over {self.most_partitions} plans get slow: see"
            " gpuledger doctor"
        )


def disk_problem(folder: Path, min_free_bytes: int) -> str | None:
    """Return why the disk of the database is too full; None while it has room."""
    existing = next(
        (path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/")
    )
    free = shutil.disk_usage(existing).free
    if free >= min_free_bytes:
        return None
    return (
        f"{free // MIB} MiB are free on the disk of the database, {min_free_bytes // MIB} MiB are"
        " needed"
    )

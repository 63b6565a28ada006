"""Whether this collector can take batches now, and what stands in the way: its disk, its writers, its database.

What is told here is what /readyz answers and what the heartbeat leaves for `gpuledger doctor`. Nothing is written for
it: a probe that writes would be work that anybody can order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass
class Readiness:
    """Looks at all that a batch needs. `folder` is that of the embedded database, None for one by DSN."""

    folder: Path | None
    min_free_bytes: int
    writers: Sequence[Callable[[], str | None]]
    """What is wrong with each group of writers now, in a sentence."""
    database: Callable[[], str | None]
    """What keeps the database from being used, in a sentence; it may block."""
    partitions: Callable[[], int] = lambda: 0
    """How many partitions of evidence there are; it may block, and raise StorageError or psycopg.Error."""
    most_partitions: int = 0
    heartbeat: Callable[[], str] = lambda: ""
    """Why the last heartbeat could not be written, empty when it was."""

    def problem(self) -> str | None:
        """What keeps this collector from taking batches, in a sentence; None when nothing does."""
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
        """What does not keep this collector from taking batches and needs a cure; asked when there is no problem."""
        try:
            count = self.partitions()
        except Exception as error:
            return f"the partitions could not be counted: {str(error).partition(chr(10))[0]}"
        if count <= self.most_partitions:
            return None
        return f"{count} partitions of evidence, over {self.most_partitions} plans get slow: see gpuledger doctor"


def disk_problem(folder: Path, min_free_bytes: int) -> str | None:
    """Why the disk of the database cannot take more; None while it has room."""
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    free = shutil.disk_usage(existing).free
    if free >= min_free_bytes:
        return None
    return f"{free // MIB} MiB are free on the disk of the database, {min_free_bytes // MIB} MiB are needed"

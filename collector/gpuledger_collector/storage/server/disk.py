"""Whether a full disk is why the embedded database fails: by its log, by the driver's message and
by the disk itself.

A full disk shows as many things: initdb fails, Postgres ends with a PANIC, and clients then find
nobody who listens. People are told of the disk.
"""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

NEW_MEGABYTES = 100
"""What initdb and the first migration write."""
START_MEGABYTES = 16
"""One segment of the write-ahead log, without which recovery and the first commit fail."""
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_FULL_NUMBERS = (errno.ENOSPC, errno.EDQUOT)


def free_megabytes(folder: Path) -> int:
    """Free space for the disk's user of this folder or, while it does not exist, of the one above
    it.
    """
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free // 1_000_000


def is_full_error(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that a disk is full."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _FULL_NUMBERS) or _FULL.search(
            str(error)
        ):
            return True
        error = error.__cause__
    return False


def lacks_room(folder: Path, megabytes: int) -> str | None:
    """Return a sentence when the disk of a folder has less than this free, else None."""
    free = free_megabytes(folder)
    if free >= megabytes:
        return None
    return (
        f"the disk of {folder} is full: {free} MB are free and the database needs {megabytes} MB;"
        " free some, or set GPULEDGER_DATA_DIR to a folder on a larger disk"
    )


def full_disk(folder: Path, log: str) -> str | None:
    """Return a sentence when the server's log or message, or the disk itself, shows a full disk;
    else None.
    """
    if not _FULL.search(log):
        return lacks_room(folder, START_MEGABYTES)
    return (
        f"the disk of {folder} is full ({free_megabytes(folder)} MB free now); what was committed"
        " is safe: free some space and try again"
    )

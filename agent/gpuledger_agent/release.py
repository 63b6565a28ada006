"""Letting the GPUs go for a while: any NVML client blocks a GPU reset, a MIG change and the driver's unloading.

`gpuledger-agent release --for 10m` puts a note into the agent's state folder; the daemon lets every handle go, confirms
it in the note, and comes back by itself when the time is over or `gpuledger-agent resume` takes the note away. A file
needs no socket, survives the agent's restart, and may be written by whoever may write the folder.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "released.json"
LONGEST_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Release:
    """Until when (unix ms) the GPUs are let go, and whether the daemon has done so."""

    until_ms: int
    confirmed: bool = False


def read(folder: Path, now_ms: int) -> Release | None:
    """The release in force; None without one, when it is over, and for a note that cannot be read."""
    try:
        note = json.loads((folder / NAME).read_text())
        found = Release(int(note["until_ms"]), bool(note.get("confirmed", False)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return found if now_ms < found.until_ms <= now_ms + LONGEST_MS else None


def write(folder: Path, release: Release) -> None:
    """Puts the note there, whole or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{NAME}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    # Root writes here, and the folder is another user's: never through a link that he made (O_EXCL).
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o644)  # an administrator's umask must not hide the note from the agent's user
        file.write(json.dumps(asdict(release)))
    fresh.replace(folder / NAME)


def clear(folder: Path) -> bool:
    """Takes the note away; whether there was one."""
    try:
        (folder / NAME).unlink()
    except FileNotFoundError:
        return False
    return True

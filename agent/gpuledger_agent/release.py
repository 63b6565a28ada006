"""Release the GPUs for a while: any NVML client blocks a GPU reset, a MIG change and unloading the
driver.

`gpuledger-agent release --for 10m` writes a note into the agent's state folder; the daemon closes
every handle, confirms it in the note, and resumes by itself when the time is over or
`gpuledger-agent resume` removes the note. Whoever may write the folder may write it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuledger_agent.notes import clear_note, write_note
from gpuledger_common.bounded_file import read_regular

NAME = "released.json"
MAX_NOTE_BYTES = 4096
MAX_RELEASE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Release:
    """Until when (unix ms) the GPUs are released, and whether the daemon has released them."""

    until_ms: int
    confirmed: bool = False


def read(folder: Path, now_ms: int) -> Release | None:
    """The release in force; None without one, after its end, and for a note that cannot be read.

    Sampling asks in every round: what is no small file of ours may neither block nor stop it.
    """
    try:
        note = json.loads(read_regular(folder / NAME, MAX_NOTE_BYTES))
        release = Release(int(note["until_ms"]), bool(note.get("confirmed", False)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return release if now_ms < release.until_ms <= now_ms + MAX_RELEASE_MS else None


def write(folder: Path, release: Release) -> None:
    """Write the note atomically. Raises OSError."""
    write_note(folder, NAME, json.dumps(asdict(release)))


def clear(folder: Path) -> bool:
    """Remove the note; whether there was one."""
    return clear_note(folder, NAME)

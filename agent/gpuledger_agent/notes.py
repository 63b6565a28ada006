"""Notes to a running agent: small files in its state folder, which need no socket and survive a
restart.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_note(folder: Path, name: str, text: str) -> None:
    """Write a note atomically. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{name}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    # Root writes into a folder of another user, so never through a link that this user made
    # (O_EXCL).
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w") as file:
        # An administrator's umask must not hide the note from the agent's user.
        os.fchmod(descriptor, 0o644)
        file.write(text)
    fresh.replace(folder / name)


def clear_note(folder: Path, name: str) -> bool:
    """Remove a note; whether there was one. Raises OSError."""
    try:
        (folder / name).unlink()
    except FileNotFoundError:
        return False
    return True

"""Tell the collector that this agent is being uninstalled, so that nobody calls its node silent.

`gpuledger-agent goodbye` writes a note into the agent's state folder, as `release` does; the daemon
that stops next says so in its last heartbeat. Only uninstalling does this: a stop, a restart, an
upgrade and a reboot do not. A note that no stop has used is void when the agent starts again. What
the node has as capacity is not the agent's to end.
"""

from __future__ import annotations

from pathlib import Path

from gpuledger_agent.notes import clear_note, write_note

NAME = "goodbye"


def write(folder: Path) -> None:
    """Write the note. Raises OSError."""
    write_note(folder, NAME, "")


def clear(folder: Path) -> bool:
    """Remove the note; whether there was one. Raises OSError."""
    return clear_note(folder, NAME)

"""The last answer on what the node is to its cloud, kept beside the spool.

An agent that starts while the API server is away would report the node without its pool, and the
collector would book it in the default pool until the server answers.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpuledger_agent.notes import write_note
from gpuledger_agent.owners.node_labels import MAX_CHARACTERS
from gpuledger_common.bounded_file import read_regular
from gpuledger_common.readings import Machine

log = logging.getLogger("gpuledger_agent")

NAME = "machine.json"
MAX_NOTE_BYTES = 32 * 1024
"""Six texts of 256 characters, each at most 12 bytes as JSON writes it."""


@dataclass(slots=True)
class MachineNote:
    """The note of one node; that of another, as in a copied disk image, is none."""

    folder: Path
    node: str
    _failed: bool = field(default=False, init=False)

    def read(self) -> Machine | None:
        """The machine of the note; None without one, or with one that is broken."""
        try:
            content = json.loads(read_regular(self.folder / NAME, MAX_NOTE_BYTES))
            machine = Machine(**content["machine"])
            is_whole = content["node"] == self.node and all(
                isinstance(text, str) and len(text) <= MAX_CHARACTERS
                for text in asdict(machine).values()
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return machine if is_whole else None

    def write(self, machine: Machine) -> None:
        """Write the note atomically; what cannot be written is logged once."""
        text = json.dumps({"node": self.node, "machine": asdict(machine)})
        try:
            write_note(self.folder, NAME, text)
        except OSError as error:
            if not self._failed:
                log.warning("owners kubernetes: %s cannot be written: %s", NAME, error.strerror)
            self._failed = True

"""What furnishes a world with evidence and commands: a fleet, commands that must succeed, and files
for them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.books import Command
from fakes.fleet import NOW_MS, Fleet


class Runner:
    """Runs commands that must succeed."""

    def __init__(self, dsn: str) -> None:
        self._command = Command(dsn)

    def __call__(self, *arguments: object) -> str:
        code, text, wrong = self._command(*arguments)
        assert code == 0, (arguments, text, wrong)
        return text


@dataclass(frozen=True)
class Files:
    """Writes files of a folder."""

    folder: Path

    def write(self, name: str, text: str) -> Path:
        """Write one, and say where."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


@contextlib.contextmanager
def furnishing(dsn: str) -> Iterator[tuple[Fleet, Runner, Files]]:
    """A fleet and commands on an empty ledger, at the time `fakes.fleet.NOW_MS`; nothing stays
    connected.
    """
    fleet = Fleet(dsn)
    with (
        contextlib.closing(fleet.connection),
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
    ):
        patch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
        yield fleet, Runner(dsn), Files(Path(folder))

"""What a terminal is shown: names that agents and jobs chose must not move its cursor, title or clipboard."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.table import Table

_ACTING = re.compile("\x1b\\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Colours, which are ours and harmless in a name; and control characters, with those that turn the reading order."""


def plain(text: str) -> str:
    """The text with every control character but line ends and tabs spelt out."""
    return _ACTING.sub(lambda found: found[0] if len(found[0]) > 1 else f"\\u{ord(found[0]):04x}", text)


class Shown:
    """A stream to a terminal that passes on nothing which acts on it; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the plain text."""
        self._stream.write(plain(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def shown(stream: TextIO) -> Any:
    """The stream, shielded where it is a terminal; files and pipes get every byte as it is."""
    return Shown(stream) if stream.isatty() else stream


def print_table(table: Table, width: int) -> None:
    """Print a table, `width` columns wide in a file or pipe. Cells stand as they are: a name in them is no markup."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else width, markup=False, emoji=False).print(table)

"""What a terminal or a pipe is shown: names that agents and jobs chose must not move a cursor or forge a line.

Whoever prints a line with a name in it uses `say`, and tables escape their cells (export.tables). The stream is the
second wall: whatever a command writes, nothing passes that acts on a terminal but the few colors that are ours.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

from gpuledger_common.escapes import escape_lines, escape_text

if TYPE_CHECKING:
    from gpuledger_collector.export.tables import Table

_COLOR = re.compile("(\x1b\\[(?:(?:0|1|2|3|4|22|23|24|3[1-6]|39)(?:;|(?=m)))*m)")
"""Styles of help and tables: none of them hides text, gives it the color of its background, or makes it blink."""


def say(line: str, *, error: bool = False, flush: bool = False) -> None:
    """Print one line, on standard error when asked to; what is not seen in it is an escape."""
    print(escape_text(line), file=sys.stderr if error else sys.stdout, flush=flush)


def plain(text: str, *, colors: bool = False) -> str:
    """The text with every control character but line ends and tabs as an escape; our own colors stay where wanted."""
    if not colors:
        return escape_lines(text)
    parts = _COLOR.split(text)
    return "".join(part if place % 2 else escape_lines(part) for place, part in enumerate(parts))


class Shown:
    """A stream that passes on nothing which acts on a terminal; all else is the stream's own."""

    def __init__(self, stream: TextIO, *, colors: bool) -> None:
        self._stream = stream
        self._colors = colors

    def write(self, text: str) -> int:
        """Write the plain text."""
        self._stream.write(plain(text, colors=self._colors))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def shown(stream: TextIO) -> Any:
    """The stream, shielded; colors pass to a terminal, and where the environment asks for them."""
    return Shown(stream, colors=stream.isatty() or bool(os.environ.get("FORCE_COLOR")))


def print_table(table: Table, width: int) -> None:
    """Print a table, `width` columns wide in a file or pipe. Cells stand as they are: a name in them is no markup."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else width, markup=False, emoji=False).print(table)

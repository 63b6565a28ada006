"""What a terminal or a pipe is shown: names that agents and jobs chose must not move a cursor or
forge a line.

Code that prints a line with a name in it uses `say`, and tables escape their cells (export.tables).
The shielded stream is the second defense: whatever a command writes, only our own colors act on the
terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from gpuledger_common.escapes import escape_lines, escape_text

_COLOR = re.compile("(\x1b\\[(?:(?:0|1|2|3|4|22|23|24|3[1-6]|39)(?:;|(?=m)))*m)")
"""Styles of tables: none of them hides text, gives it the color of its background, or makes it
blink.
"""
MOST_HELD = 1 << 22
"""Characters of held output; whatever is longer is no answer for a pager, and streams."""


def say(line: str, *, error: bool = False, flush: bool = False) -> None:
    """Print one line, on standard error when asked to; invisible characters are shown as escapes."""
    print(escape_text(line), file=sys.stderr if error else sys.stdout, flush=flush)


def plain(text: str, *, colors: bool = False) -> str:
    """The text with control characters other than line feeds and tabs as escapes; our own colors
    stay if wanted.
    """
    if not colors:
        return escape_lines(text)
    parts = _COLOR.split(text)
    return "".join(part if index % 2 else escape_lines(part) for index, part in enumerate(parts))


class ShieldedStream:
    """A stream that passes on no control sequence but our colors; all else is the stream's own."""

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


class HeldStream:
    """A stream whose texts wait until they are released, or until they are many; all else is the
    stream's own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._texts: list[str] | None = []
        self._held = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Keep a text; what is too long to be kept goes out, and so does all that follows."""
        if self._texts is None:
            return self._stream.write(text)
        self._texts.append(text)
        self._held += len(text)
        if self._held > MOST_HELD:
            self.release()
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Keep texts one by one."""
        for text in texts:
            self.write(text)

    def release(self) -> None:
        """Write what was kept, and keep nothing any more."""
        texts, self._texts = self._texts or [], None
        for text in texts:
            self._stream.write(text)


@contextlib.contextmanager
def hold_output() -> Iterator[None]:
    """Keep what is printed until the end of the block: a pager that stands still holds up nothing
    that the block has open. An export of more than MOST_HELD streams.
    """
    stream = sys.stdout
    held = HeldStream(stream)
    sys.stdout = cast(TextIO, held)
    try:
        yield
    finally:
        sys.stdout = stream
        held.release()


def shield(stream: TextIO) -> Any:
    """The stream, shielded; colors pass to a terminal, and where the environment asks for them."""
    return ShieldedStream(stream, colors=stream.isatty() or bool(os.environ.get("FORCE_COLOR")))

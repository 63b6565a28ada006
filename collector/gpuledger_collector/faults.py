"""What may be written of an exception: its kind, the first line of its message, and where it
happened.

What follows the first line of a database's message quotes the rows that it refused (DETAIL,
CONTEXT), and the values of variables are those of a batch: neither belongs in a log that others
read.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

MESSAGE_CHARACTERS = 300
MAX_FRAMES = 20
"""Innermost frames of each exception of a chain."""
MAX_CHAIN = 4


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, shortened."""
    line = str(error).strip().partition("\n")[0]
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[:MESSAGE_CHARACTERS]}..."


def sentence(error: BaseException) -> str:
    """Kind and first line of an exception."""
    return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")


def origin(error: BaseException, package: str = "gpuledger_") -> tuple[str, int]:
    """File and line of the innermost frame in our own packages, else of the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if package in frame.filename]
    for frame in reversed(own or frames):
        return frame.filename, frame.lineno or 0
    return "", 0


def report(error: BaseException) -> str:
    """A traceback with what led to it, oldest first, without values of variables; each fault is
    shown once.
    """
    parts: dict[tuple[str, tuple[str, int]], str] = {}
    for linked in _chain(error):
        frames = traceback.extract_tb(linked.__traceback__)[-MAX_FRAMES:]
        text = "".join(traceback.format_list(frames)) + sentence(linked)
        parts.setdefault((sentence(linked), origin(linked)), text)
    return "Traceback (most recent call last):\n" + "\nwhich led to:\n".join(
        reversed(parts.values())
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that led to it, newest first."""
    linked: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if linked is None:
            return
        yield linked
        linked = linked.__cause__ or (None if linked.__suppress_context__ else linked.__context__)

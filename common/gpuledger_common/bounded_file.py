"""Read a file within a size, whoever wrote it: what is too large is refused before it is in memory."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

CHUNK = 1024 * 1024
MAX_TOML_BYTES = 8 * 1024 * 1024
"""Settings, profiles and declared tables: tens of thousands of lines."""
MAX_TOML_PARTS = 500_000
"""Keys and values of a file in TOML: each takes a kilobyte while it is parsed, whatever its text."""
_BETWEEN_PARTS = "=[{,."
"""Characters that stand between keys and values."""
MAX_DOTS = 1_000
"""Of a line: the parser's time grows with the square of the parts of a dotted key."""
MAX_SECRET_BYTES = 1024 * 1024
"""A token file of the whole fleet holds thousands."""
PIPE_SECONDS = 5
"""How long a secret may take to come out of a pipe: who reads it again, at SIGHUP or at each push,
holds up what else its thread does.
"""
MOUNTED_SECRETS = (Path("/run/secrets"), Path("/var/run/secrets"))
"""Secrets of containers, whose modes the engine decides; nobody else is in there."""

_warned: set[Path] = set()


class Readable(Protocol):
    """What bytes are read from: a file, or a stream that inflates one."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class _Pipe:
    """A file that may have nothing to read yet, or never: whoever reads it waits for no longer than
    PIPE_SECONDS in all.
    """

    def __init__(self, file: io.FileIO, path: Path) -> None:
        self._file, self._path = file, path
        self._ends = time.monotonic() + PIPE_SECONDS

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end. Raises TimeoutError."""
        # Read first: a pipe without a writer is at its end, and is never reported as readable.
        while (piece := self._file.read(size)) is None:
            left = max(0.0, self._ends - time.monotonic())
            if not select.select([self._file], [], [], left)[0]:
                break
        else:
            return piece
        raise TimeoutError(
            errno.ETIMEDOUT, f"nothing wrote to its end in {PIPE_SECONDS} s", str(self._path)
        )


class FileTooLarge(OSError):
    """A file beyond its bound; `strerror` says which."""

    def __init__(self, path: Path, sentence: str) -> None:
        super().__init__(errno.EFBIG, sentence, str(path))


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file or a pipe. Raises OSError, FileTooLarge beyond the bound."""
    with path.open("rb") as file:
        return bytes(read_stream(file, path, max_bytes))


def read_toml_text(path: Path) -> str:
    """The text of a file in TOML, whose keys and values are counted before they are objects.

    Raises OSError, FileTooLarge, and UnicodeDecodeError for what is not UTF-8 text.
    """
    text = read_bounded(path, MAX_TOML_BYTES).decode("utf-8")
    if sum(map(text.count, _BETWEEN_PARTS)) > MAX_TOML_PARTS:
        raise FileTooLarge(path, f"holds more than {MAX_TOML_PARTS} keys and values; split it")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_DOTS:
            raise FileTooLarge(path, f"line {number} has more than {MAX_DOTS} dots; divide it")
    return text


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The same of a regular file alone: anything else that users can put there would block.

    Raises OSError.
    """
    with open(path, "rb", opener=_open_without_blocking) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return bytes(read_stream(file, path, max_bytes))


def read_stream(stream: Readable, path: Path, max_bytes: int) -> bytearray:
    """All that a stream gives, in pieces, so that one that never ends takes no more memory than the
    bound.
    """
    content = bytearray()
    while piece := stream.read(min(CHUNK, max_bytes + 1 - len(content))):
        content += piece
        if len(content) > max_bytes:
            raise FileTooLarge(path, f"larger than {max_bytes} bytes")
    return content


def read_secret_file(path: Path, warn: Callable[[str], None]) -> str:
    """The content of a secret's file, stripped; `warn` is told once where every user of the machine
    can read it. A pipe, as a shell makes for `<(command)`, is read for PIPE_SECONDS at most.

    Raises OSError, and ValueError for what is not UTF-8 text.
    """
    with open(path, "rb", buffering=0, opener=_open_without_blocking) as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        stream: Readable = file if is_regular else _Pipe(file, path)
        content = bytes(read_stream(stream, path, MAX_SECRET_BYTES))
    if is_regular and path not in _warned and _is_open_to_others(path):
        _warned.add(path)
        warn(f"{path} can be read by every user of this machine: chmod o-r {path}")
    return content.decode("utf-8").strip()


def _is_open_to_others(path: Path) -> bool:
    """Whether users other than owner and group can read a file: it, and the way to it, are open to
    them.
    """
    resolved = path.resolve()
    if any(
        path.is_relative_to(folder) or resolved.is_relative_to(folder) for folder in MOUNTED_SECRETS
    ):
        return False
    if not resolved.stat().st_mode & stat.S_IROTH:
        return False
    return _is_reachable(resolved)


def _is_reachable(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)

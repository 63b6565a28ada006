"""Files of commands: how large they may be, before and after decompression, and how many rows they
may have.

A file beyond a bound is refused as a whole (FileTooLarge, exit 2), also where bad rows are skipped:
the first part of a file of jobs would be a bill that is too small.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO, TypeVar

from gpuledger_common.bounded_file import CHUNK, FileTooLarge, Readable, read_stream

MAX_FILE_BYTES = 512 * 1024 * 1024
"""Before and after decompression; as text a file takes this once more."""
MAX_RECORDS = 5_000_000
MAX_LINE_CHARACTERS = 4 * 1024 * 1024
"""A line of a file that is read line by line."""
PARQUET_ROWS = 1_000
"""Rows of a Parquet file that are decoded at once: a long text that stands once in the file is in
each of its rows.
"""
Item = TypeVar("Item")


def read_content(path: Path) -> bytearray:
    """The content of a file, inflated where its name ends in .gz.

    Raises OSError, EOFError and zlib.error.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            raise FileTooLarge(path, f"larger than {MAX_FILE_BYTES} bytes; split it")
        stream: Readable = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        return read_stream(stream, path, MAX_FILE_BYTES)


def sha256_of(path: Path) -> str:
    """The digest of a file as it is stored. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            size += len(piece)
            if size > MAX_FILE_BYTES:
                raise FileTooLarge(path, f"larger than {MAX_FILE_BYTES} bytes")
            digest.update(piece)
    return digest.hexdigest()


def bounded_rows(path: Path | str, rows: Iterable[Item]) -> Iterator[Item]:
    """The rows, good and bad, of a file. Raises FileTooLarge where there are too many."""
    for number, row in enumerate(rows, 1):
        if number > MAX_RECORDS:
            raise FileTooLarge(Path(path), f"more than {MAX_RECORDS} rows; split it")
        yield row


def bounded_lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of an open file. Raises FileTooLarge for one without end."""
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise FileTooLarge(path, f"a line is longer than {MAX_LINE_CHARACTERS} characters")
        yield line

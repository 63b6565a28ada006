"""Files of commands: how large they may be, before and after decompression, and how many rows,
values and mistakes they may have.

A file beyond a bound is refused as a whole (FileTooLarge, exit 2), also where bad rows are skipped:
the first part of a file of jobs would be a bill that is too small. A row beyond its bound is a bad
row, because a person whose job is in the file may have written it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, TextIO, TypeVar

from gpuledger_common.bounded_file import CHUNK, FileTooLarge, Readable, read_stream

MAX_FILE_BYTES = 512 * 1024 * 1024
"""Before and after decompression; as text a file takes this once more."""
MAX_RECORDS = 5_000_000
ROW_MEMORY_BYTES = 640
"""What a good row of a table of jobs takes until it is written, beside its own texts: an import is
one transaction, whose rows are put together by workload first.
"""
MAX_ROW_CHARACTERS = 1024 * 1024
"""Of a row, which may hold line ends, or of a line that is read as JSON."""
MAX_COLUMNS = 1024
"""Of a header; a row has as many cells as its header."""
MAX_JSON_VALUES = 1_000_000
"""Of a JSON text as a whole: an empty list takes two characters, and 64 bytes of memory."""
MAX_CELLS = 20_000_000
"""Of a table of series, whose rows have as many cells as its header, written or not."""
MAX_ACCOUNTS = 100_000
MAX_ACCOUNT_DEPTH = 100
"""Accounts that stand above each other: the digits of a share grow with them."""
MAX_PROBLEMS = 1_000_000
"""Mistakes of a file that are kept to be counted."""
MAX_REMEMBERED_BYTES = 1024 * 1024 * 1024
"""Of a FOCUS file to check: invoices, rates, resources and origin charges, which rows are compared
with until the end.
"""
_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""What ends a line for `str.splitlines`."""
_OPENS_VALUE = "[{,"
"""Characters before which, or after which, a value of JSON stands."""
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
    while line := file.readline(MAX_ROW_CHARACTERS + 1):
        if len(line) > MAX_ROW_CHARACTERS:
            raise FileTooLarge(path, f"a line is longer than {MAX_ROW_CHARACTERS} characters")
        yield line


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text without their ends, as `str.splitlines` has them, one by one: a list of
    empty lines takes eight times what the text does.
    """
    start = 0
    for end in _LINE_END.finditer(text):
        yield text[start : end.start()]
        start = end.end()
    if start < len(text):
        yield text[start:]


def read_json(text: str) -> Any:
    """The value of a JSON text, whose values are counted before they are objects.

    Raises ValueError with what is wrong, also of what nests too deep.
    """
    if sum(map(text.count, _OPENS_VALUE)) > MAX_JSON_VALUES:
        raise ValueError(f"holds more than {MAX_JSON_VALUES} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nests too deep") from None


def require_few_problems(file: Path | str, problems: Sized) -> None:
    """Refuse a file that has so many mistakes that they fill the memory. Raises FileTooLarge."""
    if len(problems) > MAX_PROBLEMS:
        raise FileTooLarge(Path(file), f"more than {MAX_PROBLEMS} mistakes; is it another file?")

"""Rows of CSV whose length is bounded: a quoted cell may hold line ends, so that a row without an
end would take the whole file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any

from gpuledger_collector.config.files import MAX_ROW_CHARACTERS

# cells over MAX_TEXT are refused with their column; csv's own limit, 128 KiB by default, knows none
csv.field_size_limit(MAX_ROW_CHARACTERS)


class BoundedRows:
    """A csv.reader that raises csv.Error for a row over `MAX_ROW_CHARACTERS`, and goes on after it
    with the next line.

    `line_num` counts lines as csv.reader does; `options` are those of csv.reader.
    """

    def __init__(self, lines: Iterable[str], **options: Any) -> None:
        self._lines = _RowLines(iter(lines))
        self._reader = csv.reader(self._lines, **options)

    @property
    def line_num(self) -> int:
        """How many lines are read."""
        return self._lines.count

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        self._lines.characters = 0
        return next(self._reader)


class _RowLines:
    """Counts lines, and the characters of those that a row takes.

    No generator: after an error it goes on.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.count = self.characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.count += 1
        self.characters += len(line)
        if self.characters > MAX_ROW_CHARACTERS:
            raise csv.Error(f"a row is longer than {MAX_ROW_CHARACTERS} characters")
        return line

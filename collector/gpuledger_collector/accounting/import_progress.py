"""How far an import is, while it reads its file and while its rows pass the stages of being
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")
OnRow = Callable[[int, int], None]
"""Takes how much is done, of how much."""
ROWS_A_STEP = 1000


def tell_nobody(_done: int, _total: int) -> None:
    """Take how far an import is where nobody asks."""


def tell_each(items: Iterable[Row], total: int, on_row: OnRow, passed: int = 0) -> Iterator[Row]:
    """Yield the items, telling now and then how many of all have passed; `passed`: how many did
    before these.
    """
    for number, item in enumerate(items, passed):
        if (number - passed) % ROWS_A_STEP == 0:
            # The total may be an estimate: no share is more than the whole.
            on_row(min(number, total), total)
        yield item


@dataclass
class RowStages(Generic[Row]):
    """Tells how many rows have passed how many of `stages`, as a share of all of that."""

    rows: Sequence[Row]
    stages: int
    on_row: OnRow
    passed: int = 0

    def one_by_one(self) -> Iterator[Row]:
        """The rows of the first stage."""
        yield from tell_each(self.rows, len(self.rows), lambda done, _total: self._tell(done))
        self.pass_stage()

    def pass_stage(self) -> None:
        """All rows have passed another stage."""
        self.passed += 1
        self._tell(0)

    def _tell(self, number: int) -> None:
        self.on_row(self.passed * len(self.rows) + number, self.stages * len(self.rows))

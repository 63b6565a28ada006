"""How far an import is: its rows pass several stages, of which the first takes them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")
OnRow = Callable[[int, int], None]
"""Takes how much is done, of how much."""
ROWS_A_STEP = 1000


def tell_nobody(_done: int, _total: int) -> None:
    """Take how far an import is where nobody asks."""


@dataclass
class RowStages(Generic[Row]):
    """Tells how many rows have passed how many of `stages`, as a share of all of that."""

    rows: Sequence[Row]
    stages: int
    on_row: OnRow
    passed: int = 0

    def one_by_one(self) -> Iterator[Row]:
        """The rows of the first stage."""
        for number, row in enumerate(self.rows):
            if number % ROWS_A_STEP == 0:
                self._tell(number)
            yield row
        self.pass_stage()

    def pass_stage(self) -> None:
        """All rows have passed another stage."""
        self.passed += 1
        self._tell(0)

    def _tell(self, number: int) -> None:
        self.on_row(self.passed * len(self.rows) + number, self.stages * len(self.rows))

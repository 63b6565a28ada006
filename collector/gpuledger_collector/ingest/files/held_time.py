"""How long a job of a table held its GPUs, by all that the table says of it: its end, durations,
suspended time.

Suspended time is not held. Slurm's Elapsed leaves it out, End - Start does not; so a duration
beside an end is compared with it, and what disagrees is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS
from gpuledger_collector.config.model import Record
from gpuledger_collector.ingest.files.instants import (
    UNIT_MS,
    is_number,
    span_ms,
    suspended_ms,
    units_ms,
)
from gpuledger_common.plurals import plural

DURATIONS = ("duration", *UNIT_MS)
"""Meanings of columns that stand for the end: it is so long after the start."""
SUSPENDED = "suspended"
"""The meaning of a column with the time in which a job was suspended."""


@dataclass(slots=True)
class HeldTime:
    """Decides the end of the held time of a table's jobs.

    `columns`: meaning -> name of those that it looks at.

    `is_slurm`: the duration is Slurm's, which leaves suspended time out.
    """

    columns: Mapping[str, str]
    is_slurm: bool
    number: Callable[[str], str]
    """Writes a number of the table with a decimal point."""
    suspended: int = 0
    """Jobs that were suspended for a time."""

    def end_ms(self, row: Record, start_ms: int, end_ms: int) -> int:
        """The end of the held time of a job that has ended: the time between is as long as it held
        its GPUs.

        Raises ValueError with a sentence.
        """
        pause_ms = self._pause_ms(row)
        if pause_ms is None:
            cell = row.cells[self.columns[SUSPENDED]].strip()
            raise ValueError(f"{cell!r} in {self.columns[SUSPENDED]} is no span such as 1-02:03:04")
        held_ms = end_ms - start_ms - pause_ms
        if pause_ms and held_ms < 0:
            raise ValueError(f"{self.columns[SUSPENDED]} is longer than the job ran")
        length = self._length(row)
        if length is not None and not length.agrees_with(held_ms):
            if not self.is_slurm or SUSPENDED in self.columns or length.ms > held_ms:
                raise ValueError(self._disagreement(length, held_ms, pause_ms))
            pause_ms, held_ms = held_ms - length.ms, length.ms
        self.suspended += pause_ms > 0
        return start_ms + held_ms

    def notes(self) -> Iterator[str]:
        """The sentence about suspended jobs."""
        if self.suspended:
            yield (
                f"{plural(self.suspended, 'job')} suspended for a time, which is not held: not"
                " billed"
            )

    def _pause_ms(self, row: Record) -> int | None:
        return suspended_ms(row.cells[self.columns[SUSPENDED]]) if SUSPENDED in self.columns else 0

    def _length(self, row: Record) -> _Length | None:
        """The duration that a row states; None where it states none that is understood."""
        for meaning in DURATIONS:
            if meaning in self.columns:
                cell = row.cells[self.columns[meaning]].strip()
                return _length(meaning, cell, self.number(cell))
        return None

    def _disagreement(self, length: _Length, held_ms: int, pause_ms: int) -> str:
        name = self.columns[length.meaning]
        less = f" less the suspended {_span(pause_ms)}" if pause_ms else ""
        return (
            f"end - start{less} is {_span(held_ms)}, and {name} says {length.cell!r}; --column"
            f" end={self.columns['end']} bills the former, --column {length.meaning}={name} the"
            " latter"
        )


@dataclass(frozen=True, slots=True)
class _Length:
    """A stated duration: milliseconds, and how far they may be off by rounding."""

    meaning: str
    cell: str
    ms: int
    within_ms: int

    def agrees_with(self, held_ms: int) -> bool:
        """Whether a time is of this length, as far as its last digit tells."""
        return abs(held_ms - self.ms) <= self.within_ms


def _length(meaning: str, cell: str, number: str) -> _Length | None:
    unit_ms = UNIT_MS.get(meaning)
    if unit_ms is None and is_number(cell):
        # Of a bare number nobody said the unit.
        return None
    try:
        if unit_ms is None:
            return _Length(meaning, cell, span_ms(cell), _last_unit_ms(cell.lower()))
        digits = len(number.partition(".")[2])
        return _Length(meaning, cell, units_ms(number, unit_ms), max(unit_ms // 10**digits, 1))
    except ValueError:
        return None


def _last_unit_ms(span: str) -> int:
    if ":" in span or span.endswith("s"):
        return 1000
    return MINUTE_MS if span.endswith("m") else HOUR_MS if span.endswith("h") else DAY_MS


def _span(ms: int) -> str:
    hours, rest = divmod(ms // 1000, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"

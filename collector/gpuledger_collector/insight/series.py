"""Evenly spaced series of demand, as an estimator needs them.

A table of rows `ts, series, value` becomes one array per series on its own grid. Missing instants
are unknown (NaN), exactly like a row with an empty value, and never zero. Rows may come in any
order; an instant given twice or off the grid is a fault of the table, and is reported with its
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.period import HOUR_MS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_STEPS = 20_000_000
"""Of all series of a table: a longer one has a mistake in its instants (a year 1970 among years
2026).
"""


@dataclass(frozen=True)
class Series:
    """One evenly spaced series: `values[i]` is the value at `start_ms + i * step_ms`, NaN where it
    is not known.
    """

    name: str
    start_ms: int
    step_ms: int
    values: Floats

    @property
    def end_ms(self) -> int:
        """The last instant of the series."""
        return self.start_ms + (len(self.values) - 1) * self.step_ms

    @property
    def known_until_ms(self) -> int | None:
        """The end of the last step with a value; None without one."""
        known = np.flatnonzero(np.isfinite(self.values))
        return None if not len(known) else self.start_ms + (int(known[-1]) + 1) * self.step_ms

    @property
    def known_count(self) -> int:
        """Number of instants with a value."""
        return int(np.isfinite(self.values).sum())

    def known_before(self, index: int) -> Series:
        """Return the series as it was known before `values[index]`."""
        return Series(self.name, self.start_ms, self.step_ms, self.values[:index])


@dataclass(frozen=True)
class Fault:
    """A row that does not fit an evenly spaced series; `row` counts the table's rows from 0."""

    row: int
    column: str
    message: str


def series_of(
    names: Sequence[str], code: Ints, at_ms: Ints, values: Floats, step_ms: int | None = None
) -> tuple[list[Series], list[Fault]]:
    """Build series from parsed rows; `names[code[i]]` owns row i.

    Without `step_ms` it is the most frequent distance.

    Returns the series in the order of `names` and the faults of rows that are off the grid or
    repeat an instant; a series with faults is left out. A series of a single row has the step of
    the others (an hour when there is none).
    """
    order = np.lexsort((at_ms, code))
    bounds = np.searchsorted(code[order], np.arange(len(names) + 1))
    parts = [order[bounds[i] : bounds[i + 1]] for i in range(len(names))]
    steps = [step_ms or _step(at_ms[rows]) for rows in parts]
    fallback = min((step for step in steps if step), default=HOUR_MS)
    out: list[Series] = []
    faults: list[Fault] = []
    free = MAX_STEPS
    for name, rows, step in zip(names, parts, steps, strict=True):
        if not len(rows):
            continue
        wrong = _faults(name, rows, at_ms, step or fallback, free)
        faults.extend(wrong)
        if not wrong:
            out.append(_place(name, at_ms[rows], values[rows], step or fallback))
            free -= len(out[-1].values)
    return out, sorted(faults, key=lambda fault: fault.row)


def _step(at_ms: Ints) -> int:
    """Most frequent distance between neighbors in ms, the smallest of equals; 0 when there is none."""
    distance = np.diff(at_ms)
    distance = distance[distance > 0]
    if not len(distance):
        return 0
    distances, count = np.unique(distance, return_counts=True)
    return int(distances[np.argmax(count)])


def _faults(name: str, rows: Ints, at_ms: Ints, step: int, free: int) -> list[Fault]:
    at = at_ms[rows]
    offset = at - at[0]
    if not (offset % step).any() and (np.diff(at) > 0).all():
        if int(offset[-1]) // step < free:
            return []
        others = "" if free == MAX_STEPS else ", with those before it,"
        sentence = (
            f"series {name!r}{others} would span more than {MAX_STEPS} steps of {step / 1000:g} s"
        )
        return [Fault(int(rows[-1]), "ts", sentence)]
    twice = np.concatenate([[False], np.diff(at) == 0])
    repeated = [
        Fault(int(rows[i]), "ts", f"series {name!r} has this instant twice")
        for i in np.flatnonzero(twice)
    ]
    uneven = np.flatnonzero(offset % step != 0)
    text = (
        f"series {name!r} is not evenly spaced: this instant is off its step of {step / 1000:g} s"
    )
    return repeated + [Fault(int(rows[i]), "ts", text) for i in uneven]


def _place(name: str, at: Ints, values: Floats, step: int) -> Series:
    index = (at - at[0]) // step
    grid = np.full(int(index[-1]) + 1, np.nan)
    grid[index] = values
    return Series(name, int(at[0]), step, grid)


def fill_forward(values: Floats, before: float = 0.0) -> Floats:
    """Fill each gap with the last known value, and `before` where nothing is known yet."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.asarray(np.where(last >= 0, values[np.maximum(last, 0)], before))

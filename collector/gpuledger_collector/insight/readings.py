"""Readings of accelerators as arrays, and their means over longer steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.period import Period

Array = npt.NDArray[Any]
Present = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """Values (f4, f8 or i8), one a row; `present` is False where the value is NULL, whatever
    `values` holds there.
    """

    values: Array
    present: Present


@dataclass(frozen=True, slots=True)
class Readings:
    """Samples of one accelerator: instants (unix ms, int64) and columns of the same length."""

    at_ms: Array
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.at_ms)


@dataclass(frozen=True, slots=True)
class AcceleratorPeriod:
    """An accelerator, and the part of a period for which its samples are wanted."""

    accelerator_id: int
    uuid: str
    period: Period


def mean_readings(readings: Readings, step_ms: int) -> Readings:
    """The mean of each metric over each step with a sample, without absent readings and non-finite
    numbers.

    Counters are averaged as well: their difference over a step is lost only below the step.
    """
    at, place = np.unique(readings.at_ms - readings.at_ms % step_ms, return_inverse=True)
    columns = {}
    for name, column in readings.columns.items():
        values = column.values.astype(np.float64)
        is_present = column.present & np.isfinite(values)
        count = np.bincount(place[is_present], minlength=len(at))
        total = np.bincount(place[is_present], weights=values[is_present], minlength=len(at))
        columns[name] = Column(
            np.divide(total, count, out=np.zeros(len(at)), where=count > 0), count > 0
        )
    return Readings(at, columns)

"""The hourly ledger of a day as columns of integers: what rating reads of a large fleet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.usage import STATES, HourlyUsage
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.plurals import plural

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
LARGEST = 2**62
"""No product may exceed it, so that no sum of two leaves 63 bits."""
NONE = -1
"""No workload, no report of it, no energy: none of them is ever negative."""
_NUMBERS = " ".join(f"WHEN '{state}' THEN {number}" for number, state in enumerate(STATES))
_EXPRESSIONS = {
    "start_ms": "hour_ms",
    "state": f"CASE state {_NUMBERS} END",
    "workload_id": "coalesce(workload_id, -1)",
    "attributes_id": "coalesce(workload_attributes_id, -1)",
    "energy_mj": "coalesce(energy_mj, -1)",
}
"""What is read of the columns that are not stored as HourColumns has them."""


@dataclass(frozen=True, slots=True)
class HourColumns:
    """Hourly usage, column by column; `state` is the place in STATES, NONE stands for what is
    absent.
    """

    accelerator_id: Integers
    start_ms: Integers
    state: Integers
    workload_id: Integers
    attributes_id: Integers
    held_ms: Integers
    busy_ms: Integers
    idle_ms: Integers
    unknown_ms: Integers
    energy_mj: Integers

    def where(self, rows: Booleans | Integers) -> HourColumns:
        """These rows, or the rows in this order."""
        return HourColumns(*(getattr(self, column.name)[rows] for column in fields(self)))

    def holder(self, row: int) -> tuple[str, int | None, int | None]:
        """State, workload and report of a row."""
        return (
            STATES[int(self.state[row])],
            _known_or_none(int(self.workload_id[row])),
            _known_or_none(int(self.attributes_id[row])),
        )

    def holders(self) -> set[tuple[int | None, int | None]]:
        """Workloads and their reports that occur."""
        pairs = set(zip(self.workload_id.tolist(), self.attributes_id.tolist(), strict=True))
        return {
            (_known_or_none(workload_id), _known_or_none(attributes_id))
            for workload_id, attributes_id in pairs
        }

    def pieces(self) -> list[HourlyUsage]:
        """The same as values."""
        rows = zip(
            self.accelerator_id.tolist(),
            self.start_ms.tolist(),
            self.state.tolist(),
            self.workload_id.tolist(),
            self.held_ms.tolist(),
            self.busy_ms.tolist(),
            self.idle_ms.tolist(),
            self.unknown_ms.tolist(),
            self.energy_mj.tolist(),
            self.attributes_id.tolist(),
            strict=True,
        )
        return [
            HourlyUsage(
                accelerator_id,
                start_ms,
                start_ms - start_ms % HOUR_MS + HOUR_MS,
                STATES[state],
                _known_or_none(workload_id),
                held_ms,
                busy_ms,
                idle_ms,
                unknown_ms,
                _known_or_none(energy_mj),
                _known_or_none(attributes_id),
            )
            for (
                accelerator_id,
                start_ms,
                state,
                workload_id,
                held_ms,
                busy_ms,
                idle_ms,
                unknown_ms,
                energy_mj,
                attributes_id,
            ) in rows
        ]


def _known_or_none(number: int) -> int | None:
    return None if number == NONE else number


def read(connection: Connection, day: Period, until_ms: int) -> HourColumns:
    """Read the hourly ledger of a day up to an instant, by accelerator, rating interval, state and
    workload.
    """
    names = [column.name for column in fields(HourColumns)]
    packed = " || ".join(f"int8send({_EXPRESSIONS.get(name, name)})" for name in names)
    # One value that numpy reads: tens of thousands of rows, or the items of as many lists, take
    # longer to arrive than to be rated.
    count, numbers = (
        connection.cursor(binary=True)
        .execute(
            f"SELECT count(*), coalesce(string_agg({packed}, ''), '') FROM usage_hour WHERE hour_ms >="
            " %s AND hour_ms < %s",
            (day.start_ms, min(day.end_ms, until_ms)),
        )
        .fetchall()[0]
    )
    rows = np.frombuffer(numbers, dtype=">i8").reshape(-1, len(names))
    # A row with a state that is not among ours is NULL as a whole, and its time would be lost.
    if len(rows) != count:
        raise StorageError(
            f"usage_hour has {plural(count - len(rows), 'row')} whose state this version does not"
            " know: did a newer collector write to this ledger?"
        )
    columns = HourColumns(*(rows[:, place].astype(np.int64) for place in range(len(names))))
    keys = sort_keys(columns.accelerator_id, columns.start_ms, columns.state, columns.workload_id)
    return _with_first_reports(connection, columns.where(np.argsort(keys, kind="stable")))


def sort_keys(*columns: Integers) -> Integers:
    """One number for each row: they compare as the values of the rows do, those of the first column
    first.
    """
    keys, size = np.zeros(columns[0].size, dtype=np.int64), 1
    for column in columns if keys.size else ():
        low, width = int(column.min()), int(column.max()) - int(column.min()) + 1
        if size * width >= LARGEST:
            # Numbered anew, so that both factors are at most the number of rows.
            keys, column = (
                np.unique(numbers, return_inverse=True)[1] for numbers in (keys, column)
            )
            low, width, size = 0, keys.size, keys.size
        keys, size = keys * width + (column - low), size * width
    return keys


def _with_first_reports(connection: Connection, columns: HourColumns) -> HourColumns:
    """Rows of before reports were kept refer to the first one of their workload."""
    without = (columns.attributes_id == NONE) & (columns.workload_id != NONE)
    workloads = np.unique(columns.workload_id[without])
    first = dict(_first_reports(connection, workloads.tolist())) if workloads.size else {}
    if first:
        of_workload = np.array(
            [first.get(number, NONE) for number in workloads.tolist()], dtype=np.int64
        )
        columns.attributes_id[without] = of_workload[
            np.searchsorted(workloads, columns.workload_id[without])
        ]
    return columns


def _first_reports(connection: Connection, workload_ids: list[int]) -> Iterable[tuple[int, int]]:
    rows = connection.execute(
        "SELECT workload_id, min(id) FROM workload_attributes WHERE workload_id = ANY(%s) GROUP"
        " BY 1",
        (workload_ids,),
    )
    return ((workload_id, report_id) for workload_id, report_id in rows)

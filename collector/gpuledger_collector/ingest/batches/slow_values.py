"""Slow metrics: stored where they change, so the value before a reading must be known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpuledger_collector.ingest.batches.attributes import Connection
from gpuledger_collector.ingest.batches.columns import Array, is_absent
from gpuledger_collector.ingest.batches.samples import HOT_KINDS, SampleRows

SlowChange = tuple[int, str, int, float]
"""Accelerator, metric, instant, value."""
_UNREAD = np.iinfo("i8").min
"""The instant of a value that was not looked up in the database yet."""
_NEVER = _UNREAD + 1
"""The instant of a value that the database does not have."""


@dataclass(slots=True)
class KnownValues:
    """Instants and values before the readings of a flush, a row for each accelerator and a column
    for each metric.
    """

    at_ms: Array
    value: Array

    def select_changed(self, row: Array, at_ms: Array, readings: Array) -> npt.NDArray[np.bool_]:
        """Mark the readings (NaN: absent) that differ from the one before, and replace the values
        by the latest.

        `row` is the row here of each row of `readings`. An absent reading is no change: slow
        metrics are read seldom. A reading older than the known one always counts as changed,
        because the value before it is not known.
        """
        changed = np.zeros(readings.shape, dtype=bool)
        for rows in _in_turns(row, at_ms):
            known, instant, reading = row[rows], at_ms[rows, None], readings[rows]
            before_ms, before = self.at_ms[known], self.value[known]
            is_read, is_older = ~np.isnan(reading), instant < before_ms
            changed[rows] = is_read & (is_older | (before != reading))
            is_latest = is_read & ~is_older
            self.at_ms[known] = np.where(is_latest, instant, before_ms)
            self.value[known] = np.where(is_latest, reading, before)
        return changed


def _in_turns(owner: Array, at_ms: Array) -> list[Array]:
    """The first row of each owner by time, then the second of each, and so on."""
    order = np.lexsort((at_ms, owner))
    ordered = owner[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])
    if is_first.all():
        return [order]
    places = np.arange(len(order))
    turn = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1])


@dataclass(slots=True)
class SlowValues:
    """The latest value of each slow metric of each accelerator; shared by all writers, read once
    per process.
    """

    _rows: dict[int, int] = field(default_factory=dict)
    _columns: dict[str, int] = field(default_factory=dict)
    _known: KnownValues = field(
        default_factory=lambda: KnownValues(np.empty((0, 0), "<i8"), np.empty((0, 0), "<f8"))
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def store(
        self, connection: Connection, samples: SampleRows, taken_over: Collection[int] = ()
    ) -> Callable[[], None]:
        """Write the changes of slow metrics; returns what to call after COMMIT.

        Of accelerators that are `taken_over` another process may have written later values than the
        cached ones.
        """
        names = [name for name in samples.columns if name not in HOT_KINDS]
        if not names or not len(samples.at_ms):
            return lambda: None
        accelerators, row = np.unique(samples.accelerator, return_inverse=True)
        places = self._places(accelerators.tolist(), names)
        if taken_over:
            self._known.at_ms[places[0][np.isin(accelerators, list(taken_over))], places[1]] = (
                _UNREAD
            )
        self._read_missing(connection, accelerators, names, places)
        with self._lock:
            known = KnownValues(self._known.at_ms[places], self._known.value[places])
        readings = np.empty((len(samples.at_ms), len(names)))
        for place, name in enumerate(names):
            readings[:, place] = values = samples.columns[name]
            if values.dtype.kind == "i":
                readings[is_absent(values), place] = np.nan
        changed = known.select_changed(row.reshape(len(samples.at_ms)), samples.at_ms, readings)
        write_changes(connection, _changes(samples, names, readings, changed))
        return lambda: self._update(places, known)

    def _places(self, accelerators: Sequence[int], names: Sequence[str]) -> tuple[Array, ...]:
        """The part of the matrices for these accelerators and metrics, enlarged where they are new."""
        with self._lock:
            rows = [self._rows.setdefault(number, len(self._rows)) for number in accelerators]
            columns = [self._columns.setdefault(name, len(self._columns)) for name in names]
            height, width = self._known.at_ms.shape
            if len(self._rows) > height or len(self._columns) > width:
                shape = (
                    max(2 * height, len(self._rows)) if len(self._rows) > height else height,
                    len(self._columns),
                )
                enlarged = KnownValues(np.full(shape, _UNREAD), np.full(shape, np.nan))
                enlarged.at_ms[:height, :width], enlarged.value[:height, :width] = (
                    self._known.at_ms,
                    self._known.value,
                )
                self._known = enlarged
            return np.ix_(rows, columns)

    def _read_missing(
        self,
        connection: Connection,
        accelerators: Array,
        names: Sequence[str],
        places: tuple[Array, ...],
    ) -> None:
        """Read what was not looked up yet; what the database lacks is not asked for again."""
        is_missing = self._known.at_ms[places] == _UNREAD
        if not is_missing.any():
            return
        metrics = [names[column] for column in np.flatnonzero(is_missing.any(axis=0)).tolist()]
        rows = connection.execute(
            # The newest stored value for each pair of accelerator and metric.
            "SELECT DISTINCT ON (accelerator_id, metric) accelerator_id, metric, at_ms, value FROM"
            " gpu_state WHERE accelerator_id = ANY(%s) AND metric = ANY(%s) ORDER BY"
            " accelerator_id, metric, at_ms DESC",
            (accelerators[is_missing.any(axis=1)].tolist(), sorted(metrics)),
        ).fetchall()
        with self._lock:
            known = self._known
            for accelerator, name, at_ms, value in rows:
                place = self._rows[accelerator], self._columns[name]
                # Not overwritten: another writer may have stored a newer value since this query.
                if known.at_ms[place] == _UNREAD:
                    known.at_ms[place], known.value[place] = (
                        at_ms,
                        np.nan if value is None else value,
                    )
            known.at_ms[places] = np.maximum(
                known.at_ms[places], np.where(is_missing, _NEVER, _UNREAD)
            )

    def _update(self, places: tuple[Array, ...], later: KnownValues) -> None:
        with self._lock:
            at_ms = self._known.at_ms[places]
            # Another writer may have committed newer values meanwhile.
            is_later = later.at_ms >= at_ms
            self._known.value[places] = np.where(is_later, later.value, self._known.value[places])
            self._known.at_ms[places] = np.where(is_later, later.at_ms, at_ms)


def _changes(
    samples: SampleRows, names: Sequence[str], readings: Array, changed: npt.NDArray[np.bool_]
) -> list[SlowChange]:
    """The changes in the order of `samples`."""
    rows, columns = np.nonzero(changed)
    metrics = [names[column] for column in columns.tolist()]
    changes = (
        samples.accelerator[rows].tolist(),
        metrics,
        samples.at_ms[rows].tolist(),
        readings[changed].tolist(),
    )
    return list(zip(*changes, strict=True))


def write_changes(connection: Connection, changes: Sequence[SlowChange]) -> None:
    """Write the changes; the same reading again replaces itself."""
    # One row per key, because ON CONFLICT cannot update a row twice; of repetitions the last
    # counts.
    unique = {change[:3]: change for change in changes}
    if not unique:
        return
    columns = list(zip(*(unique[key] for key in sorted(unique)), strict=True))
    connection.execute(
        "INSERT INTO gpu_state (accelerator_id, metric, at_ms, value)"
        " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::double precision[])"
        " ON CONFLICT (accelerator_id, metric, at_ms) DO UPDATE SET value = excluded.value",
        tuple(list(column) for column in columns),
    )

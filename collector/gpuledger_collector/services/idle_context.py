"""What a search for idle accelerators has read of past hours, kept in memory for the next search.

A search reads eight hours before its window, because its rules look back that far, and runs every
few minutes; what it read of hours long over is the same the next time. Kept are the bytes of the
arrays, by columns and compressed: some kilobytes an accelerator. Evidence of a past hour that
arrives later is counted by the fold that takes it in; when that count has changed, everything is
read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.storage.findings import late_evidence
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.telemetry import minutes as minute_rollup
from gpuledger_common.compression import zstd

Rows = npt.NDArray[np.void]
MOST_BYTES = 256 * 2**20
"""Accelerators beyond this are read anew each time."""
LEVEL = 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """Minutes and holdings of some accelerators, as minute_rollup reads them."""

    minutes: Rows
    intervals: Rows


@dataclass(frozen=True, slots=True)
class _Packed:
    """An array of records, its bytes by columns: equal bytes follow each other."""

    dtype: np.dtype[np.void]
    rows: int
    blob: bytes

    @classmethod
    def pack(cls, rows: Rows) -> _Packed:
        """Compress the records."""
        columns = np.ascontiguousarray(_as_bytes(np.ascontiguousarray(rows)).T)
        return cls(rows.dtype, len(rows), zstd.compress(columns.tobytes(), LEVEL))

    def unpack(self) -> Rows:
        """Restore the records."""
        columns = np.frombuffer(zstd.decompress(self.blob), dtype=np.uint8)
        shape = (self.dtype.itemsize, self.rows)
        return np.ascontiguousarray(columns.reshape(shape).T).view(self.dtype).reshape(self.rows)


def _as_bytes(rows: Rows) -> npt.NDArray[np.uint8]:
    return rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of a group of accelerators: everything from an instant up to another."""

    start_ms: int
    end_ms: int
    minutes: _Packed
    intervals: _Packed

    @property
    def size(self) -> int:
        return len(self.minutes.blob) + len(self.intervals.blob)


@dataclass(slots=True)
class IdleContext:
    """Reads the evidence of windows, and keeps that of hours before them for the next window.

    For one thread, and for windows in their order.
    """

    most_bytes: int = MOST_BYTES
    _groups: dict[tuple[int, ...], _Kept] = field(default_factory=dict)
    _change: int = 0

    def begin_window(self, connection: Connection, groups: Sequence[tuple[int, ...]]) -> None:
        """Forget what may have changed: groups with accelerators of which evidence of a past hour has
        arrived since the last window, and those that are no longer searched together.

        In the transaction that reads the window.
        """
        self._change, late = late_evidence.changed_since(connection, self._change)
        self._groups = {
            ids: self._groups[ids] for ids in groups if ids in self._groups and late.isdisjoint(ids)
        }

    def read(
        self, connection: Connection, start_ms: int, end_ms: int, ids: tuple[int, ...], keep_ms: int
    ) -> Evidence:
        """Read the evidence of a group of accelerators, and keep that before an instant."""
        kept = self._groups.get(ids)
        if kept is None or not kept.start_ms <= start_ms < kept.end_ms <= end_ms:
            evidence = read_evidence(connection, start_ms, end_ms, ids)
        else:
            minutes, intervals = kept.minutes.unpack(), kept.intervals.unpack()
            evidence = Evidence(
                np.concatenate(
                    [
                        minutes[minutes["minute_ms"] >= start_ms],
                        minute_rollup.read(connection, kept.end_ms, end_ms, ids),
                    ]
                ),
                # An interval that began before is kept with its whole length.
                np.concatenate(
                    [
                        intervals[minute_rollup.reaches_into(intervals, start_ms)],
                        minute_rollup.state_intervals(
                            connection, kept.end_ms, end_ms, ids, begun_before=False
                        ),
                    ]
                ),
            )
        if kept is None or kept.end_ms != keep_ms:
            self._keep(ids, start_ms, keep_ms, evidence)
        return evidence

    def _keep(self, ids: tuple[int, ...], start_ms: int, end_ms: int, evidence: Evidence) -> None:
        self._groups.pop(ids, None)
        if end_ms <= start_ms:
            return
        kept = _Kept(
            start_ms,
            end_ms,
            _Packed.pack(evidence.minutes[evidence.minutes["minute_ms"] < end_ms]),
            _Packed.pack(evidence.intervals[evidence.intervals["start_ms"] < end_ms]),
        )
        if kept.size + sum(other.size for other in self._groups.values()) <= self.most_bytes:
            self._groups[ids] = kept


def kept_until(start_ms: int) -> int:
    """Up to when the evidence before a window that begins at a full hour is kept.

    Not the last hour: a fold that began before the search had passed it does not count what it
    takes in as late.
    """
    return start_ms - HOUR_MS


def read_evidence(
    connection: Connection, start_ms: int, end_ms: int, ids: Sequence[int]
) -> Evidence:
    """Read the evidence of some accelerators."""
    return Evidence(
        minute_rollup.read(connection, start_ms, end_ms, ids),
        minute_rollup.state_intervals(connection, start_ms, end_ms, ids),
    )

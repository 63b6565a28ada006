"""Usage intervals of a flush as columns: written as they were reported, and the latest state that
they show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.ingest.batches.attributes import Connection, ResolvedBatch
from gpuledger_collector.ingest.batches.columns import Array, last_of_each, pack
from gpuledger_common.wire import ABSENT_INT64

STATES = ("held", "unallocated", "unavailable", "present")
"""`present` proves that an accelerator was there, not who held it: it stands for samples without an
interval.
"""
_STATE_INDEX = {state: index for index, state in enumerate(STATES)}
_COLUMNS = {
    "accelerator_id": "accelerator",
    "workload_id": "workload",
    "state": "state",
    "start_ms": "start_ms",
    "end_ms": "end_ms",
    "held_ms": "held_ms",
    "busy_ms": "busy_ms",
    "idle_ms": "idle_ms",
    "unknown_ms": "unknown_ms",
    "energy_mj": "energy_mj",
    "node_id": "node",
    "epoch": "epoch",
    "seq": "seq",
    "record": "record",
    "accelerator_attributes_id": "accelerator_attributes",
    "workload_attributes_id": "workload_attributes",
}
"""Columns of the table `usage_interval` and the fields of IntervalRows."""
_INTEGERS = tuple(name for name in _COLUMNS.values() if name != "epoch")


@dataclass(frozen=True, slots=True)
class IntervalRows:
    """Usage intervals by column: ids, index in STATES, unix milliseconds, milliseconds,
    millijoules, and their record.

    Columns are int64, ABSENT_INT64 where an interval has no workload or no energy; `epoch` has the
    16 bytes of UUIDs.
    """

    accelerator: Array
    workload: Array
    state: Array
    start_ms: Array
    end_ms: Array
    held_ms: Array
    busy_ms: Array
    idle_ms: Array
    unknown_ms: Array
    energy_mj: Array
    node: Array
    seq: Array
    record: Array
    accelerator_attributes: Array
    workload_attributes: Array
    epoch: Array


@dataclass(frozen=True, slots=True)
class LatestStates:
    """The latest state of accelerators, in their order: until when it is known, index in STATES,
    and any holder.
    """

    accelerator: Array
    end_ms: Array
    state: Array
    workload: Array

    @classmethod
    def from_latest(cls, latest: dict[int, tuple[int, str, int | None]]) -> LatestStates:
        """Build the columns from end, state and holder by accelerator."""
        order = sorted(latest)
        rows = [latest[accelerator] for accelerator in order]
        holders = [ABSENT_INT64 if holder is None else holder for _, _, holder in rows]
        return cls(
            np.array(order, dtype="<i8"),
            np.array([end_ms for end_ms, _, _ in rows], dtype="<i8"),
            np.array([_STATE_INDEX[state] for _, state, _ in rows], dtype="<i8"),
            np.array(holders, dtype="<i8"),
        )


def join_usage_intervals(batches: Sequence[ResolvedBatch]) -> IntervalRows:
    """Concatenate the usage intervals of all batches."""
    rows: list[tuple[int, ...]] = []
    epochs = []
    for resolved in batches:
        batch = resolved.batch
        for place, interval in batch.usage_intervals.items():
            workload = interval.workload
            rows.append(
                (
                    resolved.accelerators[interval.accelerator],
                    ABSENT_INT64 if workload is None else resolved.workloads[workload],
                    _STATE_INDEX[interval.state],
                    interval.start_ms,
                    interval.end_ms,
                    interval.held_ms,
                    interval.busy_ms,
                    interval.idle_ms,
                    interval.unknown_ms,
                    ABSENT_INT64 if interval.energy_mj is None else interval.energy_mj,
                    resolved.node_id,
                    batch.seq,
                    place,
                    resolved.accelerator_attributes[interval.accelerator],
                    ABSENT_INT64 if workload is None else resolved.workload_attributes[workload],
                )
            )
        epochs.append(batch.epoch.bytes * len(batch.usage_intervals))
    return _as_columns(rows, epochs)


def presence_intervals(batches: Sequence[ResolvedBatch]) -> IntervalRows:
    """A `present` interval, from first to last sample, where a batch samples an accelerator without
    an interval.
    """
    rows: list[tuple[int, ...]] = []
    epochs = []
    for resolved in batches:
        batch = resolved.batch
        if batch.block is None:
            continue
        sampled = set(np.unique(batch.block.accelerator).tolist())
        for place in sorted(
            sampled.difference(interval.accelerator for interval in batch.usage_intervals.values())
        ):
            at_ms = batch.block.at_ms[batch.block.accelerator == place]
            start_ms = int(at_ms.min())
            rows.append(
                (
                    resolved.accelerators[place],
                    ABSENT_INT64,
                    _STATE_INDEX["present"],
                    start_ms,
                    # The end is exclusive, and no interval may be longer than a day.
                    min(int(at_ms.max()) + 1, start_ms + DAY_MS),
                    *(0, 0, 0, 0),
                    ABSENT_INT64,
                    resolved.node_id,
                    batch.seq,
                    place,
                    resolved.accelerator_attributes[place],
                    ABSENT_INT64,
                )
            )
            epochs.append(batch.epoch.bytes)
    return _as_columns(rows, epochs)


def _as_columns(rows: Sequence[tuple[int, ...]], epochs: Sequence[bytes]) -> IntervalRows:
    columns = np.array(rows, dtype="<i8").reshape(-1, len(_INTEGERS)).T.copy()
    return IntervalRows(
        **dict(zip(_INTEGERS, columns, strict=True)), epoch=np.frombuffer(b"".join(epochs), "V16")
    )


def copy_usage_intervals(connection: Connection, *parts: IntervalRows) -> None:
    """COPY usage intervals."""
    blocks = []
    for rows, (index, state) in product(parts, enumerate(STATES)):
        # Text columns need one length per block of the packer, and each state is a text of its own
        # length.
        chosen = np.flatnonzero(rows.state == index)
        if len(chosen):
            columns = {name: getattr(rows, name)[chosen] for name in _COLUMNS.values()}
            columns["state"] = np.full(len(chosen), state.encode())
            # Binary COPY takes exactly the width of the column, an integer.
            columns["record"] = columns["record"].astype("<i4")
            blocks.append(list(columns.values()))
    with (
        connection.cursor() as cursor,
        cursor.copy(
            f"COPY usage_interval ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
        ) as copy,
    ):
        for part in pack(*blocks):
            copy.write(part)


def latest_states(rows: IntervalRows) -> LatestStates:
    """The end, state and (largest, then first) holder of the latest usage interval of each
    accelerator.
    """
    # lexsort has no descending order; negated positions let the first of equal holders sort last.
    first_wins = -np.arange(len(rows.accelerator))
    order = np.lexsort((first_wins, rows.held_ms, rows.end_ms, rows.accelerator))
    last = order[last_of_each(rows.accelerator[order])]
    return LatestStates(
        rows.accelerator[last], rows.end_ms[last], rows.state[last], rows.workload[last]
    )

"""Usage intervals of a flush as columns: written as they were reported, and what they show of hours and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpuledger_collector.ingest.batches.attributes import Connection, Numbered
from gpuledger_collector.ingest.batches.columns import Array, last_of_each, pack
from gpuledger_collector.ingest.batches.validate import DAY_MS
from gpuledger_common.wire import ABSENT_INT64

STATES = ("held", "unallocated", "unavailable", "present")
"""`present` shows that an accelerator was there, and nothing of who held it: it is samples without an interval."""
_NUMBER_OF = {state: number for number, state in enumerate(STATES)}
_NUMBERS = (
    "accelerator",
    "workload",
    "state",
    "start_ms",
    "end_ms",
    "held_ms",
    "busy_ms",
    "idle_ms",
    "unknown_ms",
    "energy_mj",
    "node",
    "seq",
    "record",
    "accelerator_attributes",
    "workload_attributes",
)


@dataclass(frozen=True, slots=True)
class UsageIntervals:
    """A row each: ids, the state's place in STATES, unix milliseconds, milliseconds, millijoules, and its record.

    Columns are int64, ABSENT_INT64 where a usage interval has no workload or no energy; `epoch` has the 16 bytes of
    UUIDs.
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
class States:
    """Of each accelerator, in their order: until when its state is known, the state, and its holder if any."""

    accelerator: Array
    end_ms: Array
    state: Array
    """Place in STATES."""
    workload: Array

    @classmethod
    def of(cls, latest: dict[int, tuple[int, str, int | None]]) -> States:
        """From end, state and holder by accelerator."""
        order = sorted(latest)
        told = [latest[accelerator] for accelerator in order]
        holders = [ABSENT_INT64 if holder is None else holder for _, _, holder in told]
        return cls(
            np.array(order, dtype="<i8"),
            np.array([end_ms for end_ms, _, _ in told], dtype="<i8"),
            np.array([_NUMBER_OF[state] for _, state, _ in told], dtype="<i8"),
            np.array(holders, dtype="<i8"),
        )


def join_usage_intervals(batches: Sequence[Numbered]) -> UsageIntervals:
    """The usage intervals of all batches, one under the other."""
    rows: list[tuple[int, ...]] = []
    epochs = []
    for numbered in batches:
        batch, node_id, accelerators, workloads = (
            numbered.batch,
            numbered.node_id,
            numbered.accelerators,
            numbered.workloads,
        )
        for place, one in batch.usage_intervals.items():
            rows.append(
                (
                    accelerators[one.accelerator],
                    ABSENT_INT64 if one.workload is None else workloads[one.workload],
                    _NUMBER_OF[one.state],
                    *(one.start_ms, one.end_ms, one.held_ms, one.busy_ms, one.idle_ms, one.unknown_ms),
                    ABSENT_INT64 if one.energy_mj is None else one.energy_mj,
                    *(node_id, batch.seq, place),
                    numbered.accelerator_attributes[one.accelerator],
                    ABSENT_INT64 if one.workload is None else numbered.workload_attributes[one.workload],
                )
            )
        epochs.append(batch.epoch.bytes * len(batch.usage_intervals))
    return _as_columns(rows, epochs)


def presence_of(batches: Sequence[Numbered]) -> UsageIntervals:
    """An interval for each accelerator that a batch samples and has no interval of: from first to last sample."""
    rows: list[tuple[int, ...]] = []
    epochs = []
    for numbered in batches:
        batch = numbered.batch
        if batch.block is None:
            continue
        sampled = np.unique(batch.block.accelerator).tolist()
        for place in sorted(set(sampled).difference(one.accelerator for one in batch.usage_intervals.values())):
            at_ms = batch.block.at_ms[batch.block.accelerator == place]
            span = int(at_ms.min()), min(int(at_ms.max()) + 1, int(at_ms.min()) + DAY_MS)
            rows.append(
                (
                    *(numbered.accelerators[place], ABSENT_INT64, _NUMBER_OF["present"], *span, 0, 0, 0, 0),
                    *(ABSENT_INT64, numbered.node_id, batch.seq, place),
                    *(numbered.accelerator_attributes[place], ABSENT_INT64),
                )
            )
            epochs.append(batch.epoch.bytes)
    return _as_columns(rows, epochs)


def _as_columns(rows: Sequence[tuple[int, ...]], epochs: Sequence[bytes]) -> UsageIntervals:
    table = np.array(rows, dtype="<i8").reshape(-1, len(_NUMBERS)).T.copy()
    return UsageIntervals(**dict(zip(_NUMBERS, table, strict=True)), epoch=np.frombuffer(b"".join(epochs), "V16"))


def copy_usage_intervals(connection: Connection, *parts: UsageIntervals) -> None:
    """COPY the usage_intervals."""
    blocks = []
    for rows, (number, state) in product(parts, enumerate(STATES)):
        chosen = np.flatnonzero(rows.state == number)
        if not len(chosen):
            continue
        named = np.full(len(chosen), state.encode())
        blocks.append(
            [
                rows.accelerator[chosen],
                rows.workload[chosen],
                named,
                rows.start_ms[chosen],
                rows.end_ms[chosen],
                rows.held_ms[chosen],
                rows.busy_ms[chosen],
                rows.idle_ms[chosen],
                rows.unknown_ms[chosen],
                rows.energy_mj[chosen],
                rows.node[chosen],
                rows.epoch[chosen],
                rows.seq[chosen],
                rows.record[chosen].astype("<i4"),
                rows.accelerator_attributes[chosen],
                rows.workload_attributes[chosen],
            ]
        )
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "COPY usage_interval (accelerator_id, workload_id, state, start_ms, end_ms, held_ms, busy_ms, idle_ms,"
            " unknown_ms, energy_mj, node_id, epoch, seq, record, accelerator_attributes_id, workload_attributes_id)"
            " FROM STDIN (FORMAT BINARY)"
        ) as copy,
    ):
        for part in pack(*blocks):
            copy.write(part)


def latest_states(rows: UsageIntervals) -> States:
    """Of each accelerator the end, the state and the (chief) holder of its latest usage interval."""
    first_wins = -np.arange(len(rows.accelerator))
    order = np.lexsort((first_wins, rows.held_ms, rows.end_ms, rows.accelerator))
    last = order[last_of_each(rows.accelerator[order])]
    return States(rows.accelerator[last], rows.end_ms[last], rows.state[last], rows.workload[last])

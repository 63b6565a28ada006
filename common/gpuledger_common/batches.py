"""Build a batch of the wire from metered intervals, samples and counters, and pack it into the
bytes that are sent.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from gpuledger_common import wire
from gpuledger_common.catalog import BY_NAME
from gpuledger_common.compression import zstd
from gpuledger_common.largest_remainder import split
from gpuledger_common.meter import MeteredInterval
from gpuledger_common.readings import Accelerator, Health, Sample, Workload

if TYPE_CHECKING:
    from gpuledger_common.serving_counters import CounterReading

_TYPECODES = {"f4": "f", "f8": "d", "i8": "q"}
_NAN = float("nan")


class BatchMaker:
    """Collects the accelerators, workloads, usage intervals, samples and counters of one batch."""

    def __init__(
        self, accelerators: Sequence[Accelerator], pool: str, health: Mapping[str, Health]
    ) -> None:
        self._accelerators = [
            _wire_accelerator(entry, pool, health.get(entry.uuid)) for entry in accelerators
        ]
        self._position = {entry.uuid: at for at, entry in enumerate(accelerators)}
        self._workloads: list[wire.WireWorkload] = []
        self._workload_position: dict[tuple[str, str], int] = {}

    def usage_intervals(self, metered: Iterable[MeteredInterval]) -> list[wire.WireUsageInterval]:
        """One usage interval per holder; intervals of accelerators that the batch does not list are
        left out.
        """
        return [
            part
            for interval in metered
            if (position := self._position.get(interval.uuid)) is not None
            for part in self._parts(position, interval)
        ]

    def _parts(self, position: int, interval: MeteredInterval) -> list[wire.WireUsageInterval]:
        start_ms, end_ms, energy_mj = interval.start_ms, interval.end_ms, interval.energy_mj
        if interval.state != "held":
            return [
                wire.WireUsageInterval(
                    position, interval.state, start_ms, end_ms, energy_mj=energy_mj
                )
            ]
        # Time is split over the holders first, then each holder's part into busy, idle and unknown:
        # both add up.
        weights = [holder.weight for holder in interval.holders]
        energy: Sequence[int | None] = (
            [None] * len(weights) if energy_mj is None else split(energy_mj, weights)
        )
        parts = []
        for holder, held_ms, holder_mj in zip(
            interval.holders, split(end_ms - start_ms, weights), energy, strict=True
        ):
            busy_ms, idle_ms, unknown_ms = split(
                held_ms, [interval.busy_ms, interval.idle_ms, interval.unknown_ms]
            )
            workload = self._workload(holder.workload)
            parts.append(
                wire.WireUsageInterval(
                    position,
                    "held",
                    start_ms,
                    end_ms,
                    workload,
                    held_ms,
                    busy_ms,
                    idle_ms,
                    unknown_ms,
                    holder_mj,
                )
            )
        return parts

    def _workload(self, workload: Workload) -> int:
        key = (workload.kind, workload.id)
        position = self._workload_position.get(key)
        if position is None:
            position = self._workload_position[key] = len(self._workloads)
            self._workloads.append(wire_workload(workload))
        return position

    def counts(self, rows: Iterable[CounterReading]) -> list[wire.Count]:
        """Readings of counters, each with its workload."""
        return [
            wire.Count(
                self._workload(row.workload),
                row.source,
                row.counter,
                row.at_ms,
                row.value,
                row.part,
                row.engine,
                row.started_ms,
            )
            for row in rows
        ]

    def samples(self, rows: Sequence[tuple[int, Sample]]) -> wire.Samples:
        """Samples with their instants as columns; NaN, or the smallest int64, where a reading is
        absent.
        """
        listed = [(at_ms, sample) for at_ms, sample in rows if sample.uuid in self._position]
        rows_values = [sample.values for _, sample in listed]
        # In the order of their first appearance.
        names = dict.fromkeys(chain.from_iterable(rows_values))
        columns = {name: _column(name, rows_values) for name in names if name in BY_NAME}
        return wire.Samples(
            [self._position[sample.uuid] for _, sample in listed],
            [at_ms for at_ms, _ in listed],
            columns,
        )

    def batch(
        self,
        node: str,
        epoch: str,
        seq: int,
        heartbeat: wire.Heartbeat,
        usage_intervals: list[wire.WireUsageInterval],
        samples: wire.Samples,
        counts: Sequence[wire.Count] = (),
        token_counts: Sequence[wire.TokenCount] = (),
    ) -> wire.Batch:
        """The batch with everything collected."""
        return wire.Batch(
            wire.WIRE_VERSION,
            node,
            epoch,
            seq,
            heartbeat,
            self._accelerators,
            self._workloads,
            usage_intervals,
            samples,
            list(counts),
            list(token_counts),
        )


def wire_workload(workload: Workload) -> wire.WireWorkload:
    """A workload as the wire has it."""
    return wire.WireWorkload(**_fields(workload))


def _wire_accelerator(entry: Accelerator, pool: str, health: Health | None) -> wire.WireAccelerator:
    verdict = health or Health("unknown", "not read yet")
    return wire.WireAccelerator(
        **_fields(entry), pool=pool, health=verdict.status, health_cause=verdict.cause
    )


def _fields(entry: Accelerator | Workload) -> dict[str, Any]:
    # Unlike asdict, which copies the values as well.
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


def _column(name: str, rows: Sequence[Mapping[str, float | int]]) -> wire.Column:
    kind = BY_NAME[name].column_kind
    column: array[int] | array[float]
    if kind == "i8":
        column = array("q", [int(values.get(name, wire.ABSENT_INT64)) for values in rows])
    else:
        column = array(_TYPECODES[kind], [values.get(name, _NAN) for values in rows])
    # The wire is little-endian on every machine.
    if sys.byteorder != "little":
        column.byteswap()
    return wire.Column(kind, column.tobytes())


def pack(batch: wire.Batch) -> bytes:
    """The body as it is spooled and sent: msgpack, compressed with zstd."""
    return zstd.compress(wire.encode(batch), 3)


def unpack(body: bytes) -> wire.Batch:
    """The batch of a spooled body."""
    return msgspec.msgpack.decode(zstd.decompress(body), type=wire.Batch)

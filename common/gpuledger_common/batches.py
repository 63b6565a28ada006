"""From spans and samples to one batch: the envelope's tables, columns and bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gpuledger_common import wire
from gpuledger_common.catalogue import BY_NAME
from gpuledger_common.compression import zstd
from gpuledger_common.largest_remainder import split
from gpuledger_common.meter import Span
from gpuledger_common.readings import Accelerator, Health, Sample, Workload

if TYPE_CHECKING:
    from gpuledger_common.serving_counters import Counted

_TYPECODES = {"f4": "f", "f8": "d", "i8": "q"}
_NAN = float("nan")


class BatchMaker:
    """Collects one batch's accelerators, workloads, usage intervals and samples."""

    def __init__(self, accelerators: Sequence[Accelerator], pool: str, health: Mapping[str, Health]) -> None:
        self._accelerators = [_wire_accelerator(entry, pool, health.get(entry.uuid)) for entry in accelerators]
        self._position = {entry.uuid: at for at, entry in enumerate(accelerators)}
        self._workloads: list[wire.WireWorkload] = []
        self._workload_position: dict[tuple[str, str], int] = {}

    def usage_intervals(self, spans: Iterable[Span]) -> list[wire.WireUsageInterval]:
        """The spans as usage intervals, one for each holder; spans of accelerators that are not listed are left out."""
        made: list[wire.WireUsageInterval] = []
        for span in spans:
            position = self._position.get(span.uuid)
            if position is not None:
                made += self._parts(position, span)
        return made

    def _parts(self, position: int, span: Span) -> list[wire.WireUsageInterval]:
        if span.state != "held":
            return [wire.WireUsageInterval(position, span.state, span.start_ms, span.end_ms, energy_mj=span.energy_mj)]
        weights = [holder.weight for holder in span.holders]
        held = split(span.end_ms - span.start_ms, weights)
        energy: Sequence[int | None] = [None] * len(weights)
        if span.energy_mj is not None:
            energy = split(span.energy_mj, weights)
        parts = []
        for holder, held_ms, energy_mj in zip(span.holders, held, energy, strict=True):
            busy, idle, unknown = split(held_ms, [span.busy_ms, span.idle_ms, span.unknown_ms])
            parts.append(
                wire.WireUsageInterval(
                    position,
                    "held",
                    span.start_ms,
                    span.end_ms,
                    self._workload(holder.workload),
                    held_ms,
                    busy,
                    idle,
                    unknown,
                    energy_mj,
                )
            )
        return parts

    def _workload(self, workload: Workload) -> int:
        key = (workload.kind, workload.id)
        position = self._workload_position.get(key)
        if position is None:
            position = self._workload_position[key] = len(self._workloads)
            self._workloads.append(
                wire.WireWorkload(
                    workload.id, workload.kind, workload.user, workload.account, workload.name, dict(workload.tags)
                )
            )
        return position

    def counts(self, rows: Iterable[Counted]) -> list[wire.Count]:
        """Readings of counters, each with its workload."""
        return [
            wire.Count(
                self._workload(one.workload),
                one.source,
                one.counter,
                one.at_ms,
                one.value,
                one.part,
                one.engine,
                one.started_ms,
            )
            for one in rows
        ]

    def samples(self, rows: Sequence[tuple[int, Sample]]) -> wire.Samples:
        """Samples (with their instants) as columns; NaN, or the smallest int64, where a reading is absent."""
        kept = [(at_ms, sample) for at_ms, sample in rows if sample.uuid in self._position]
        names = dict.fromkeys(name for _, sample in kept for name in sample.values if name in BY_NAME)
        columns = {name: _column(name, [sample for _, sample in kept]) for name in names}
        return wire.Samples([self._position[sample.uuid] for _, sample in kept], [at for at, _ in kept], columns)

    def batch(
        self,
        node: str,
        epoch: str,
        seq: int,
        heartbeat: wire.Heartbeat,
        usage_intervals: list[wire.WireUsageInterval],
        samples: wire.Samples,
        counts: Sequence[wire.Count] = (),
    ) -> wire.Batch:
        """The whole batch."""
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
        )


def _wire_accelerator(entry: Accelerator, pool: str, health: Health | None) -> wire.WireAccelerator:
    verdict = health or Health("unknown", "not read yet")
    return wire.WireAccelerator(
        entry.uuid,
        entry.device_uuid,
        entry.index,
        entry.model,
        entry.mig_instance,
        entry.gpu_micro,
        entry.memory_bytes,
        entry.pci_bus_id,
        pool,
        verdict.status,
        verdict.cause,
    )


def _column(name: str, samples: Sequence[Sample]) -> wire.Column:
    kind = BY_NAME[name].column_kind
    values: array[int] | array[float]
    if kind == "i8":
        values = array("q", [int(sample.values.get(name, wire.ABSENT_INT64)) for sample in samples])
    else:
        values = array(_TYPECODES[kind], [float(sample.values.get(name, _NAN)) for sample in samples])
    if sys.byteorder != "little":
        values.byteswap()
    return wire.Column(kind, values.tobytes())


def pack(batch: wire.Batch) -> bytes:
    """The body as it is spooled and sent: msgpack, zstd."""
    return zstd.compress(wire.encode(batch), 3)


def unpack(body: bytes) -> wire.Batch:
    """The batch of a spooled body."""
    return msgspec.msgpack.decode(zstd.decompress(body), type=wire.Batch)

"""Samples of some requests as rows: one for each accelerator and instant, with all that they show of it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuledger_collector.ingest.batches.attributes import Ids, accelerator_content, workload_content
from gpuledger_collector.ingest.batches.columns import DTYPES, Array, blank, is_absent
from gpuledger_collector.ingest.batches.samples import Samples
from gpuledger_collector.ingest.batches.validate import Accepted, Kept, SampleBlock, workload_key
from gpuledger_collector.ingest.remote_write.decode import Writing
from gpuledger_collector.ingest.remote_write.series import HOT_BIT, METRIC_NUMBER, NONE, Book
from gpuledger_common.catalogue import METRICS
from gpuledger_common.dcgm_page import BLANK, BY_POD, whole
from gpuledger_common.readings import Health
from gpuledger_common.wire import WireAccelerator

_NO_EPOCH = uuid.UUID(int=0)
_UTILIZATION = METRIC_NUMBER["gpu_utilization_ratio"]
WITNESSES = {
    "sm_active": "gpu_sm_active_ratio",
    "engine_active": "gpu_graphics_engine_active_ratio",
    "energy_joules": "gpu_energy_joules_total",
    "power_watts": "gpu_power_watts",
}
"""Columns of a scrape and their metrics: what the meter looks at beside utilisation."""
_INSTANT_BITS = 42


@dataclass(frozen=True, slots=True)
class Scrape:
    """What is known of an accelerator at an instant: the row of `scrape`."""

    node_id: int
    workload_ids: frozenset[int]
    readings: int
    utilization: dict[str, float]
    witnesses: tuple[float | None, ...]
    accelerator_attributes: frozenset[int] = frozenset()
    """What its labels say of the accelerator; empty where that was not kept yet."""
    workload_attributes: frozenset[int] = frozenset()
    """What they say of those whom they name."""

    def merged(self, other: Scrape) -> Scrape:
        """This and another part of the same scrape; in any order, however often, the same."""
        pods = {*self.utilization, *other.utilization}
        return Scrape(
            min(self.node_id, other.node_id),
            self.workload_ids | other.workload_ids,
            self.readings | other.readings,
            {pod: max(self.utilization.get(pod, 0.0), other.utilization.get(pod, 0.0)) for pod in pods},
            tuple(_greater(one, two) for one, two in zip(self.witnesses, other.witnesses, strict=True)),
            self.accelerator_attributes | other.accelerator_attributes,
            self.workload_attributes | other.workload_attributes,
        )


def _greater(one: float | None, two: float | None) -> float | None:
    return two if one is None else one if two is None else max(one, two)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Samples by column, each with its row; rows with their accelerator and instant."""

    book: Book
    origin: Array
    """Of each sample, the request that it came in."""
    row: Array
    metric: Array
    value: Array
    """In base units; NaN where the exporter had nothing to say."""
    workload: Array
    pod: Array
    face: Array
    """Of each row, the place of its accelerator in the book."""
    at_ms: Array

    @staticmethod
    def of(book: Book, requests: Sequence[Writing]) -> Gathered:
        """The rows of these requests, which share a book."""
        table = book.table()[np.concatenate([one.series for one in requests])]
        value = np.concatenate([one.value for one in requests])
        with np.errstate(invalid="ignore", over="ignore"):
            value = np.where(np.abs(value) < BLANK, value, np.nan) * table["factor"]
        value = np.where(table["percent"] & (value > 1), value / 100, value)
        at_ms = np.concatenate([one.at_ms for one in requests])
        first_face: dict[str, int] = {}
        same = np.zeros(len(book.faces), dtype="<i8")
        for face in np.unique(table["face"]).tolist():
            same[face] = first_face.setdefault(book.faces[face].accelerator.uuid, face)
        keys, first, row = np.unique(
            same[table["face"]] << _INSTANT_BITS | at_ms, return_index=True, return_inverse=True
        )
        return Gathered(
            book,
            np.repeat(np.arange(len(requests)), [one.samples for one in requests]),
            row.reshape(len(value)),
            table["metric"],
            value,
            table["workload"],
            table["pod"],
            table["face"][first],
            keys & (1 << _INSTANT_BITS) - 1,
        )

    @property
    def uuids(self) -> list[str]:
        """The accelerator of each row."""
        return [self.book.faces[face].accelerator.uuid for face in self.face.tolist()]

    def shadowed(self) -> Array:
        """Rows of devices whose MIG instances have a row at the same instant: the instances are what is held."""
        faces = [self.book.faces[face].accelerator for face in self.face.tolist()]
        at = self.at_ms.tolist()
        split = {(one.device_uuid, at[row]) for row, one in enumerate(faces) if one.mig_instance is not None}
        return np.array([one.mig_instance is None and (one.uuid, at[row]) in split for row, one in enumerate(faces)])

    def by_node(self, health: Callable[[str], Health]) -> list[Accepted]:
        """Names of nodes, accelerators and workloads in the form in which the directory learns them."""
        rows: dict[str, list[int]] = defaultdict(list)
        for row, face in enumerate(self.face.tolist()):
            rows[self.book.faces[face].node].append(row)
        holders: dict[int, set[int]] = defaultdict(set)
        for row, workload in self._holders():
            holders[row].add(workload)
        return [self._named(node, mine, holders, health) for node, mine in rows.items()]

    def _holders(self) -> list[tuple[int, int]]:
        named = self.workload != NONE
        keys = np.unique(self.row[named].astype("<i8") << 32 | self.workload[named])
        return list(zip((keys >> 32).tolist(), (keys & 0xFFFFFFFF).tolist(), strict=True))

    def _named(
        self, node: str, rows: list[int], holders: dict[int, set[int]], health: Callable[[str], Health]
    ) -> Accepted:
        places: dict[str, int] = {}
        accelerators: dict[int, WireAccelerator] = {}
        for row in rows:
            face = self.book.faces[self.face[row]].accelerator
            place = places.setdefault(face.uuid, len(places))
            if place not in accelerators:
                accelerators[place] = _with_health(face, health(face.uuid))
        workloads = sorted({workload for row in rows for workload in holders[row]})
        chosen = np.array(rows)
        uuids = [self.book.faces[face].accelerator.uuid for face in self.face[chosen].tolist()]
        return Accepted(
            node=node,
            epoch=_NO_EPOCH,
            seq=0,
            sha256=b"",
            size=0,
            heartbeat=None,
            accelerators=Kept(accelerators),
            workloads=Kept({place: self.book.workloads[number] for place, number in enumerate(workloads)}),
            usage_intervals={},
            block=SampleBlock.of(np.array([places[name] for name in uuids]), self.at_ms[chosen], {}),
            rejected=[],
        )

    def scrapes(self, ids: Ids) -> list[Scrape]:
        """What each row shows."""
        rows = len(self.at_ms)
        read = ~np.isnan(self.value)
        bits = np.zeros(rows, dtype="<i8")
        for name, bit in HOT_BIT.items():
            bits[self.row[read & (self.metric == METRIC_NUMBER[name])]] |= 1 << bit
        witnesses = []
        for name in WITNESSES.values():
            greatest = np.full(rows, np.nan)
            chosen = self.metric == METRIC_NUMBER[name]
            np.fmax.at(greatest, self.row[chosen], self.value[chosen])
            witnesses.append([None if value != value else value for value in greatest.tolist()])
        held: list[set[int]] = [set() for _ in range(rows)]
        said: list[set[int]] = [set() for _ in range(rows)]
        for row, number in self._holders():
            workload = self.book.workloads[number]
            key = workload_key(workload.kind, "", workload.id)
            held[row].add(ids.workloads[key])
            said[row].add(ids.attributes[workload_content(key, workload)])
        shares = self._parts(_UTILIZATION)
        return [
            Scrape(
                ids.nodes[self.book.faces[face].node],
                frozenset(held[row]),
                int(bits[row]),
                shares.get(row, {}),
                tuple(column[row] for column in witnesses),
                frozenset({ids.attributes[accelerator_content(self.book.faces[face].accelerator)]}),
                frozenset(said[row]),
            )
            for row, face in enumerate(self.face.tolist())
        ]

    def _parts(self, metric: int) -> dict[int, dict[str, float]]:
        """Of a metric that may be split over pods, the greatest value of each pod, by row."""
        chosen = np.flatnonzero((self.metric == metric) & ~np.isnan(self.value))
        found: dict[int, dict[str, float]] = defaultdict(dict)
        for row, pod, value in zip(
            self.row[chosen].tolist(), self.pod[chosen].tolist(), self.value[chosen].tolist(), strict=True
        ):
            name = self.book.pods[pod]
            found[row][name] = max(value, found[row].get(name, value))
        return found

    def samples(self, accelerators: Array) -> Samples:
        """Every reading of every row, by metric."""
        columns: dict[str, Array] = {}
        order = np.argsort(self.metric, kind="stable")
        numbers, starts = np.unique(self.metric[order], return_index=True)
        for number, start, end in zip(
            numbers.tolist(), starts.tolist(), [*starts.tolist()[1:], len(order)], strict=True
        ):
            if number == NONE:
                continue
            metric, chosen = METRICS[number], order[start:end]
            column = np.full(len(self.at_ms), np.nan)
            np.fmax.at(column, self.row[chosen], self.value[chosen])
            if metric.name in BY_POD:
                for row, parts in self._parts(number).items():
                    if len(parts) > 1:
                        column[row] = whole(parts.values(), BY_POD[metric.name])
            columns[metric.name] = _as_kind(column, metric.column_kind)
        return Samples(accelerators, self.at_ms, columns)


def _with_health(face: WireAccelerator, health: Health) -> WireAccelerator:
    return WireAccelerator(
        face.uuid,
        face.device_uuid,
        face.index,
        face.model,
        face.mig_instance,
        face.gpu_micro,
        face.memory_bytes,
        face.pci_bus_id,
        face.pool,
        health.status,
        health.cause,
    )


def _as_kind(column: Array, kind: str) -> Array:
    """A column of floats as its metric is kept; what does not fit is absent."""
    made = blank(len(column), kind)
    with np.errstate(over="ignore", invalid="ignore"):
        fits = np.isfinite(column) & (np.abs(column) < 2.0**63)
        made[fits] = column[fits].astype(DTYPES[kind])
    return made


def only(samples: Samples, rows: Array, fresh: Array) -> Samples:
    """Some rows of readings, and of the hot metrics only those whose bit is set in the row's `fresh`."""
    columns = {}
    for name, values in samples.columns.items():
        if name in HOT_BIT:
            kept = values[rows].copy()
            kept[(fresh[rows] >> HOT_BIT[name] & 1) == 0] = blank(1, values.dtype.str[1:])[0]
            if not is_absent(kept).all():
                columns[name] = kept
    return Samples(samples.accelerator[rows], samples.at_ms[rows], columns)


def cut(gathered: Gathered, rows: Array) -> Gathered:
    """Only these rows, with their samples."""
    place = np.full(len(gathered.at_ms), NONE, dtype="<i8")
    place[rows] = np.arange(len(rows))
    kept = place[gathered.row] != NONE
    return replace(
        gathered,
        origin=gathered.origin[kept],
        row=place[gathered.row[kept]],
        metric=gathered.metric[kept],
        value=gathered.value[kept],
        workload=gathered.workload[kept],
        pod=gathered.pod[kept],
        face=gathered.face[rows],
        at_ms=gathered.at_ms[rows],
    )

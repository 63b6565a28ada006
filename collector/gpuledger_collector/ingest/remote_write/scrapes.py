"""Join the samples of requests to scrapes: a row for each accelerator and instant, with everything they show of it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gpuledger_collector.ingest.batches.attributes import Ids, accelerator_content, workload_content
from gpuledger_collector.ingest.batches.columns import DTYPES, Array, blank, is_absent
from gpuledger_collector.ingest.batches.samples import SampleRows
from gpuledger_collector.ingest.batches.validate import Accepted, AcceptedRecords, SampleBlock, workload_key
from gpuledger_collector.ingest.remote_write.decode import WriteRequest
from gpuledger_collector.ingest.remote_write.series import HOT_BIT, METRIC_NUMBER, NONE, SeriesCache
from gpuledger_common.catalog import METRICS
from gpuledger_common.profiles.pods import POD_SUMS, device_value
from gpuledger_common.readings import Health
from gpuledger_common.wire import WireAccelerator

_NO_EPOCH = uuid.UUID(int=0)
_UTILIZATION = METRIC_NUMBER["gpu_utilization_ratio"]
ACTIVITY_METRICS = {
    "sm_active": "gpu_sm_active_ratio",
    "engine_active": "gpu_graphics_engine_active_ratio",
    "energy_joules": "gpu_energy_joules_total",
    "power_watts": "gpu_power_watts",
}
"""Columns of a scrape and their metrics: the signs of activity that the meter reads besides utilization."""
_INSTANT_BITS = 42


@dataclass(frozen=True, slots=True)
class Scrape:
    """What is known of an accelerator at an instant: a row of the table `scrape`."""

    node_id: int
    workload_ids: frozenset[int]
    readings: int
    """Bits of the hot metrics that were read (HOT_BIT)."""
    utilization: dict[str, float]
    """By pod, for exporters that split the metric; else one entry."""
    activity: tuple[float | None, ...]
    accelerator_attributes: frozenset[int] = frozenset()
    """Ids of the attributes in the accelerator's labels; empty in rows from before they were stored."""
    workload_attributes: frozenset[int] = frozenset()
    """Ids of the attributes of the workloads in its labels."""

    def merged(self, other: Scrape) -> Scrape:
        """Merge with another part of the same scrape; neither order nor repetition matters."""
        pods = {*self.utilization, *other.utilization}
        return Scrape(
            # Union, minimum and maximum give the same row in whatever order and however often the parts arrive.
            min(self.node_id, other.node_id),
            self.workload_ids | other.workload_ids,
            self.readings | other.readings,
            {pod: max(self.utilization.get(pod, 0.0), other.utilization.get(pod, 0.0)) for pod in pods},
            tuple(_greater(*pair) for pair in zip(self.activity, other.activity, strict=True)),
            self.accelerator_attributes | other.accelerator_attributes,
            self.workload_attributes | other.workload_attributes,
        )


def _greater(value: float | None, other: float | None) -> float | None:
    return max((number for number in (value, other) if number is not None), default=None)


@dataclass(frozen=True, slots=True)
class ScrapeRows:
    """Samples by column, each with its row; rows by column, with their accelerator and instant."""

    cache: SeriesCache
    request: Array
    """Index of the request of each sample."""
    row: Array
    metric: Array
    value: Array
    """In base units; NaN where the exporter reports a blank."""
    workload: Array
    pod: Array
    accelerator: Array
    """Index in the cache of the accelerator of each row."""
    at_ms: Array

    @staticmethod
    def of(cache: SeriesCache, requests: Sequence[WriteRequest]) -> ScrapeRows:
        """Join requests that share a cache."""
        table = cache.table()[np.concatenate([request.series for request in requests])]
        # NaN means absent from here on.
        value = cache.base_values(table, np.concatenate([request.value for request in requests]))
        at_ms = np.concatenate([request.at_ms for request in requests])
        # Different labels may describe the same accelerator: its first index stands for it.
        first_index: dict[str, int] = {}
        canonical = np.zeros(len(cache.accelerators), dtype="<i8")
        for index in np.unique(table["accelerator"]).tolist():
            canonical[index] = first_index.setdefault(cache.accelerators[index].accelerator.uuid, index)
        # Accelerator and instant in one integer, so that rows can be found by sorting integers.
        keys, first, row = np.unique(
            canonical[table["accelerator"]] << _INSTANT_BITS | at_ms, return_index=True, return_inverse=True
        )
        row = row.reshape(len(value))
        return ScrapeRows(
            cache,
            np.repeat(np.arange(len(requests)), [request.samples for request in requests]),
            row,
            table["metric"],
            _preferred(row, table, value),
            table["workload"],
            table["pod"],
            _with_model(cache, row, table["accelerator"], first),
            keys & (1 << _INSTANT_BITS) - 1,
        )

    @property
    def accelerators(self) -> list[WireAccelerator]:
        """The accelerator of each row."""
        return [self.cache.accelerators[index].accelerator for index in self.accelerator.tolist()]

    def divided(self) -> Array:
        """Mark rows of devices whose MIG instances have a row at the same instant: the instances are what is held."""
        at, records = self.at_ms.tolist(), self.accelerators
        split = {(record.device_uuid, at[row]) for row, record in enumerate(records) if record.mig_instance is not None}
        return np.array(
            [record.mig_instance is None and (record.uuid, at[row]) in split for row, record in enumerate(records)]
        )

    def by_node(self, health: Callable[[str], Health]) -> list[Accepted]:
        """Nodes, accelerators and workloads as batches, the form in which the id cache registers them."""
        rows: dict[str, list[int]] = defaultdict(list)
        for row, index in enumerate(self.accelerator.tolist()):
            rows[self.cache.accelerators[index].node].append(row)
        holders: dict[int, set[int]] = defaultdict(set)
        for row, workload in self._holders():
            holders[row].add(workload)
        records = self.accelerators
        return [self._node_batch(node, node_rows, records, holders, health) for node, node_rows in rows.items()]

    def _holders(self) -> list[tuple[int, int]]:
        """Distinct pairs of row and workload."""
        is_named = self.workload != NONE
        # Row in the upper half, workload in the lower: a pair is one integer.
        keys = np.unique(self.row[is_named].astype("<i8") << 32 | self.workload[is_named])
        return list(zip((keys >> 32).tolist(), (keys & 0xFFFFFFFF).tolist(), strict=True))

    def _node_batch(
        self,
        node: str,
        rows: list[int],
        records: list[WireAccelerator],
        holders: dict[int, set[int]],
        health: Callable[[str], Health],
    ) -> Accepted:
        places: dict[str, int] = {}
        accelerators: dict[int, WireAccelerator] = {}
        for row in rows:
            record = records[row]
            place = places.setdefault(record.uuid, len(places))
            if place not in accelerators:
                state = health(record.uuid)
                accelerators[place] = msgspec.structs.replace(record, health=state.status, health_cause=state.cause)
        workloads = sorted({workload for row in rows for workload in holders[row]})
        row_places = np.array([places[records[row].uuid] for row in rows])
        return Accepted(
            node=node,
            epoch=_NO_EPOCH,
            seq=0,
            sha256=b"",
            size=0,
            heartbeat=None,
            accelerators=AcceptedRecords(accelerators),
            workloads=AcceptedRecords({place: self.cache.workloads[index] for place, index in enumerate(workloads)}),
            usage_intervals={},
            block=SampleBlock.of(row_places, self.at_ms[np.array(rows)], {}),
            rejected=[],
        )

    def scrapes(self, ids: Ids) -> list[Scrape]:
        """The scrape of each row."""
        rows = len(self.at_ms)
        is_read = ~np.isnan(self.value)
        # Which hot metrics each row has: a later part of the scrape writes only the ones that are missing.
        bits = np.zeros(rows, dtype="<i8")
        for name, bit in HOT_BIT.items():
            bits[self.row[is_read & (self.metric == METRIC_NUMBER[name])]] |= 1 << bit
        activity = []
        for name in ACTIVITY_METRICS.values():
            greatest = self._greatest(np.flatnonzero(self.metric == METRIC_NUMBER[name])).tolist()
            activity.append([None if np.isnan(value) else value for value in greatest])
        workloads: list[set[int]] = [set() for _ in range(rows)]
        attributes: list[set[int]] = [set() for _ in range(rows)]
        for row, index in self._holders():
            workload = self.cache.workloads[index]
            key = workload_key(workload.kind, "", workload.id)
            workloads[row].add(ids.workloads[key])
            attributes[row].add(ids.attributes[workload_content(key, workload)])
        utilization = self._by_pod(_UTILIZATION)
        return [
            Scrape(
                ids.nodes[self.cache.accelerators[index].node],
                frozenset(workloads[row]),
                int(bits[row]),
                utilization.get(row, {}),
                tuple(column[row] for column in activity),
                frozenset({ids.attributes[accelerator_content(self.cache.accelerators[index].accelerator)]}),
                frozenset(attributes[row]),
            )
            for row, index in enumerate(self.accelerator.tolist())
        ]

    def _greatest(self, chosen: Array) -> Array:
        """The greatest value of the chosen samples in each row; NaN for none."""
        greatest = np.full(len(self.at_ms), np.nan)
        # `at` accumulates over repeated rows; fmax ignores NaN. The greatest, because several lines may repeat a
        # reading.
        np.fmax.at(greatest, self.row[chosen], self.value[chosen])
        return greatest

    def _by_pod(self, metric: int) -> dict[int, dict[str, float]]:
        """The greatest value of each pod, by row, for a metric that may be split over pods."""
        chosen = np.flatnonzero((self.metric == metric) & ~np.isnan(self.value))
        by_row: dict[int, dict[str, float]] = defaultdict(dict)
        for row, pod, value in zip(
            self.row[chosen].tolist(), self.pod[chosen].tolist(), self.value[chosen].tolist(), strict=True
        ):
            name = self.cache.pods[pod]
            by_row[row][name] = max(value, by_row[row].get(name, value))
        return by_row

    def samples(self, accelerator_ids: Array) -> SampleRows:
        """Every reading of every row, by metric."""
        columns: dict[str, Array] = {}
        # Sort once and split by metric, instead of one pass over all samples for each of them.
        order = np.argsort(self.metric, kind="stable")
        numbers, starts = np.unique(self.metric[order], return_index=True)
        for number, chosen in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            if number == NONE:
                continue
            metric = METRICS[number]
            column = self._greatest(chosen)
            if metric.name in POD_SUMS:
                for row, parts in self._by_pod(number).items():
                    # Several pods share the device: equal values repeat the device's, different ones are parts that add
                    # up.
                    if len(parts) > 1:
                        column[row] = device_value(parts.values(), POD_SUMS[metric.name])
            columns[metric.name] = _as_kind(column, metric.column_kind)
        return SampleRows(accelerator_ids, self.at_ms, columns)

    def select(self, rows: Array) -> ScrapeRows:
        """These rows with their samples."""
        # New positions of the selected rows; samples of other rows are dropped with them.
        place = np.full(len(self.at_ms), NONE, dtype="<i8")
        place[rows] = np.arange(len(rows))
        kept = place[self.row] != NONE
        return replace(
            self,
            request=self.request[kept],
            row=place[self.row[kept]],
            metric=self.metric[kept],
            value=self.value[kept],
            workload=self.workload[kept],
            pod=self.pod[kept],
            accelerator=self.accelerator[rows],
            at_ms=self.at_ms[rows],
        )


def _preferred(row: Array, table: Array, value: Array) -> Array:
    """The values, NaN where a row has the metric from a family that the profile prefers."""
    if not table["rank"].any():
        return value
    _, place = np.unique(row * len(METRICS) + table["metric"], return_inverse=True)
    place = place.reshape(len(value))
    best = np.full(len(value), np.iinfo("i1").max, dtype="i1")
    is_read = ~np.isnan(value)
    np.minimum.at(best, place[is_read], table["rank"][is_read])
    return np.where(table["rank"] > best[place], np.nan, value)


def _with_model(cache: SeriesCache, row: Array, accelerator: Array, first: Array) -> Array:
    """The accelerator of each row: as a series with its model describes it, where only some of them name it."""
    chosen = accelerator[first]
    has_model = np.array([bool(entry.accelerator.model) for entry in cache.accelerators])
    if has_model[chosen].all():
        return chosen
    # In reverse order, so that the first series of each row is written last.
    named = np.flatnonzero(has_model[accelerator])[::-1]
    better = chosen.copy()
    better[row[named]] = accelerator[named]
    return np.where(has_model[chosen], chosen, better)


def _as_kind(column: Array, kind: str) -> Array:
    """Convert a column of floats to the kind of its metric; what does not fit is absent."""
    converted = blank(len(column), kind)
    with np.errstate(over="ignore", invalid="ignore"):
        # Casting a float beyond int64 is undefined, so such a value is absent.
        fits = np.isfinite(column) & (np.abs(column) < 2.0**63)
        converted[fits] = column[fits].astype(DTYPES[kind])
    return converted


def select_new_readings(samples: SampleRows, rows: Array, new_bits: Array) -> SampleRows:
    """Some rows of samples, and of their hot metrics those whose bit is set in `new_bits`."""
    columns = {}
    for name, values in samples.columns.items():
        if name in HOT_BIT:
            column = values[rows].copy()
            # What an earlier part has written already becomes absent, so that a reading is stored once.
            column[(new_bits[rows] >> HOT_BIT[name] & 1) == 0] = blank(1, values.dtype.str[1:])[0]
            if not is_absent(column).all():
                columns[name] = column
    return SampleRows(samples.accelerator[rows], samples.at_ms[rows], columns)

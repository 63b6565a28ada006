"""Join the samples of requests to scrapes: a row for each accelerator and instant, with everything
they show of it.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import msgspec
import numpy as np

from gpuledger_collector.ingest.batches.attributes import Ids, accelerator_content, workload_content
from gpuledger_collector.ingest.batches.columns import DTYPES, Array, blank, is_absent
from gpuledger_collector.ingest.batches.samples import SampleRows
from gpuledger_collector.ingest.batches.validate import (
    Accepted,
    AcceptedRecords,
    SampleBlock,
    workload_key,
)
from gpuledger_collector.ingest.remote_write.decode import WriteRequest
from gpuledger_collector.ingest.remote_write.series import HOT_BIT, METRIC_NUMBER, NONE, SeriesCache
from gpuledger_common.catalog import METRICS
from gpuledger_common.profiles.page import POD_SUMS, device_value
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
"""Columns of a scrape and their metrics: the signs of activity that the meter reads besides
utilization.
"""
_HOT_BITS = {METRIC_NUMBER[name]: 1 << bit for name, bit in HOT_BIT.items()}
_INSTANT_BITS = 42


class Scrape(NamedTuple):
    """What is known of an accelerator at an instant: a row of the table `scrape`."""

    node_id: int
    workload_ids: frozenset[int]
    readings: int
    """Bits of the hot metrics that were read (HOT_BIT)."""
    utilization: dict[str, float]
    """By pod, for exporters that split the metric; else one entry."""
    activity: tuple[float | None, ...]
    accelerator_attributes: frozenset[int] = frozenset()
    """Ids of the attributes in the accelerator's labels; empty in rows from before they were
    stored.
    """
    workload_attributes: frozenset[int] = frozenset()
    """Ids of the attributes of the workloads in its labels."""

    @property
    def labels(self) -> tuple[frozenset[int], ...]:
        """What its labels say, which mostly repeats the scrape before."""
        return self.workload_ids, self.accelerator_attributes, self.workload_attributes

    def merge(self, other: Scrape) -> Scrape:
        """Merge with another part of the same scrape; neither order nor repetition matters."""
        pods = {*self.utilization, *other.utilization}
        return Scrape(
            # Union, minimum and maximum give the same row in whatever order and however often the
            # parts arrive.
            min(self.node_id, other.node_id),
            self.workload_ids | other.workload_ids,
            self.readings | other.readings,
            {
                pod: max(self.utilization.get(pod, 0.0), other.utilization.get(pod, 0.0))
                for pod in pods
            },
            tuple(_greater(*pair) for pair in zip(self.activity, other.activity, strict=True)),
            self.accelerator_attributes | other.accelerator_attributes,
            self.workload_attributes | other.workload_attributes,
        )


def _greater(value: float | None, other: float | None) -> float | None:
    return max((number for number in (value, other) if number is not None), default=None)


@dataclass(frozen=True, slots=True)
class AcceleratorIds:
    """Ids of an accelerator's node, of the accelerator and of its attributes."""

    node: int
    accelerator: int
    attributes: frozenset[int]


class HolderIds(NamedTuple):
    """Ids of the workloads that hold an accelerator, and of their attributes."""

    workloads: frozenset[int] = frozenset()
    attributes: frozenset[int] = frozenset()

    def join(self, other: HolderIds) -> HolderIds:
        """These and others."""
        return HolderIds(self.workloads | other.workloads, self.attributes | other.attributes)


_NOBODY = HolderIds()


@dataclass(slots=True)
class LatestIndexes:
    """Of the indexes that stand for one name, as other labels may describe the same, the one
    registered last.
    """

    by_name: dict[str, int] = field(default_factory=dict)
    all: set[int] = field(default_factory=set)

    def add(self, name: str, index: int) -> None:
        """Add an index in place of the one before."""
        self.forget(name)
        self.by_name[name] = index
        self.all.add(index)

    def forget(self, name: str) -> None:
        """Have a name registered again when it returns."""
        self.all.discard(self.by_name.get(name, NONE))


@dataclass(frozen=True, slots=True)
class SeriesIds:
    """Ids of the accelerators and workloads of a cache of series, by index; of those that were
    registered.
    """

    cache: SeriesCache
    accelerators: dict[int, AcceleratorIds] = field(default_factory=dict)
    workloads: dict[int, HolderIds] = field(default_factory=dict)
    latest_accelerators: LatestIndexes = field(default_factory=LatestIndexes)
    latest_workloads: LatestIndexes = field(default_factory=LatestIndexes)

    def add(self, rows: ScrapeRows, ids: Ids) -> None:
        """Add what these rows name, which has these ids."""
        cache = self.cache
        for index in set(rows.accelerator.tolist()):
            node, record = cache.accelerators[index].node, cache.accelerators[index].accelerator
            attributes = frozenset((ids.attributes[accelerator_content(record)],))
            self.accelerators[index] = AcceleratorIds(
                ids.nodes[node], ids.accelerators[record.uuid], attributes
            )
            self.latest_accelerators.add(record.uuid, index)
        for index in rows.workloads:
            workload = cache.workloads[index]
            key = workload_key(workload.kind, "", workload.id)
            self.workloads[index] = HolderIds(
                frozenset((ids.workloads[key],)),
                frozenset((ids.attributes[workload_content(key, workload)],)),
            )
            self.latest_workloads.add(key, index)

    def has_all(self, rows: ScrapeRows) -> bool:
        """Whether everything that these rows name was registered last as they name it."""
        accelerators = set(rows.accelerator.tolist())
        return (
            accelerators <= self.latest_accelerators.all
            and rows.workloads <= self.latest_workloads.all
        )


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
    metrics: tuple[int, ...]
    """The metrics that the samples have."""
    readings: Array
    """The greatest value of each of these metrics in each row (metrics x rows); NaN for none."""
    is_repeated: bool
    """Whether several samples are of one metric in one row."""

    @staticmethod
    def join_requests(cache: SeriesCache, requests: Sequence[WriteRequest]) -> ScrapeRows:
        """Join requests that share a cache."""
        table = cache.table()
        series = np.concatenate([request.series for request in requests])
        at_ms = np.concatenate([request.at_ms for request in requests])
        accelerator, metric = table["accelerator"][series], table["metric"][series]
        known = cache.known_accelerators()
        # Accelerator and instant in one integer, so that rows can be found by sorting integers.
        keys, first, row = np.unique(
            known.canonical[accelerator] << _INSTANT_BITS | at_ms,
            return_index=True,
            return_inverse=True,
        )
        row = row.reshape(len(series))
        value = np.concatenate([request.value for request in requests])
        value = _drop_less_preferred(row, metric, table["rank"][series], value)
        metrics, readings, is_repeated = _by_metric(row, metric, value, len(keys))
        return ScrapeRows(
            cache,
            np.repeat(np.arange(len(requests)), [request.samples for request in requests]),
            row,
            metric,
            value,
            table["workload"][series],
            table["pod"][series],
            _with_model(known.has_model, row, accelerator, first),
            keys & (1 << _INSTANT_BITS) - 1,
            metrics,
            readings,
            is_repeated,
        )

    @property
    def workloads(self) -> set[int]:
        """The workloads of all rows."""
        return set(np.unique(self.workload).tolist()) - {NONE}

    @property
    def accelerators(self) -> list[WireAccelerator]:
        """The accelerator of each row."""
        return [self.cache.accelerators[index].accelerator for index in self.accelerator.tolist()]

    def mark_divided(self) -> Array:
        """Mark rows of devices whose MIG instances have a row at the same instant: the instances
        are what is held.
        """
        if not self.cache.known_accelerators().is_instance.any():
            return np.zeros(len(self.at_ms), dtype=bool)
        at, records = self.at_ms.tolist(), self.accelerators
        split = {
            (record.device_uuid, at[row])
            for row, record in enumerate(records)
            if record.mig_instance is not None
        }
        return np.array(
            [
                record.mig_instance is None and (record.uuid, at[row]) in split
                for row, record in enumerate(records)
            ]
        )

    def by_node(self, health: Callable[[str], Health]) -> list[Accepted]:
        """Nodes, accelerators and workloads as batches, the form in which the id cache registers
        them.
        """
        rows: dict[str, list[int]] = defaultdict(list)
        for row, index in enumerate(self.accelerator.tolist()):
            rows[self.cache.accelerators[index].node].append(row)
        holders: dict[int, set[int]] = defaultdict(set)
        for row, workload in self._holders():
            holders[row].add(workload)
        records = self.accelerators
        return [
            self._node_batch(node, node_rows, records, holders, health)
            for node, node_rows in rows.items()
        ]

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
        # Rows are in order of time: where labels of an accelerator changed between them, the last
        # record is the newest.
        places = {
            record: place
            for place, record in enumerate(dict.fromkeys(records[row] for row in rows))
        }
        states = {uuid: health(uuid) for uuid in {record.uuid for record in places}}
        accelerators = {
            place: msgspec.structs.replace(
                record, health=states[record.uuid].status, health_cause=states[record.uuid].cause
            )
            for record, place in places.items()
        }
        workloads = sorted({workload for row in rows for workload in holders[row]})
        row_places = np.array([places[records[row]] for row in rows])
        return Accepted(
            node=node,
            epoch=_NO_EPOCH,
            seq=0,
            sha256=b"",
            size=0,
            heartbeat=None,
            accelerators=AcceptedRecords(accelerators),
            workloads=AcceptedRecords(
                {place: self.cache.workloads[index] for place, index in enumerate(workloads)}
            ),
            usage_intervals={},
            block=SampleBlock.from_columns(row_places, self.at_ms[np.array(rows)], {}),
            rejected=[],
        )

    def scrapes(self, ids: SeriesIds) -> list[Scrape]:
        """The scrape of each row."""
        holders: dict[int, HolderIds] = {}
        for row, index in self._holders():
            named = ids.workloads[index]
            holders[row] = holders[row].join(named) if row in holders else named
        described = [ids.accelerators[index] for index in self.accelerator.tolist()]
        activity = zip(
            *(self._values_or_none(METRIC_NUMBER[name]) for name in ACTIVITY_METRICS.values()),
            strict=True,
        )
        scrapes = []
        for row, (entry, bits, utilization, activity_values) in enumerate(
            zip(described, self.bits.tolist(), self._utilization(), activity, strict=True)
        ):
            workloads, attributes = holders.get(row, _NOBODY)
            scrapes.append(
                Scrape(
                    entry.node,
                    workloads,
                    bits,
                    utilization,
                    activity_values,
                    entry.attributes,
                    attributes,
                )
            )
        return scrapes

    @property
    def bits(self) -> Array:
        """Bits of the hot metrics that each row has: a later part of the scrape writes only those
        that are missing.
        """
        places = [place for place, number in enumerate(self.metrics) if number in _HOT_BITS]
        weights = np.array([_HOT_BITS[self.metrics[place]] for place in places], dtype="<i8")
        bits: Array = weights @ ~np.isnan(self.readings[places])
        return bits

    def reading(self, number: int) -> Array:
        """The readings of a metric by row."""
        if number in self.metrics:
            return cast(Array, self.readings[self.metrics.index(number)])
        return np.full(len(self.at_ms), np.nan)

    def _values_or_none(self, number: int) -> list[float | None]:
        return [None if value != value else value for value in self.reading(number).tolist()]

    def _utilization(self) -> list[dict[str, float]]:
        """Utilization of each row, by pod."""
        if self.cache.pods == [""]:
            return [
                {} if value is None else {"": value} for value in self._values_or_none(_UTILIZATION)
            ]
        by_row = self._by_pod(_UTILIZATION)
        return [by_row.get(row, {}) for row in range(len(self.at_ms))]

    def _by_pod(self, metric: int) -> dict[int, dict[str, float]]:
        """The greatest value of each pod, by row, for a metric that may be split over pods."""
        chosen = np.flatnonzero((self.metric == metric) & ~np.isnan(self.value))
        by_row: dict[int, dict[str, float]] = defaultdict(dict)
        for row, pod, value in zip(
            self.row[chosen].tolist(),
            self.pod[chosen].tolist(),
            self.value[chosen].tolist(),
            strict=True,
        ):
            name = self.cache.pods[pod]
            by_row[row][name] = max(value, by_row[row].get(name, value))
        return by_row

    def samples(self, accelerator_ids: Array) -> SampleRows:
        """Every reading of every row, by metric."""
        columns: dict[str, Array] = {}
        fitting = np.where(_fits(self.readings), self.readings, np.nan)
        readings = {"f4": fitting.astype("<f4"), "f8": fitting}
        for place, number in enumerate(self.metrics):
            metric = METRICS[number]
            if self.is_repeated and metric.name in POD_SUMS:
                columns[metric.name] = _as_kind(self._pod_sums(number), metric.column_kind)
            elif metric.column_kind in readings:
                columns[metric.name] = readings[metric.column_kind][place]
            else:
                columns[metric.name] = _as_kind(self.reading(number), metric.column_kind)
        return SampleRows(accelerator_ids, self.at_ms, columns)

    def _pod_sums(self, number: int) -> Array:
        """A device's value of a metric that is split over its pods."""
        column = self.reading(number).copy()
        for row, parts in self._by_pod(number).items():
            # Several pods share the device: equal values repeat the device's, different ones are
            # parts that add up.
            if len(parts) > 1:
                column[row] = device_value(parts.values(), POD_SUMS[METRICS[number].name])
        return column

    def select(self, rows: Array) -> ScrapeRows:
        """These rows with their samples."""
        if len(rows) == len(self.at_ms):
            return self
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
            readings=self.readings[:, rows],
        )


def _drop_less_preferred(row: Array, metric: Array, rank: Array, value: Array) -> Array:
    """The values, NaN where a row has the metric from a family that the profile prefers."""
    if not rank.any():
        return value
    _, place = np.unique(row * len(METRICS) + metric, return_inverse=True)
    place = place.reshape(len(value))
    best = np.full(len(value), np.iinfo("i1").max, dtype="i1")
    is_read = ~np.isnan(value)
    np.minimum.at(best, place[is_read], rank[is_read])
    return np.where(rank > best[place], np.nan, value)


def _by_metric(
    row: Array, metric: Array, value: Array, rows: int
) -> tuple[tuple[int, ...], Array, bool]:
    """The metrics of samples, the greatest value of each in each row, and whether a row has one of
    them repeatedly.
    """
    chosen = metric != NONE
    counts = np.bincount(metric[chosen], minlength=len(METRICS))
    metrics = np.flatnonzero(counts)
    # By the number of a metric, its place among those that the samples have.
    place = np.cumsum(counts > 0) - 1
    places = place[metric[chosen]] * rows + row[chosen]
    readings = np.full(len(metrics) * rows, np.nan)
    if is_repeated := bool((np.bincount(places) > 1).any()):
        # The greatest, because several lines may repeat a reading. fmax ignores NaN.
        np.fmax.at(readings, places, value[chosen])
    else:
        readings[places] = value[chosen]
    return tuple(metrics.tolist()), readings.reshape(len(metrics), rows), is_repeated


def _with_model(has_model: Array, row: Array, accelerator: Array, first: Array) -> Array:
    """The accelerator of each row: as a series with its model describes it, where only some of them
    name it.
    """
    chosen = accelerator[first]
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
    fits = _fits(column)
    converted[fits] = column[fits].astype(DTYPES[kind])
    return converted


def _fits(values: Array) -> Array:
    """Mark the values that every kind of column can hold: casting a float beyond int64 is
    undefined.
    """
    with np.errstate(invalid="ignore"):
        return np.abs(values) < 2.0**63


def select_new_readings(samples: SampleRows, bits: Array, new_bits: Array) -> SampleRows:
    """The rows of samples that have new readings (`new_bits`, of all their `bits`), with those of
    their hot metrics.
    """
    if new_bits.all() and (new_bits == bits).all():
        return samples
    rows, columns = np.flatnonzero(new_bits), {}
    for name, values in samples.columns.items():
        if name in HOT_BIT:
            column = values[rows].copy()
            # What an earlier part has written already becomes absent, so that a reading is stored
            # once.
            column[(new_bits[rows] >> HOT_BIT[name] & 1) == 0] = blank(1, values.dtype.str[1:])[0]
            if not is_absent(column).all():
                columns[name] = column
    return SampleRows(samples.accelerator[rows], samples.at_ms[rows], columns)

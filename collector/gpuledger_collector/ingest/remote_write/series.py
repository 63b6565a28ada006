"""Interpret series: of which accelerator, for whom, and which metric.

Each is interpreted once and then cached.

Names of exporters (by the profiles of `gpuledger_common.profiles`) and of our agent (gpu_*) are
accepted, and counters of inference servers; every other series is *foreign*: it is cached and
ignored. Prometheus adds labels of its own. Where they clash with the exporter's, the exporter's get
the prefix `exported_`, and the plain name belongs to the pod of the exporter itself, which holds no
GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from gpuledger_collector.ingest.batches.columns import Array
from gpuledger_collector.ingest.batches.validate import bad_text, check_accelerator, check_workload
from gpuledger_collector.ingest.remote_write.gateway_counters import (
    GatewayCounter,
    ProcessStart,
    gateway_counters,
    process_start,
)
from gpuledger_collector.ingest.remote_write.inference_counters import (
    InferenceSeries,
    inference_series,
)
from gpuledger_collector.ingest.remote_write.messages import ONE
from gpuledger_common.catalog import BY_NAME, HOT, METRICS
from gpuledger_common.gateways.library import all_gateways
from gpuledger_common.gateways.model import GatewayProfile
from gpuledger_common.metrics import Metric
from gpuledger_common.profiles.library import all_profiles
from gpuledger_common.profiles.model import OwnerRule, Profile, ValueRule
from gpuledger_common.profiles.series import (
    Described,
    Uncounted,
    derived_labels,
    describe,
    owner_of,
)
from gpuledger_common.readings import Accelerator, Workload
from gpuledger_common.serving_counters import is_counter
from gpuledger_common.wire import WireAccelerator, WireWorkload

MAX_LABELS = 100
MAX_NAME = 1024
MAX_VALUE = 4096
MAX_SERIES = 600_000
MAX_KEYS_BYTES = 384 * 1024 * 1024
MAX_NAMES = 10_000
SERIES_BYTES = 200
"""Memory of a cached series besides its key."""
FOREIGN, BAD, ACCEPTED, INFERENCE, GATEWAY, PROCESS = range(6)
NONE = -1
METRIC_NUMBER = {metric.name: number for number, metric in enumerate(METRICS)}
HOT_BIT = {metric.name: bit for bit, metric in enumerate(HOT)}
OWNER_LABELS = ("org", "team", "project", "experiment", "run")
"""Labels that attribute a workload: the levels of the owner tree."""
INFERENCE_OWNER = OwnerRule(
    pod=("pod", "pod_name"),
    namespace=("namespace", "pod_namespace"),
    container=("container", "container_name"),
    job=("hpc_job",),
    own_pods=("dcgm-exporter",),
)
"""Labels that name the workload of an inference server."""
_ROW = np.dtype(
    [
        ("kind", "i1"),
        ("key_size", "<i4"),
        ("accelerator", "<i4"),
        ("metric", "<i2"),
        ("factor", "<f8"),
        ("is_percent", "?"),
        ("is_zero_absent", "?"),
        ("absent_above", "<f8"),
        ("low", "<f8"),
        ("high", "<f8"),
        ("sentinels", "<i4"),
        ("rank", "i1"),
        ("workload", "<i4"),
        ("pod", "<i4"),
    ]
)


class BadSeries(Exception):
    """A series that is refused, with the reason."""


@dataclass(frozen=True, slots=True)
class NodeAccelerator:
    """An accelerator on its node, as the labels of a series describe it."""

    node: str
    accelerator: WireAccelerator


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """An accepted series.

    `metric` is None for a field that the catalog lacks: the series still shows its holder.
    """

    accelerator: NodeAccelerator
    metric: Metric | None
    rule: ValueRule
    rank: int
    """Order of preference of the families that give a metric; the first that is present counts."""
    workload: WireWorkload | None
    pod: str
    """The pod for metrics that exporters split over the pods of a device; else empty."""


AnySeries = GpuSeries | InferenceSeries | GatewayCounter | ProcessStart


@dataclass(frozen=True, slots=True)
class SeriesReader:
    """Interprets series by the agent's names and by profiles."""

    profiles: tuple[Profile, ...]
    gateways: tuple[GatewayProfile, ...] = field(default_factory=all_gateways)
    _by_name: dict[str, tuple[tuple[Profile, str], ...]] = field(default_factory=dict)
    """Profiles of a name, with its family in each, for the names that were looked up."""

    def interpret(self, labels: list[tuple[str, str]]) -> AnySeries | None:
        """Interpret a series; None for a foreign one. Raises BadSeries."""
        by_name = check_labels(labels)
        name = by_name["__name__"]
        # Series of a MIG instance on our agent's page do not name its device, so they are foreign.
        if name in BY_NAME and by_name.get("uuid") and by_name.get("node"):
            return None if by_name.get("mig_instance") else _interpret_agent(BY_NAME[name], by_name)
        found = {
            profile.id: series
            for profile, family in self._candidates(name)
            if (series := _by_profile(profile, family, by_name)) is not None
        }
        if len(found) > 1:
            raise BadSeries(f"{name} is understood by several profiles: {' and '.join(found)}")
        if found:
            return next(iter(found.values()))
        own = (
            inference_series(name, by_name, owner_of(INFERENCE_OWNER, by_name))
            if is_counter(name)
            else None
        )
        counters = gateway_counters(self.gateways, name, by_name, own)
        if len(counters) > 1:
            names = " and ".join(counter.series.profile for counter in counters)
            raise BadSeries(f"{name} is understood by several profiles: {names}")
        return counters[0] if counters else own or process_start(self.gateways, name, by_name)

    def _candidates(self, name: str) -> tuple[tuple[Profile, str], ...]:
        known = self._by_name.get(name)
        if known is None:
            plain = [(profile, profile.plain_name(name)) for profile in self.profiles]
            known = tuple((profile, family) for profile, family in plain if family is not None)
            # Bounded: a sender may make up any number of names.
            if len(self._by_name) < MAX_NAMES:
                self._by_name[name] = known
        return known


def packaged_reader() -> SeriesReader:
    """A reader of the packaged profiles."""
    return SeriesReader(all_profiles())


@dataclass(frozen=True, slots=True)
class KnownAccelerators:
    """What is known of accelerators by their index, as columns."""

    canonical: Array
    """The first index of the same UUID: different labels may describe one accelerator."""
    has_model: Array
    is_instance: Array
    """Whether it is a MIG instance."""


@dataclass(slots=True)
class SeriesCache:
    """All series seen so far by index, interpreted, as columns.

    It only grows; a full cache is replaced.
    """

    reader: SeriesReader = field(default_factory=packaged_reader)
    indexes: dict[Hashable, int] = field(default_factory=dict)
    keys: list[bytes | tuple[()]] = field(default_factory=lambda: [()])
    """The bytes of the labels of the series at `index + 1`; nothing, which is no prefix of
    anything, where unknown.
    """
    after: list[int] = field(default_factory=lambda: [0])
    """By a place in `keys`, that of the series that followed it most recently; the first is the
    begin of a body.
    """
    symbols: dict[bytes, int] = field(default_factory=dict)
    """Numbers, from 1 on, of the labels' names and values in series of version 2."""
    by_symbols: dict[bytes, int] = field(default_factory=dict)
    """Indexes of those series, by the numbers of their labels."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why a bad series is refused, by index."""
    accelerators: list[NodeAccelerator] = field(default_factory=list)
    workloads: list[WireWorkload] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    inference: list[InferenceSeries] = field(default_factory=list)
    gateways: list[GatewayCounter] = field(default_factory=list)
    processes: list[ProcessStart] = field(default_factory=list)
    sentinels: list[tuple[float, ...]] = field(default_factory=list)
    """Sets of values that mean a failed read."""
    key_bytes: int = 0
    _places: dict[Hashable, int] = field(default_factory=dict)
    _rows: list[tuple[object, ...]] = field(default_factory=list)
    _table: Array = field(default_factory=lambda: np.empty(0, dtype=_ROW))
    _known: KnownAccelerators = field(
        default_factory=lambda: KnownAccelerators(*(np.empty(0, t) for t in ("<i8", "?", "?")))
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_full(self) -> bool:
        """Whether it should be replaced."""
        return len(self.indexes) >= MAX_SERIES or self.key_bytes >= MAX_KEYS_BYTES

    def table(self) -> Array:
        """The interpretation of every series by index, as columns."""
        # Columns are extended only when they are read: a new scrape target adds many series at
        # once.
        with self._lock:
            if len(self._table) != len(self._rows):
                new = np.array(self._rows[len(self._table) :], dtype=_ROW)
                self._table = np.concatenate([self._table, new], dtype=_ROW)
            return self._table

    def known_accelerators(self) -> KnownAccelerators:
        """What is known of the accelerators."""
        with self._lock:
            if len(self._known.canonical) != len(self.accelerators):
                first: dict[str, int] = {}
                records = [entry.accelerator for entry in self.accelerators]
                self._known = KnownAccelerators(
                    np.array(
                        [
                            first.setdefault(record.uuid, index)
                            for index, record in enumerate(records)
                        ],
                        "<i8",
                    ),
                    np.array([bool(record.model) for record in records]),
                    np.array([record.mig_instance is not None for record in records]),
                )
            return self._known

    def add(self, key: Hashable, size: int, labels: list[tuple[str, str]] | BadSeries) -> int:
        """Interpret a new series and return its index; `key` finds it from now on."""
        with self._lock:
            # Again under the lock: another thread may have added the series since the caller
            # looked.
            cached = self.indexes.get(key)
            if cached is not None:
                return cached
            index = len(self._rows)
            try:
                if isinstance(labels, BadSeries):
                    raise labels
                row = self._row(self.reader.interpret(labels))
            except BadSeries as bad:
                row = _blank_row(BAD)
                self.reasons[index] = str(bad)
            self._rows.append((row[0], size, *row[1:]))
            self.keys.append(key if isinstance(key, bytes) else ())
            self.after.append(0)
            # Bad series are cached as well: a sender repeats them with every scrape.
            self.indexes[key] = index
            self.key_bytes += size + SERIES_BYTES
            return index

    def add_symbols(self, texts: Sequence[str], index: int) -> None:
        """Have a series found by the numbers of its labels' names and values."""
        with self._lock:
            numbers = [
                self.symbols.setdefault(text.encode(), len(self.symbols) + 1) for text in texts
            ]
            self.by_symbols[np.array(numbers, dtype="<u4").tobytes()] = index

    def _row(self, series: AnySeries | None) -> tuple[object, ...]:
        if series is None:
            return _blank_row(FOREIGN)
        if isinstance(series, InferenceSeries):
            return _blank_row(INFERENCE, self._place(self.inference, series, series))
        if isinstance(series, GatewayCounter):
            return _blank_row(GATEWAY, self._place(self.gateways, series, series))
        if isinstance(series, ProcessStart):
            return _blank_row(PROCESS, self._place(self.processes, series, series))
        workload, rule = series.workload, series.rule
        return (
            ACCEPTED,
            self._place(
                self.accelerators, series.accelerator, msgspec.json.encode(series.accelerator)
            ),
            NONE if series.metric is None else METRIC_NUMBER[series.metric.name],
            rule.scale,
            rule.is_percent_above_one,
            rule.is_zero_absent,
            rule.absent_above,
            rule.low,
            rule.high,
            self._place(self.sentinels, rule.absent, rule.absent) if rule.absent else NONE,
            series.rank,
            NONE
            if workload is None
            else self._place(self.workloads, workload, msgspec.json.encode(workload)),
            self._place(self.pods, series.pod, series.pod),
        )

    def base_values(self, rows: Array, raw: Array) -> Array:
        """Values in base units, of series by their rows of the table; NaN where the exporter has
        none.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            is_there = (np.abs(raw) < rows["absent_above"]) & ~(rows["is_zero_absent"] & (raw == 0))
            for number in np.unique(rows["sentinels"]).tolist():
                if number != NONE:
                    is_there &= (rows["sentinels"] != number) | ~np.isin(
                        raw, self.sentinels[number]
                    )
            value = np.where(is_there, raw, np.nan) * rows["factor"]
            # One name meant a percentage in some versions and means a ratio in others: only a
            # percentage can exceed 1.
            scaled: Array = np.where(rows["is_percent"] & (value > 1), value / 100, value)
            return scaled

    def _place(self, items: list[Any], item: object, name: Hashable) -> int:
        # One dictionary serves several lists, each identified by its id.
        place = self._places.get((id(items), name))
        if place is None:
            place = self._places[id(items), name] = len(items)
            items.append(item)
        return place


def _blank_row(kind: int, workload: int = NONE) -> tuple[object, ...]:
    return kind, NONE, NONE, 1.0, False, False, np.inf, -np.inf, np.inf, NONE, 0, workload, NONE


def parse_labels(parts: list[bytes]) -> list[tuple[str, str]]:
    """Parse the labels of a 1.0 series. Raises BadSeries."""
    labels = []
    for part in parts:
        try:
            label = ONE["Label"].FromString(part)
        except Exception as error:  # protobuf's DecodeError, or text that is not UTF-8
            raise BadSeries("its labels cannot be read") from error
        labels.append((label.name, label.value))
    return labels


def check_labels(labels: list[tuple[str, str]]) -> dict[str, str]:
    """The labels by name.

    Raises BadSeries where they break the specification: order, repetition, no name, size.
    """
    if len(labels) > MAX_LABELS:
        raise BadSeries(f"has {len(labels)} labels, {MAX_LABELS} are allowed")
    before = ""
    for name, value in labels:
        if name <= before:
            raise BadSeries("its labels are not sorted, repeat a name or have an empty one")
        if len(name) > MAX_NAME or len(value) > MAX_VALUE:
            raise BadSeries(f"its label {name[:40]!a} is longer than is allowed")
        before = name
    by_name = dict(labels)
    if not by_name.get("__name__"):
        raise BadSeries("has no name")
    return by_name


def _by_profile(profile: Profile, family: str, labels: Mapping[str, str]) -> GpuSeries | None:
    """A series by a profile; None where it is not understood. Raises BadSeries."""
    labels = derived_labels(profile, labels)
    try:
        described = describe(profile, family, labels, target_host(labels))
    except Uncounted as error:
        raise BadSeries(str(error)) from error
    # The share of a part that is a value, not a label, is known on a whole page only: an agent
    # reads those.
    if described is None or not described.accelerator.gpu_micro:
        return None
    # Values that are added up may come in several requests, so no part of them is ever taken for
    # the sum.
    entry = next((entry for entry in described.families if entry.combine != "sum"), None)
    owner = described.owner
    return GpuSeries(
        _on_node(described.host or fallback_host(profile, labels), described.accelerator),
        None if entry is None else entry.metric,
        ValueRule() if entry is None else entry.rule,
        0 if entry is None else entry.rank,
        _as_wire(owner, labels)
        if owner is not None
        else _labeled_holder(profile, described, labels),
        owner.id if owner is not None and entry is not None and entry.combine == "pods" else "",
    )


def _interpret_agent(metric: Metric, labels: Mapping[str, str]) -> GpuSeries | None:
    if "GPU" not in metric.scopes:
        return None
    digits = labels.get("gpu", "")
    index = int(digits) if digits.isdecimal() else 0
    accelerator = Accelerator(labels["uuid"], labels["uuid"], index, labels.get("model", ""))
    return GpuSeries(_on_node(labels["node"], accelerator), metric, ValueRule(), 0, None, "")


def _on_node(node: str, accelerator: Accelerator) -> NodeAccelerator:
    if not node or bad_text(node, 253) or not node.isprintable():
        raise BadSeries("names no node: Hostname, hostname, node and instance are empty or no name")
    wire = WireAccelerator(
        accelerator.uuid,
        accelerator.device_uuid,
        accelerator.index,
        accelerator.model,
        accelerator.mig_instance,
        accelerator.gpu_micro,
        None,
        accelerator.pci_bus_id,
    )
    reason = check_accelerator(wire)
    if reason:
        raise BadSeries(f"its accelerator is refused: {reason}")
    return NodeAccelerator(node, wire)


def target_host(labels: Mapping[str, str]) -> str:
    """The node by the labels of Prometheus: `node`, or the host of the scrape target."""
    # `instance` is HOST:PORT.
    return (
        labels.get("node")
        or labels.get("instance", "").rpartition(":")[0]
        or labels.get("instance", "")
    )


def fallback_host(profile: Profile, labels: Mapping[str, str]) -> str:
    """The id of the exporter's container, where no label has a better name."""
    return next((value for name in profile.device.hosts if (value := labels.get(name))), "")


def _labeled_holder(
    profile: Profile, described: Described, labels: Mapping[str, str]
) -> WireWorkload | None:
    """The holder by labels such as `team` that people add, of an exporter that names no owners
    itself.
    """
    if (
        profile.owner.pod
        or profile.owner.job
        or not any(labels.get(level) for level in OWNER_LABELS)
    ):
        return None
    return _as_wire(
        Workload(f"{described.host} {described.accelerator.uuid}".strip(), "labels"), labels
    )


def _as_wire(owner: Workload, labels: Mapping[str, str]) -> WireWorkload:
    tags = {**owner.tags, **{level: labels[level] for level in OWNER_LABELS if labels.get(level)}}
    wire = WireWorkload(owner.id, owner.kind, owner.user, owner.account, owner.name, tags)
    reason = check_workload(wire)
    if reason:
        raise BadSeries(f"its workload is refused: {reason}")
    return wire

"""Interpret series: of which accelerator, for whom, and which metric. Each is interpreted once and then cached.

Names of dcgm-exporter (DCGM_FI_*) and of our agent (gpu_*) are accepted, and counters of inference servers; every other
series is *foreign*: it is cached and ignored. Prometheus adds labels of its own. Where they clash with the exporter's,
the exporter's get the prefix `exported_`, and the plain name belongs to the pod of the exporter itself, which holds no
GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from gpuledger_collector.ingest.batches.columns import Array
from gpuledger_collector.ingest.batches.validate import bad_text, check_accelerator, check_workload
from gpuledger_collector.ingest.remote_write.inference_counters import InferenceSeries, inference_series
from gpuledger_collector.ingest.remote_write.messages import ONE
from gpuledger_common import dcgm_page as dcgm
from gpuledger_common.catalog import BY_NAME, HOT, METRICS
from gpuledger_common.metrics import Metric
from gpuledger_common.readings import Accelerator, Workload
from gpuledger_common.serving_counters import ENGINES
from gpuledger_common.wire import WireAccelerator, WireWorkload

MAX_LABELS = 100
MAX_NAME = 1024
MAX_VALUE = 4096
MAX_SERIES = 600_000
MAX_KEYS_BYTES = 384 * 1024 * 1024
SERIES_BYTES = 200
"""Memory of a cached series besides its key."""
FOREIGN, BAD, ACCEPTED, INFERENCE = 0, 1, 2, 3
NONE = -1
METRIC_NUMBER = {metric.name: number for number, metric in enumerate(METRICS)}
HOT_BIT = {metric.name: bit for bit, metric in enumerate(HOT)}
OWNER_LABELS = ("org", "team", "project", "experiment", "run")
"""Labels that attribute a workload: the levels of the owner tree."""
_EXPORTER = "dcgm-exporter"
_ROW = np.dtype(
    [
        ("kind", "i1"),
        ("accelerator", "<i4"),
        ("metric", "<i2"),
        ("factor", "<f8"),
        ("is_percent", "?"),
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
    """An accepted series. `metric` is None for a field that the catalog lacks: the series still shows its holder."""

    accelerator: NodeAccelerator
    metric: Metric | None
    factor: float
    is_percent: bool
    """Whether the name may carry either a percentage or a ratio; see `dcgm.PERCENT_UNDER_A_RATIO_NAME`."""
    workload: WireWorkload | None
    pod: str


@dataclass(slots=True)
class SeriesCache:
    """All series seen so far by index, interpreted, as columns. It only grows; a full cache is replaced."""

    indexes: dict[Hashable, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why a bad series is refused, by index."""
    accelerators: list[NodeAccelerator] = field(default_factory=list)
    workloads: list[WireWorkload] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    inference: list[InferenceSeries] = field(default_factory=list)
    key_bytes: int = 0
    _places: dict[Hashable, int] = field(default_factory=dict)
    _rows: list[tuple[object, ...]] = field(default_factory=list)
    _table: Array = field(default_factory=lambda: np.empty(0, dtype=_ROW))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_full(self) -> bool:
        """Whether it should be replaced."""
        return len(self.indexes) >= MAX_SERIES or self.key_bytes >= MAX_KEYS_BYTES

    def table(self) -> Array:
        """The interpretation of every series by index, as columns."""
        # Columns are extended only when they are read: a new scrape target adds many series at once.
        with self._lock:
            if len(self._table) != len(self._rows):
                new = np.array(self._rows[len(self._table) :], dtype=_ROW)
                self._table = np.concatenate([self._table, new], dtype=_ROW)
            return self._table

    def add(self, key: Hashable, size: int, labels: list[tuple[str, str]] | BadSeries) -> int:
        """Interpret a new series and return its index; `key` finds it from now on."""
        with self._lock:
            # Again under the lock: another thread may have added the series since the caller looked.
            cached = self.indexes.get(key)
            if cached is not None:
                return cached
            index = len(self._rows)
            try:
                if isinstance(labels, BadSeries):
                    raise labels
                self._rows.append(self._row(interpret(labels)))
            except BadSeries as bad:
                self._rows.append((BAD, NONE, NONE, 1.0, False, NONE, NONE))
                self.reasons[index] = str(bad)
            # Bad series are cached as well: a sender repeats them with every scrape.
            self.indexes[key] = index
            self.key_bytes += size + SERIES_BYTES
            return index

    def _row(self, series: GpuSeries | InferenceSeries | None) -> tuple[object, ...]:
        if series is None:
            return FOREIGN, NONE, NONE, 1.0, False, NONE, NONE
        if isinstance(series, InferenceSeries):
            return INFERENCE, NONE, NONE, 1.0, False, self._place(self.inference, series, series), NONE
        workload = series.workload
        return (
            ACCEPTED,
            self._place(self.accelerators, series.accelerator, msgspec.json.encode(series.accelerator)),
            NONE if series.metric is None else METRIC_NUMBER[series.metric.name],
            series.factor,
            series.is_percent,
            NONE if workload is None else self._place(self.workloads, workload, msgspec.json.encode(workload)),
            self._place(self.pods, series.pod, series.pod),
        )

    def _place(self, items: list[Any], item: object, name: Hashable) -> int:
        # One dictionary serves several lists, each identified by its id.
        place = self._places.get((id(items), name))
        if place is None:
            place = self._places[id(items), name] = len(items)
            items.append(item)
        return place


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
    """The labels by name. Raises BadSeries where they break the specification: order, repetition, no name, size."""
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


def interpret(labels: list[tuple[str, str]]) -> GpuSeries | InferenceSeries | None:
    """Interpret a series; None for a foreign one. Raises BadSeries."""
    by_name = check_labels(labels)
    name = by_name["__name__"]
    if name.startswith("DCGM_FI_"):
        return _interpret_dcgm(name, by_name)
    # Series of a MIG instance on our agent's page do not name its device, so they are foreign.
    if name.startswith("gpu_") and not by_name.get("mig_instance"):
        return _interpret_agent(name, by_name)
    return inference_series(name, by_name, find_owner(by_name)) if name in ENGINES else None


def _interpret_dcgm(name: str, labels: Mapping[str, str]) -> GpuSeries | None:
    device = labels.get("UUID") or labels.get("gpu_uuid") or labels.get("uuid") or ""
    if not device:
        return None
    accelerator = dcgm.accelerator_of(device, labels)
    metric = dcgm.metric_of(name)
    # The exporter repeats readings of the board on the lines of its instances, where they belong to none of them.
    if metric is not None and accelerator.mig_instance is not None and "MIG" not in metric.scopes:
        metric = None
    owner = find_owner(labels)
    return GpuSeries(
        _on_node(find_node(labels), accelerator),
        metric,
        1.0 if metric is None else dcgm.factor_of(metric, name),
        name == dcgm.PERCENT_UNDER_A_RATIO_NAME,
        None if owner is None else _as_wire(owner, labels),
        "" if owner is None else owner.id,
    )


def _interpret_agent(name: str, labels: Mapping[str, str]) -> GpuSeries | None:
    metric = BY_NAME.get(name)
    if metric is None or not labels.get("uuid") or not labels.get("node") or "GPU" not in metric.scopes:
        return None
    digits = labels.get("gpu", "")
    index = int(digits) if digits.isdecimal() else 0
    accelerator = Accelerator(labels["uuid"], labels["uuid"], index, labels.get("model", ""))
    return GpuSeries(_on_node(labels["node"], accelerator), metric, 1.0, False, None, "")


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


def find_node(labels: Mapping[str, str]) -> str:
    """The node by the exporter's labels, else by those of Prometheus."""
    for name in ("Hostname", "hostname", "node"):
        if labels.get(name):
            return labels[name]
    # `instance` is HOST:PORT of the scrape target.
    return labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")


def find_owner(labels: Mapping[str, str]) -> Workload | None:
    """The holder of the accelerator by these labels; the exporter's own pod holds nothing."""
    plain = labels
    # With honor_labels off, Prometheus keeps the exporter's own pod under the plain names and renames the holder's.
    if labels.get("exported_pod"):
        renamed = {name: labels.get(f"exported_{name}", "") for name in ("pod", "namespace", "container")}
        plain = {**labels, **renamed}
    owner = dcgm.owner_of(plain)
    return None if owner is not None and _EXPORTER in (owner.name or "") else owner


def _as_wire(owner: Workload, labels: Mapping[str, str]) -> WireWorkload:
    tags = {**owner.tags, **{level: labels[level] for level in OWNER_LABELS if labels.get(level)}}
    wire = WireWorkload(owner.id, owner.kind, owner.user, owner.account, owner.name, tags)
    reason = check_workload(wire)
    if reason:
        raise BadSeries(f"its workload is refused: {reason}")
    return wire

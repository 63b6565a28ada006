"""What a series says: of which accelerator, for whom, and which metric. Each is looked at once and then known by bytes.

Names of dcgm-exporter (DCGM_FI_*) and our agent's (gpu_*) are taken, and counters of inference servers; every other
series is *foreign*: known, and passed over. Prometheus puts labels of its own beside the exporter's. Where the two
clash, the exporter's get the prefix `exported_`, and what is left under the plain name is the pod of the exporter
itself, which holds nothing.
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
from gpuledger_collector.ingest.remote_write.counted import CountedSeries, counted_series
from gpuledger_collector.ingest.remote_write.messages import ONE
from gpuledger_common import dcgm_page as dcgm
from gpuledger_common.catalogue import BY_NAME, HOT, METRICS
from gpuledger_common.metrics import Metric
from gpuledger_common.readings import Accelerator, Workload
from gpuledger_common.serving_counters import ENGINES
from gpuledger_common.wire import WireAccelerator, WireWorkload

MOST_LABELS = 100
MOST_NAME = 1024
MOST_VALUE = 4096
MOST_SERIES = 600_000
MOST_KEY_BYTES = 384 * 1024 * 1024
SERIES_BYTES = 200
"""What a series takes beside its key."""
FOREIGN, BAD, TAKEN, COUNTED = 0, 1, 2, 3
NONE = -1
METRIC_NUMBER = {metric.name: number for number, metric in enumerate(METRICS)}
HOT_BIT = {metric.name: bit for bit, metric in enumerate(HOT)}
LEVELS = ("org", "team", "project", "experiment", "run")
"""Labels that attribute: those that are named like a level of the owner tree."""
_EXPORTER = "dcgm-exporter"
_ROW = np.dtype(
    [
        ("kind", "i1"),
        ("face", "<i4"),
        ("metric", "<i2"),
        ("factor", "<f8"),
        ("percent", "?"),
        ("workload", "<i4"),
        ("pod", "<i4"),
    ]
)


class BadSeries(Exception):
    """A series that cannot be taken, with the reason."""


@dataclass(frozen=True, slots=True)
class Face:
    """An accelerator on its node, as the labels of a series show it."""

    node: str
    accelerator: WireAccelerator


@dataclass(frozen=True, slots=True)
class Meaning:
    """A series of ours. `metric` is None for a field that the catalogue does not have: it still shows its holder."""

    face: Face
    metric: Metric | None
    factor: float
    percent: bool
    """A whole percentage, or a ratio, under the same name; see `dcgm.PERCENT_UNDER_A_RATIO_NAME`."""
    workload: WireWorkload | None
    pod: str


@dataclass(slots=True)
class Book:
    """Every series met so far, by number: what it means, as columns. It only grows; a full one is replaced by a new."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why a bad series is bad, by number."""
    faces: list[Face] = field(default_factory=list)
    workloads: list[WireWorkload] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    counted: list[CountedSeries] = field(default_factory=list)
    key_bytes: int = 0
    _known: dict[Hashable, int] = field(default_factory=dict)
    _rows: list[tuple[object, ...]] = field(default_factory=list)
    _table: Array = field(default_factory=lambda: np.empty(0, dtype=_ROW))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_full(self) -> bool:
        """Whether another book should be begun."""
        return len(self.numbers) >= MOST_SERIES or self.key_bytes >= MOST_KEY_BYTES

    def table(self) -> Array:
        """Meaning of every series by number, as columns."""
        with self._lock:
            if len(self._table) != len(self._rows):
                self._table = np.concatenate(
                    [self._table, np.array(self._rows[len(self._table) :], dtype=_ROW)], dtype=_ROW
                )
            return self._table

    def enter(self, key: Hashable, size: int, labels: list[tuple[str, str]] | BadSeries) -> int:
        """The number of a series that is met for the first time; `key` is what it is known by from now on."""
        with self._lock:
            known = self.numbers.get(key)
            if known is not None:
                return known
            number = len(self._rows)
            try:
                if isinstance(labels, BadSeries):
                    raise labels
                self._rows.append(self._row(meaning_of(labels)))
            except BadSeries as bad:
                self._rows.append((BAD, NONE, NONE, 1.0, False, NONE, NONE))
                self.reasons[number] = str(bad)
            self.numbers[key] = number
            self.key_bytes += size + SERIES_BYTES
            return number

    def _row(self, meaning: Meaning | CountedSeries | None) -> tuple[object, ...]:
        if meaning is None:
            return FOREIGN, NONE, NONE, 1.0, False, NONE, NONE
        if isinstance(meaning, CountedSeries):
            return COUNTED, NONE, NONE, 1.0, False, self._place(self.counted, meaning, meaning), NONE
        return (
            TAKEN,
            self._place(self.faces, meaning.face, msgspec.json.encode(meaning.face)),
            NONE if meaning.metric is None else METRIC_NUMBER[meaning.metric.name],
            meaning.factor,
            meaning.percent,
            NONE
            if meaning.workload is None
            else self._place(self.workloads, meaning.workload, msgspec.json.encode(meaning.workload)),
            self._place(self.pods, meaning.pod, meaning.pod),
        )

    def _place(self, into: list[Any], thing: object, name: Hashable) -> int:
        place = self._known.get((id(into), name))
        if place is None:
            place = self._known[id(into), name] = len(into)
            into.append(thing)
        return place


def labels_of(parts: list[bytes]) -> list[tuple[str, str]]:
    """Names and values of the labels of a 1.0 series. Raises BadSeries for bytes that are no labels."""
    labels = []
    for part in parts:
        try:
            label = ONE["Label"].FromString(part)
        except Exception as error:  # protobuf's DecodeError, or text that is not UTF-8
            raise BadSeries("its labels cannot be read") from error
        labels.append((label.name, label.value))
    return labels


def checked(labels: list[tuple[str, str]]) -> dict[str, str]:
    """The labels by name. Raises BadSeries where the specification is broken: order, repetition, no name, size."""
    if len(labels) > MOST_LABELS:
        raise BadSeries(f"has {len(labels)} labels, {MOST_LABELS} are allowed")
    before = ""
    for name, value in labels:
        if name <= before:
            raise BadSeries("its labels are not sorted, repeat a name or have an empty one")
        if len(name) > MOST_NAME or len(value) > MOST_VALUE:
            raise BadSeries(f"its label {name[:40]!a} is longer than is allowed")
        before = name
    found = dict(labels)
    if not found.get("__name__"):
        raise BadSeries("has no name")
    return found


def meaning_of(labels: list[tuple[str, str]]) -> Meaning | CountedSeries | None:
    """What a series says; None for one that is none of ours. Raises BadSeries."""
    found = checked(labels)
    name = found["__name__"]
    if name.startswith("DCGM_FI_"):
        return _of_dcgm(name, found)
    if name.startswith("gpu_") and not found.get("mig_instance"):
        return _of_agent(name, found)
    return counted_series(name, found, owner_of(found)) if name in ENGINES else None


def _of_dcgm(name: str, labels: Mapping[str, str]) -> Meaning | None:
    device = labels.get("UUID") or labels.get("gpu_uuid") or labels.get("uuid") or ""
    if not device:
        return None
    accelerator = dcgm.accelerator_of(device, labels)
    metric = dcgm.metric_of(name)
    if metric is not None and accelerator.mig_instance is not None and "MIG" not in metric.scopes:
        metric = None
    owner = owner_of(labels)
    return Meaning(
        _face(node_of(labels), accelerator),
        metric,
        1.0 if metric is None else dcgm.factor_of(metric, name),
        name == dcgm.PERCENT_UNDER_A_RATIO_NAME,
        None if owner is None else _wire(owner, labels),
        "" if owner is None else owner.id,
    )


def _of_agent(name: str, labels: Mapping[str, str]) -> Meaning | None:
    metric = BY_NAME.get(name)
    if metric is None or not labels.get("uuid") or not labels.get("node") or "GPU" not in metric.scopes:
        return None
    digits = labels.get("gpu", "")
    index = int(digits) if digits.isdecimal() else 0
    accelerator = Accelerator(labels["uuid"], labels["uuid"], index, labels.get("model", ""))
    return Meaning(_face(labels["node"], accelerator), metric, 1.0, False, None, "")


def _face(node: str, accelerator: Accelerator) -> Face:
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
        raise BadSeries(f"its accelerator cannot be kept: {reason}")
    return Face(node, wire)


def node_of(labels: Mapping[str, str]) -> str:
    """The node: what the exporter calls it, else what Prometheus does."""
    for name in ("Hostname", "hostname", "node"):
        if labels.get(name):
            return labels[name]
    return labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")


def owner_of(labels: Mapping[str, str]) -> Workload | None:
    """Who holds the accelerator by these labels; the exporter's own pod is nobody."""
    ours = labels
    if labels.get("exported_pod"):
        renamed = {name: labels.get(f"exported_{name}", "") for name in ("pod", "namespace", "container")}
        ours = {**labels, **renamed}
    owner = dcgm.owner_of(ours)
    return None if owner is not None and _EXPORTER in (owner.name or "") else owner


def _wire(owner: Workload, labels: Mapping[str, str]) -> WireWorkload:
    tags = {**owner.tags, **{level: labels[level] for level in LEVELS if labels.get(level)}}
    wire = WireWorkload(owner.id, owner.kind, owner.user, owner.account, owner.name, tags)
    reason = check_workload(wire)
    if reason:
        raise BadSeries(f"its workload cannot be kept: {reason}")
    return wire

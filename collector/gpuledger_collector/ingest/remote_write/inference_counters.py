"""Counters of inference servers that come by remote write: find their workload and store their
readings.

A series belongs to the pod (or Slurm job) that its labels name. Where an agent knows that pod by
its UID, its counters go to that workload. Replicas of one Prometheus send the same counters, so
their own labels do not distinguish series.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.ingest.batches.attributes import Connection
from gpuledger_collector.ingest.batches.validate import check_workload, workload_key
from gpuledger_collector.storage.rows import select_value
from gpuledger_common import serving_counters
from gpuledger_common.instants import to_datetime
from gpuledger_common.readings import Workload
from gpuledger_common.wire import WireWorkload

SCRAPE_LABELS = frozenset(
    {
        "__name__",
        "__replica__",
        "cluster",
        "container",
        "endpoint",
        "exported_container",
        "exported_namespace",
        "exported_pod",
        "instance",
        "job",
        "namespace",
        "node",
        "pod",
        "prometheus",
        "prometheus_replica",
        "replica",
        "service",
    }
)
"""Labels that say where a series was scraped, not what it counts."""
CACHE_SECONDS = 60
"""How long the workload of a pod is cached: its agent may report its UID later than its counters
come.
"""
MAX_CACHED = 10_000


@dataclass(frozen=True, slots=True)
class InferenceSeries:
    """A counter of a workload, as the labels of a series name it."""

    kind: str
    external_id: str
    namespace: str
    pod: str
    source: str
    part: str
    engine: str
    counter: str


InferenceSample = tuple[InferenceSeries, int, int]
"""Series, value, instant."""


def inference_series(
    name: str, labels: Mapping[str, str], owner: Workload | None
) -> InferenceSeries | None:
    """The counter of a series; None where it is not one of ours, or where its labels name no
    workload.
    """
    meaning = serving_counters.meaning(name, labels)
    if meaning is None or owner is None:
        return None
    if check_workload(WireWorkload(owner.id, owner.kind, tags=dict(owner.tags))) is not None:
        return None
    part = serving_counters.part_of(
        {label: value for label, value in labels.items() if label not in SCRAPE_LABELS}
    )
    # The instance is the server's address; without it the pod is the best name for the process that
    # counts.
    source = labels.get("instance") or labels.get("pod") or owner.id
    return InferenceSeries(
        owner.kind,
        owner.id,
        owner.tags.get("namespace", ""),
        owner.tags.get("pod", ""),
        source[:1000],
        part[:2000],
        *meaning,
    )


@dataclass(slots=True)
class InferenceCounterStore:
    """Writes samples of counters; caches their workloads for a while."""

    _workloads: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def store(
        self, connection: Connection, samples: Sequence[InferenceSample], now_ms: int
    ) -> None:
        """Commit these samples. Raises psycopg.Error; then none was committed."""
        if not samples:
            return
        ids = self._workload_ids(connection, {series for series, _, _ in samples}, now_ms)
        rows = [
            (
                counters.Series(
                    ids[series.kind, series.external_id],
                    "remote_write",
                    series.source,
                    series.part,
                    series.counter,
                    series.engine,
                ),
                CounterReading(at_ms, value),
            )
            for series, value, at_ms in samples
        ]
        with connection.transaction():
            counters.store_readings(connection, rows)

    def _workload_ids(
        self, connection: Connection, all_series: Iterable[InferenceSeries], now_ms: int
    ) -> dict[tuple[str, str], int]:
        if len(self._workloads) > MAX_CACHED:
            self._workloads.clear()
        ids: dict[tuple[str, str], int] = {}
        # In order: new workloads are inserted, and writers that meet must insert them in the same
        # order.
        for series in sorted(all_series, key=lambda series: (series.kind, series.external_id)):
            key = series.kind, series.external_id
            cached = self._workloads.get(key)
            if cached is None or cached[1] <= now_ms:
                expires_ms = now_ms + CACHE_SECONDS * 1000
                cached = self._workloads[key] = _workload_id(connection, series, now_ms), expires_ms
            ids[key] = cached[0]
        return ids


def _workload_id(connection: Connection, series: InferenceSeries, now_ms: int) -> int:
    if series.kind == "kubernetes":
        workload_id: int | None = select_value(
            connection,
            "SELECT id FROM workload WHERE kind = 'kubernetes' AND tags ->> 'namespace' = %s AND"
            " tags ->> 'pod' = %s ORDER BY first_seen_at DESC, id DESC LIMIT 1",
            (series.namespace, series.pod),
        )
        if workload_id is not None:
            return workload_id
    # No agent knows this pod by its UID (yet): the name of the pod identifies it.
    key = workload_key(series.kind, "", series.external_id)
    tags = {"namespace": series.namespace, "pod": series.pod} if series.pod else {}
    connection.execute(
        "INSERT INTO workload (key, kind, external_id, name, tags, first_seen_at) VALUES (%s, %s,"
        " %s, %s, %s, %s) ON CONFLICT (key) DO NOTHING",
        (
            key,
            series.kind,
            series.external_id,
            series.pod or series.external_id,
            json.dumps(tags),
            to_datetime(now_ms),
        ),
    )
    workload_id = select_value(connection, "SELECT id FROM workload WHERE key = %s", (key,))
    if workload_id is None:  # retention removed the row that was in conflict
        raise RuntimeError(f"the workload {key} is gone")
    return workload_id

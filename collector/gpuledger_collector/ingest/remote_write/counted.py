"""Counters of inference servers that come by remote write: whose they are, and how they are kept.

A series belongs to the pod (or Slurm job) that its labels name. Where an agent knows that pod by its UID, its counters
go to that workload. Replicas of one Prometheus send the same counters: their own labels do not tell series apart.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.ingest.batches.attributes import Connection
from gpuledger_collector.ingest.batches.validate import check_workload, workload_key
from gpuledger_common import serving_counters as counted
from gpuledger_common.readings import Workload
from gpuledger_common.wire import WireWorkload

WHERE = frozenset(
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
KNOWN_SECONDS = 60
"""How long the workload of a pod is remembered: its agent may tell its UID later than its counters come."""
MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class CountedSeries:
    """A counter of a workload, as the labels of a series tell it."""

    kind: str
    external_id: str
    namespace: str
    pod: str
    source: str
    part: str
    engine: str
    counter: str


Sample = tuple[CountedSeries, int, int]
"""Series, value, instant."""


def counted_series(name: str, labels: Mapping[str, str], owner: Workload | None) -> CountedSeries | None:
    """What a series counts; None where it counts nothing of ours, or where its labels name no workload."""
    means = counted.meaning(name, labels)
    if means is None or owner is None:
        return None
    if check_workload(WireWorkload(owner.id, owner.kind, tags=dict(owner.tags))) is not None:
        return None
    part = counted.part_of({label: value for label, value in labels.items() if label not in WHERE})
    source = labels.get("instance") or labels.get("pod") or owner.id
    return CountedSeries(
        owner.kind,
        owner.id,
        owner.tags.get("namespace", ""),
        owner.tags.get("pod", ""),
        source[:1000],
        part[:2000],
        *means,
    )


@dataclass(slots=True)
class CounterStore:
    """Writes samples of counters; remembers for a while whose they are."""

    _known: dict[tuple[str, str], tuple[int, dt.datetime]] = field(default_factory=dict)

    def keep(self, connection: Connection, samples: Sequence[Sample], now: dt.datetime) -> None:
        """Commit these samples. Raises psycopg.Error; then none was."""
        if not samples:
            return
        ids = self._workloads(connection, {series for series, _, _ in samples}, now)
        rows = [
            (
                counters.Series(
                    ids[one.kind, one.external_id], "remote_write", one.source, one.part, one.counter, one.engine
                ),
                CounterReading(at_ms, value),
            )
            for one, value, at_ms in samples
        ]
        with connection.transaction():
            counters.keep(connection, rows)

    def _workloads(
        self, connection: Connection, series: Iterable[CountedSeries], now: dt.datetime
    ) -> dict[tuple[str, str], int]:
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        found: dict[tuple[str, str], int] = {}
        for one in sorted(series, key=lambda one: (one.kind, one.external_id)):
            key = one.kind, one.external_id
            known = self._known.get(key)
            if known is None or known[1] <= now:
                known = self._known[key] = _workload(connection, one, now), now + dt.timedelta(seconds=KNOWN_SECONDS)
            found[key] = known[0]
        return found


def _workload(connection: Connection, one: CountedSeries, now: dt.datetime) -> int:
    if one.kind == "kubernetes":
        row = connection.execute(
            "SELECT id FROM workload WHERE kind = 'kubernetes' AND tags ->> 'namespace' = %s AND tags ->> 'pod' = %s "
            "ORDER BY first_seen_at DESC, id DESC LIMIT 1",
            (one.namespace, one.pod),
        ).fetchone()
        if row is not None:
            return int(row[0])
    key = workload_key(one.kind, "", one.external_id)
    tags = {"namespace": one.namespace, "pod": one.pod} if one.pod else {}
    connection.execute(
        "INSERT INTO workload (key, kind, external_id, name, tags, first_seen_at) VALUES (%s, %s, %s, %s, %s, %s) "
        "ON CONFLICT (key) DO NOTHING",
        (key, one.kind, one.external_id, one.pod or one.external_id, json.dumps(tags), now),
    )
    row = connection.execute("SELECT id FROM workload WHERE key = %s", (key,)).fetchone()
    if row is None:  # a row that was there a moment ago
        raise RuntimeError(f"the workload {key} is gone")
    return int(row[0])

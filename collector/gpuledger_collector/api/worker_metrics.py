"""Metrics of several workers in one answer.

Each worker writes its values to files of its own, which whoever is scraped reads and adds up
(prometheus-client's mode for several processes). The files survive a worker that is killed, and its
successor goes on with them, so a sum never falls and nothing that was counted is lost. Memory and
CPU are of each worker, by its number.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gpuledger_collector.worker_group import WorkerGroup


def share_metrics(registry: CollectorRegistry, group: WorkerGroup) -> None:
    """Keep the values of all metrics of this process in the group's folder; `registry` answers with
    those of all.
    """
    folder = str(group.metrics_folder)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    values.ValueClass = values.MultiProcessValue(lambda: group.place.metrics_name)  # type: ignore[no-untyped-call]
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]


class WorkerProcesses(Collector):
    """Memory and CPU of each worker and of the jobs, and how many workers there are."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registration reads nothing."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The current values."""
        families: dict[str, Metric] = {}
        for name, pid in sorted(self._group.pids.items()):
            for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    merged.add_sample(sample.name, {"worker": name}, sample.value)
        running = GaugeMetricFamily(
            "gpuledger_workers", "Workers that serve.", value=self._group.serving_count
        )
        wanted = GaugeMetricFamily(
            "gpuledger_workers_wanted", "Workers that there should be.", self._group.place.workers
        )
        restarts = CounterMetricFamily(
            "gpuledger_worker_restarts_total",
            "Processes, workers or the jobs, started again after they ended unasked.",
            self._group.restarts,
        )
        return [*families.values(), running, wanted, restarts]

"""The collector's own metrics, in Prometheus' base units.

Where several workers are one collector, each answer has the metrics of all: counters and histograms
are sums, also over workers that have ended, and gauges those of the workers that live
(`worker_metrics`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from gpuledger_collector import __version__
from gpuledger_collector.api.worker_metrics import WorkerProcesses, share_metrics
from gpuledger_collector.worker_group import WorkerGroup

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
GROUP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
Mode = Literal["livemax", "livesum", "livemostrecent"]


class Metrics:
    """All metric families with their registry; one instance per process (or test)."""

    def __init__(self, group: WorkerGroup | None = None) -> None:
        """`group`: the workers that this process is one of."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one useless series per counter
        self.registry = CollectorRegistry()
        self._waiting: Callable[[], float] = lambda: 0.0
        self._own: CollectorRegistry | None = self.registry
        if group is None:
            ProcessCollector(registry=self.registry)
        else:
            share_metrics(self.registry, group)
            self.registry.register(WorkerProcesses(group))
            self._own = (
                None  # the registry reads what all workers have written, this one among them
            )
        self.build = self._gauge(
            "gpuledger_build_info", "Version of the collector, always 1.", ["version"]
        )
        self.build.labels(version=__version__).set(1)
        self.batches = self._counter(
            "gpuledger_ingest_batches_total", "Batches answered, by status.", ["status"]
        )
        for status in (
            "committed",
            "duplicate",
            "partial",
            "refused",
            "disconnected",
            "throttled",
            "unavailable",
        ):
            self.batches.labels(status=status)
        self.samples = self._counter("gpuledger_ingest_samples_total", "Samples committed.")
        self.usage_intervals = self._counter(
            "gpuledger_ingest_usage_intervals_total", "Usage intervals committed."
        )
        self.rejected = self._counter(
            "gpuledger_ingest_rejected_records_total", "Records refused in accepted batches."
        )
        self.bytes = self._counter(
            "gpuledger_ingest_body_bytes_total", "Bytes of batch bodies as received."
        )
        self.contested = self._counter(
            "gpuledger_ingest_contested_accelerators_total",
            "Accelerators of batches that another node reports as well.",
        )
        self.denied = self._counter(
            "gpuledger_ingest_denied_total", "Reports denied for their token.", ["status"]
        )
        for status in ("401", "403"):
            self.denied.labels(status=status)
        self.refusals = self._counter(
            "gpuledger_ingest_refusals_total",
            "Reports refused for a limit, by route and limit.",
            ["route", "reason"],
        )
        for route in ("batches", "queue", "inference", "write", "progress"):
            for reason in ("quota", "sender_bytes", "all_bytes", "writers", "tokens"):
                self.refusals.labels(route=route, reason=reason)
        self.remote_samples = self._counter(
            "gpuledger_remote_write_samples_total",
            "Samples of remote write, by outcome.",
            ["outcome"],
        )
        for outcome in ("written", "foreign", "refused"):
            self.remote_samples.labels(outcome=outcome)
        self.answer_seconds = self._histogram(
            "gpuledger_ingest_answer_seconds",
            "From the request's first byte to its answer.",
            SECONDS,
        )
        self.flush_seconds = self._histogram(
            "gpuledger_ingest_flush_seconds", "One transaction of batches.", SECONDS
        )
        self.flush_batches = self._histogram(
            "gpuledger_ingest_flush_batches", "Batches in one transaction.", GROUP
        )
        self.queue = self._gauge(
            "gpuledger_ingest_queue_batches", "Batches waiting for a writer.", mode="livesum"
        )
        self.database_up = self._gauge(
            "gpuledger_database_up",
            "1 when the last check of the database succeeded.",
            mode="livemostrecent",
        )
        self.job_runs = self._counter(
            "gpuledger_job_runs_total", "Runs of scheduled jobs.", ["job", "outcome"]
        )
        self.job_seconds = self._counter(
            "gpuledger_job_seconds_total", "Time spent in scheduled jobs.", ["job"]
        )
        self.live_streams = self._gauge(
            "gpuledger_live_streams", "Pages that watch what changes.", mode="livesum"
        )
        self.leader = self._gauge("gpuledger_jobs_leader", "1 while this replica runs the jobs.")

    def watch_queue(self, waiting: Callable[[], float]) -> None:
        """Read the length of the queue at each scrape; of a worker, whenever `note_queue` is
        called.
        """
        self._waiting = waiting
        if self._own is not None:
            self.queue.set_function(waiting)

    def note_queue(self) -> None:
        """Write the length of the queue for the other workers, which cannot ask this process."""
        self.queue.set(self._waiting())

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(name, text, labels or [], registry=self._own)

    def _gauge(
        self, name: str, text: str, labels: list[str] | None = None, mode: Mode = "livemax"
    ) -> Gauge:
        """A gauge; `mode`: how the values of several workers become one."""
        return Gauge(name, text, labels or [], registry=self._own, multiprocess_mode=mode)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, registry=self._own, buckets=buckets)

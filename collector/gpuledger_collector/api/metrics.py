"""The collector's own metrics, in Prometheus' base units."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from gpuledger_collector import __version__

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
GROUP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """All metric families with their registry; one instance per process (or test)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one useless series per counter
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.build = self._gauge("gpuledger_build_info", "Version of the collector, always 1.", ["version"])
        self.build.labels(version=__version__).set(1)
        self.batches = self._counter("gpuledger_ingest_batches_total", "Batches answered, by status.", ["status"])
        for status in ("committed", "duplicate", "partial", "refused", "throttled", "unavailable"):
            self.batches.labels(status=status)
        self.samples = self._counter("gpuledger_ingest_samples_total", "Samples committed.")
        self.usage_intervals = self._counter("gpuledger_ingest_usage_intervals_total", "Usage intervals committed.")
        self.rejected = self._counter("gpuledger_ingest_rejected_records_total", "Records refused in accepted batches.")
        self.bytes = self._counter("gpuledger_ingest_body_bytes_total", "Bytes of batch bodies as received.")
        self.contested = self._counter(
            "gpuledger_ingest_contested_accelerators_total",
            "Accelerators of batches that another node reports as well.",
        )
        self.denied = self._counter("gpuledger_ingest_denied_total", "Reports denied for their token.", ["status"])
        for status in ("401", "403"):
            self.denied.labels(status=status)
        self.remote_samples = self._counter(
            "gpuledger_remote_write_samples_total", "Samples of remote write, by outcome.", ["outcome"]
        )
        for outcome in ("written", "foreign", "refused"):
            self.remote_samples.labels(outcome=outcome)
        self.answer_seconds = self._histogram(
            "gpuledger_ingest_answer_seconds", "From the request's first byte to its answer.", SECONDS
        )
        self.flush_seconds = self._histogram("gpuledger_ingest_flush_seconds", "One transaction of batches.", SECONDS)
        self.flush_batches = self._histogram("gpuledger_ingest_flush_batches", "Batches in one transaction.", GROUP)
        self.queue = self._gauge("gpuledger_ingest_queue_batches", "Batches waiting for a writer.")
        self.database_up = self._gauge("gpuledger_database_up", "1 when the last check of the database succeeded.")
        self.job_runs = self._counter("gpuledger_job_runs_total", "Runs of scheduled jobs.", ["job", "outcome"])
        self.job_seconds = self._counter("gpuledger_job_seconds_total", "Time spent in scheduled jobs.", ["job"])
        self.leader = self._gauge("gpuledger_jobs_leader", "1 while this replica runs the jobs.")

    def watch_queue(self, waiting: Callable[[], float]) -> None:
        """Read the length of the queue at each scrape."""
        self.queue.set_function(waiting)

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(name, text, labels or [], registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str] | None = None) -> Gauge:
        return Gauge(name, text, labels or [], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, registry=self.registry, buckets=buckets)

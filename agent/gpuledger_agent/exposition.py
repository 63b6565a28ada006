"""/metrics: the agent's latest readings, holders and own counters in Prometheus' text format."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gpuledger_agent import __version__
from gpuledger_agent.sampler import Latest, Sampler
from gpuledger_agent.spool import Spool
from gpuledger_common.catalog import BY_NAME
from gpuledger_common.exporter_names import Vintage, families, render
from gpuledger_common.readings import Accelerator, Holder, Sample

LABELS = ("uuid", "gpu", "model", "node", "mig_instance")
OWNER_LABELS = ("uuid", "node", "workload", "kind", "user", "account", "team", "project")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Always the same, as dcgm-exporter's: OpenMetrics forbids the names of its counters."""
HEALTH = {"ok": 0, "degraded": 1, "failed": 2, "unknown": 3}
MAX_CONNECTIONS = 16
"""Scrapes at once; further ones are closed.

Each takes a thread and a descriptor, which the agent needs for itself.
"""
DEADLINE_S = 30.0
"""For a request and its answer as a whole, however its bytes arrive."""


def _read(latest: Latest) -> list[tuple[Accelerator, Sample, Sequence[Holder]]]:
    """The accelerators that have a reading, with it and their holders."""
    return [
        (accelerator, latest.samples[accelerator.uuid], latest.holders.get(accelerator.uuid, ()))
        for accelerator in latest.accelerators
        if accelerator.uuid in latest.samples
    ]


class AgentCollector(Collector):
    """Reads the latest samples and the spool's counters at each scrape; never a GPU."""

    def __init__(
        self, sampler: Sampler, spool: Spool, dcgm: Vintage = "old", *, hardware: bool = False
    ) -> None:
        self._node, self._sampler, self._spool = sampler.node, sampler, spool
        self._dcgm, self._hardware = dcgm, hardware

    def collect(self) -> Iterable[Metric]:
        """Every family once, with all its series together."""
        latest = self._sampler.latest
        yield from self._gpu(latest)
        yield from self._owners(latest)
        if self._hardware:
            from gpuledger_agent.hardware_names import hardware_families

            yield from hardware_families(self._node, _read(latest))
        yield from self._agent()

    def count_failure(self, error: Exception) -> None:
        """Count a page that could not be built."""
        self._sampler.exceptions.record("metrics", error)

    def dcgm_text(self) -> str:
        """The same readings under dcgm-exporter's names; empty when the setting is off."""
        if self._dcgm == "off":
            return ""
        latest = self._sampler.latest
        return render(families(self._node, latest.driver, _read(latest), self._dcgm))

    def _labels(self, accelerator: Accelerator) -> list[str]:
        return [
            accelerator.uuid,
            str(accelerator.index),
            accelerator.model,
            self._node,
            accelerator.mig_instance or "",
        ]

    def _gpu(self, latest: Latest) -> Iterable[Metric]:
        health = GaugeMetricFamily(
            "gpu_health_status", "0 ok, 1 degraded, 2 failed, 3 unknown", labels=LABELS
        )
        cause = GaugeMetricFamily(
            "gpu_health_cause", "1 for the cause of a fault", labels=(*LABELS, "status", "cause")
        )
        families: dict[str, Any] = {}
        for accelerator in latest.accelerators:
            sample = latest.samples.get(accelerator.uuid)
            if sample is None:
                continue
            labels = self._labels(accelerator)
            health.add_metric(labels, HEALTH[sample.health.status])
            if sample.health.cause:
                cause.add_metric([*labels, sample.health.status, sample.health.cause], 1)
            for name, value in sample.values.items():
                if name in BY_NAME:
                    family = families.setdefault(name, _catalog_family(name, LABELS))
                    family.add_metric(labels, float(value))
            # Metrics with several series: their own labels come after the accelerator's.
            for name, series in sample.series.items():
                family = families.setdefault(name, _catalog_family(name))
                sample_name = f"{family.name}_total" if family.type == "counter" else name
                for entry in series:
                    all_labels = dict(zip(LABELS, labels, strict=True)) | dict(entry.labels)
                    family.add_sample(sample_name, all_labels, entry.value)
        yield health
        yield cause
        yield from families.values()

    def _owners(self, latest: Latest) -> Iterable[Metric]:
        held = GaugeMetricFamily(
            "gpu_held_ratio",
            "Part of the accelerator that a workload holds; absent: no holder",
            labels=OWNER_LABELS,
        )
        for uuid, holders in latest.holders.items():
            total_weight = sum(holder.weight for holder in holders) or 1
            for holder in holders:
                workload, tags = holder.workload, holder.workload.tags
                owner = [
                    workload.user or "",
                    workload.account or "",
                    tags.get("team", ""),
                    tags.get("project", ""),
                ]
                held.add_metric(
                    [uuid, self._node, workload.id, workload.kind, *owner],
                    holder.weight / total_weight,
                )
        yield held
        for name, text, disagreement in (
            (
                "gpu_allocated_without_process",
                "1: allocated, without a process on it",
                "allocated without a process",
            ),
            (
                "gpu_used_without_allocation",
                "1: used by a workload that does not hold it",
                "used without an allocation",
            ),
        ):
            family = GaugeMetricFamily(name, text, labels=("uuid", "node"))
            for accelerator in latest.accelerators:
                differs = latest.disagreement(accelerator.uuid) == disagreement
                family.add_metric([accelerator.uuid, self._node], int(differs))
            yield family

    def _agent(self) -> Iterable[Metric]:
        counts = self._spool.counts()
        yield _gauge(
            "gpuledger_agent_info",
            "The running agent",
            1,
            {"version": __version__, "node": self._node},
        )
        yield _counter("gpuledger_agent_ticks_total", "Rounds of sampling", self._sampler.ticks)
        faults = CounterMetricFamily(
            "gpuledger_agent_faults_total", "Exceptions survived, by place", labels=("place",)
        )
        for place, count in self._sampler.exceptions.counts.items():
            faults.add_metric((place,), count)
        yield faults
        yield _counter(
            "gpuledger_agent_clock_step_discarded_seconds_total",
            "Accelerator time not counted: the clock was set back",
            self._sampler.meter.discarded_after_clock_step_ms / 1000,
        )
        for name in ("produced", "acked", "dropped", "dead"):
            text = f"Batches {name} in this spool's epoch"
            yield _counter(f"gpuledger_agent_batches_{name}_total", text, getattr(counts, name))
        yield _gauge(
            "gpuledger_agent_batches_pending", "Batches that wait in the spool", counts.pending
        )
        yield _gauge(
            "gpuledger_agent_conservation_violation",
            "1 when a batch is unaccounted for",
            int(not counts.is_conserved),
        )
        lost = self._spool.lost_counts()
        records = CounterMetricFamily(
            "gpuledger_agent_records_lost_total",
            "Records lost for lack of space, and how",
            labels=("record", "how"),
        )
        for record, how, value in (
            ("usage_interval", "dropped", lost.usage_intervals_dropped),
            ("reading", "dropped", lost.readings_dropped),
            ("reading", "downsampled", lost.readings_downsampled),
            ("reading", "memory full", self._sampler.readings_lost),
        ):
            records.add_metric((record, how), value)
        yield records
        yield _gauge(
            "gpuledger_agent_spool_fill_ratio", "How full the spool is", self._spool.fill()
        )
        oldest = self._spool.oldest_ms()
        age = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
        yield _gauge(
            "gpuledger_agent_oldest_undelivered_seconds", "Age of the oldest waiting batch", age
        )
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield _counter(
            "gpuledger_agent_cpu_seconds_total",
            "CPU time of the agent",
            used.ru_utime + used.ru_stime,
        )
        yield _gauge(
            "gpuledger_agent_resident_memory_bytes",
            "Resident memory of the agent",
            resident_bytes(),
        )


def _catalog_family(name: str, labels: Sequence[str] | None = None) -> Any:
    metric = BY_NAME[name]
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(name, f"{metric.nvml} ({metric.unit})", labels=labels)


def _gauge(
    name: str, text: str, value: float, labels: dict[str, str] | None = None
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=tuple(labels or ()))
    family.add_metric(tuple((labels or {}).values()), value)
    return family


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def resident_bytes() -> int:
    """Resident memory of this process (proc(5), statm field 2)."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a path object costs more than the read
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves the page under / and /metrics."""

    page: Callable[[], bytes]

    def do_GET(self) -> None:
        """The page, compressed when the client accepts gzip."""
        is_page = self.path.partition("?")[0] in {"/", "/metrics"}
        try:
            body = type(self).page() if is_page else b"the metrics are at /metrics\n"
        except Exception:
            self.send_error(500, "the page could not be built; see the agent's log")
            return
        self.send_response(200 if is_page else 404)
        self.send_header("Content-Type", CONTENT_TYPE if is_page else "text/plain; charset=utf-8")
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Scrapes are not logged."""


class _Server(http.server.ThreadingHTTPServer):
    """Answers a bounded number of requests at once, each within a deadline; anybody on the node may
    connect.
    """

    request_queue_size = MAX_CONNECTIONS
    failed: Callable[[Exception], None]
    clock = staticmethod(time.monotonic)

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._began: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_admitted = len(self._began) < MAX_CONNECTIONS
            if is_admitted:
                self._began[request] = self.clock()
        if is_admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off what is past its deadline; called twice a second, and after each connection."""
        since = self.clock() - DEADLINE_S
        with self._lock:
            overdue = [request for request, began in self._began.items() if began < since]
        for request in overdue:
            # Its thread sees the end of the connection, and closes it.
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        error = sys.exception()
        # OSError: the client went away.
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.failed(error)


def serve(listen: str, collector: AgentCollector) -> Callable[[], None]:
    """Serve /metrics on ADDRESS:PORT in a thread; the returned call stops it.

    Raises OSError for a port in use.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    address, _, port = listen.rpartition(":")
    host = address.strip("[]") or "127.0.0.1"

    class Server(_Server):
        address_family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        failed = staticmethod(collector.count_failure)

    class Handler(_Handler):
        @staticmethod
        def page() -> bytes:
            try:
                return generate_latest(registry) + collector.dcgm_text().encode()
            except Exception as error:
                # Before the answer, so that whoever saw it fail sees it counted.
                collector.count_failure(error)
                raise

    server = Server((host, int(port)), Handler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return end

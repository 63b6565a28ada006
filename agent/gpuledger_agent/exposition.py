"""/metrics: what the agent knows now, in Prometheus' text format, made from the catalogue by prometheus-client."""

from __future__ import annotations

import gzip
import http.server
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gpuledger_agent import __version__
from gpuledger_agent.sampler import Latest, Sampler
from gpuledger_agent.spool import Spool
from gpuledger_common.catalogue import BY_NAME
from gpuledger_common.exporter_names import Vintage, families, text_of
from gpuledger_common.readings import Accelerator, Sample

LABELS = ("uuid", "gpu", "model", "node", "mig_instance")
OWNER_LABELS = ("uuid", "node", "workload", "kind", "user", "account", "team", "project")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Always this one, as dcgm-exporter does: OpenMetrics forbids the names of its counters."""
HEALTH = {"ok": 0, "degraded": 1, "failed": 2, "unknown": 3}


class AgentCollector(Collector):
    """Reads the newest samples and the spool's counters at each scrape; never touches a GPU."""

    def __init__(self, sampler: Sampler, spool: Spool, dcgm: Vintage = "old") -> None:
        self._node, self._sampler, self._spool, self._dcgm = sampler.node, sampler, spool, dcgm

    def collect(self) -> Iterable[Metric]:
        """Every family once, with all its series together."""
        latest = self._sampler.latest
        yield from self._gpu(latest)
        yield from self._owners(latest)
        yield from self._agent()

    def failed(self, error: Exception) -> None:
        """A page that could not be made: counted and said once, and the next is tried as if nothing had been."""
        self._sampler.faults.note("metrics", error)

    def dcgm_text(self) -> str:
        """The same readings again in dcgm-exporter's words; empty when they are not wanted."""
        if self._dcgm == "off":
            return ""
        latest = self._sampler.latest
        seen = [
            (accelerator, latest.samples[accelerator.uuid], latest.holders.get(accelerator.uuid, ()))
            for accelerator in latest.accelerators
            if accelerator.uuid in latest.samples
        ]
        return text_of(families(self._node, latest.driver, seen, self._dcgm))

    def _labels(self, accelerator: Accelerator) -> list[str]:
        return [accelerator.uuid, str(accelerator.index), accelerator.model, self._node, accelerator.mig_instance or ""]

    def _gpu(self, latest: Latest) -> Iterable[Metric]:
        health = GaugeMetricFamily("gpu_health_status", "0 ok, 1 degraded, 2 failed, 3 unknown", labels=LABELS)
        cause = GaugeMetricFamily("gpu_health_cause", "Why it is not well: 1", labels=(*LABELS, "status", "cause"))
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
                entry = BY_NAME.get(name)
                if entry is None:
                    continue
                family = families.get(name)
                if family is None:
                    kind = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
                    family = families[name] = kind(name, f"{entry.nvml} ({entry.unit})", labels=LABELS)
                family.add_metric(labels, float(value))
            self._series(accelerator, sample, families)
        yield health
        yield cause
        yield from families.values()

    def _series(self, accelerator: Accelerator, sample: Sample, families: dict[str, Any]) -> None:
        """Metrics that have several series on one accelerator: its own labels come after the accelerator's."""
        whose = dict(zip(LABELS, self._labels(accelerator), strict=True))
        for name, several in sample.series.items():
            entry = BY_NAME[name]
            counts = entry.kind == "counter"
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if counts else GaugeMetricFamily
                family = families[name] = kind(name, f"{entry.nvml} ({entry.unit})")
            for one in several:
                family.add_sample(family.name + "_total" if counts else name, whose | dict(one.labels), one.value)

    def _owners(self, latest: Latest) -> Iterable[Metric]:
        held = GaugeMetricFamily(
            "gpu_held_ratio", "Part of the accelerator that a workload holds; absent: nobody does", labels=OWNER_LABELS
        )
        for uuid, holders in latest.holders.items():
            whole = sum(holder.weight for holder in holders) or 1
            for holder in holders:
                workload = holder.workload
                held.add_metric(
                    [
                        uuid,
                        self._node,
                        workload.id,
                        workload.kind,
                        workload.user or "",
                        workload.account or "",
                        workload.tags.get("team", ""),
                        workload.tags.get("project", ""),
                    ],
                    holder.weight / whole,
                )
        yield held
        empty = GaugeMetricFamily(
            "gpu_allocated_without_process", "1: held by allocation, and no process on it", labels=("uuid", "node")
        )
        stranger = GaugeMetricFamily(
            "gpu_used_without_allocation", "1: a process on it whose workload was not given it", labels=("uuid", "node")
        )
        for accelerator in latest.accelerators:
            verdict = latest.disagreement(accelerator.uuid)
            empty.add_metric([accelerator.uuid, self._node], int(verdict == "allocated without a process"))
            stranger.add_metric([accelerator.uuid, self._node], int(verdict == "used without an allocation"))
        yield empty
        yield stranger

    def _agent(self) -> Iterable[Metric]:
        counts = self._spool.counts()
        yield _gauge("gpuledger_agent_info", "The running agent", 1, {"version": __version__, "node": self._node})
        yield _counter("gpuledger_agent_ticks_total", "Rounds of sampling", self._sampler.ticks)
        faults = CounterMetricFamily("gpuledger_agent_faults_total", "Exceptions survived, by place", labels=("place",))
        for place, count in self._sampler.faults.counts.items():
            faults.add_metric((place,), count)
        yield faults
        yield _counter(
            "gpuledger_agent_clock_step_discarded_seconds_total",
            "Accelerator time not counted: the clock was set back",
            self._sampler.meter.discarded_after_clock_step_ms / 1000,
        )
        for name, value in (
            ("produced", counts.produced),
            ("acked", counts.acked),
            ("dropped", counts.dropped),
            ("dead", counts.dead),
        ):
            yield _counter(f"gpuledger_agent_batches_{name}_total", f"Batches {name} in this spool's epoch", value)
        yield _gauge("gpuledger_agent_batches_pending", "Batches that wait in the spool", counts.pending)
        yield _gauge(
            "gpuledger_agent_conservation_violation", "1 when a batch is unaccounted for", 0 if counts.conserved else 1
        )
        lost = self._spool.lost()
        records = CounterMetricFamily(
            "gpuledger_agent_records_lost_total", "Records lost for want of room, and how", labels=("record", "how")
        )
        for record, how, value in (
            ("usage_interval", "dropped", lost.usage_intervals_dropped),
            ("reading", "dropped", lost.readings_dropped),
            ("reading", "thinned", lost.readings_thinned),
            ("reading", "memory full", self._sampler.readings_lost),
        ):
            records.add_metric((record, how), value)
        yield records
        yield _gauge("gpuledger_agent_spool_fill_ratio", "How full the spool is", self._spool.fill())
        oldest = self._spool.oldest_ms()
        age = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
        yield _gauge("gpuledger_agent_oldest_undelivered_seconds", "Age of the oldest waiting batch", age)
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield _counter("gpuledger_agent_cpu_seconds_total", "CPU time of the agent", used.ru_utime + used.ru_stime)
        yield _gauge("gpuledger_agent_resident_memory_bytes", "Resident memory of the agent", resident_bytes())


def _gauge(name: str, text: str, value: float, labels: dict[str, str] | None = None) -> GaugeMetricFamily:
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
    """Answers GET / and /metrics with the page."""

    page: Callable[[], bytes]
    timeout = 30

    def do_GET(self) -> None:
        """The page, packed when the asker takes gzip."""
        found = self.path.partition("?")[0] in {"/", "/metrics"}
        try:
            body = type(self).page() if found else b"the metrics are at /metrics\n"
        except Exception:
            self.send_error(500, "the page could not be made; the agent's log says why")
            raise
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """A scrape is nothing to tell of."""


def serve(listen: str, collector: AgentCollector) -> Callable[[], None]:
    """Serves /metrics on ADDRESS:PORT in a thread; the returned call ends it. Raises OSError when the port is taken."""
    registry = CollectorRegistry()
    registry.register(collector)
    address, _, port = listen.rpartition(":")
    host = address.strip("[]") or "127.0.0.1"

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]

        def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
            error = sys.exception()
            if isinstance(error, Exception) and not isinstance(error, OSError):  # an asker that left is nothing to tell
                collector.failed(error)

    class Handler(_Handler):
        @staticmethod
        def page() -> bytes:
            return generate_latest(registry) + collector.dcgm_text().encode()

    server = Server((host, int(port)), Handler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return end

"""/metrics: the agent's latest readings, holders and own counters in Prometheus' text format."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import socketserver
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuledger_agent import __version__
from gpuledger_agent.sampler import Latest, Sampler
from gpuledger_agent.spool import Spool
from gpuledger_common.catalog import BY_NAME
from gpuledger_common.exporter_names import Vintage, families
from gpuledger_common.exposition_text import Family, Kind, label_text, number, render
from gpuledger_common.http_exchange import plain_name
from gpuledger_common.readings import Accelerator, Holder, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Always the same, as dcgm-exporter's: OpenMetrics forbids the names of its counters."""
HEALTH = {"ok": 0, "degraded": 1, "failed": 2, "unknown": 3}
MAX_CONNECTIONS = 16
"""Scrapes at once; further ones are closed.

Each takes a thread and a descriptor, which the agent needs for itself.
"""
MAX_HEAD_BYTES = 64 * 1024
"""Of a request: its line and its headers."""
POLL_S = 2.0
"""How often requests past their deadline are looked for."""
DEADLINE_S = 30.0
"""For a request and its answer as a whole, however its bytes arrive."""


def _read(latest: Latest) -> list[tuple[Accelerator, Sample, Sequence[Holder]]]:
    """The accelerators that have a reading, with it and their holders."""
    return [
        (accelerator, latest.samples[accelerator.uuid], latest.holders.get(accelerator.uuid, ()))
        for accelerator in latest.accelerators
        if accelerator.uuid in latest.samples
    ]


class MetricsPage:
    """Reads the latest samples and the spool's counters at each scrape; never a GPU."""

    def __init__(
        self, sampler: Sampler, spool: Spool, dcgm: Vintage = "old", *, hardware: bool = False
    ) -> None:
        self._node, self._sampler, self._spool = sampler.node, sampler, spool
        self._dcgm, self._hardware = dcgm, hardware

    def text(self) -> str:
        """The page: every family once, with all its series together, then dcgm-exporter's names."""
        latest = self._sampler.latest
        text = render(self._families(latest))
        if self._dcgm != "off":
            text += render(families(self._node, latest.driver, _read(latest), self._dcgm))
        return text

    def _families(self, latest: Latest) -> Iterable[Family]:
        yield from self._gpu(latest)
        yield from self._owners(latest)
        if self._hardware:
            from gpuledger_agent.hardware_names import hardware_families

            yield from hardware_families(self._node, _read(latest))
        yield from self._agent()

    def count_failure(self, error: Exception) -> None:
        """Count a page that could not be built."""
        self._sampler.exceptions.record("metrics", error)

    def _labels(self, accelerator: Accelerator) -> dict[str, str]:
        return {
            "uuid": accelerator.uuid,
            "gpu": str(accelerator.index),
            "model": accelerator.model,
            "node": self._node,
            "mig_instance": accelerator.mig_instance or "",
        }

    def _gpu(self, latest: Latest) -> Iterable[Family]:
        health = Family("gpu_health_status", "0 ok, 1 degraded, 2 failed, 3 unknown", "gauge")
        cause = Family("gpu_health_cause", "1 for the cause of a fault", "gauge")
        families: dict[str, Family] = {}
        for accelerator, sample, _ in _read(latest):
            labels = self._labels(accelerator)
            text = label_text(labels)
            health.add(number(HEALTH[sample.health.status]), text)
            if sample.health.cause:
                of_fault = {"status": sample.health.status, "cause": sample.health.cause}
                cause.add(number(1), label_text(labels | of_fault))
            for name, value in sample.values.items():
                if name in BY_NAME:
                    _family_of(name, families).add(number(value), text)
            # Metrics with several series: their own labels come after the accelerator's.
            for name, series in sample.series.items():
                family = _family_of(name, families)
                for entry in series:
                    family.add(number(entry.value), label_text(labels | dict(entry.labels)))
        yield health
        yield cause
        yield from families.values()

    def _owners(self, latest: Latest) -> Iterable[Family]:
        held = Family(
            "gpu_held_ratio",
            "Part of the accelerator that a workload holds; absent: no holder",
            "gauge",
        )
        for uuid, holders in latest.holders.items():
            total_weight = sum(holder.weight for holder in holders) or 1
            for holder in holders:
                workload, tags = holder.workload, holder.workload.tags
                labels = {
                    "uuid": uuid,
                    "node": self._node,
                    "workload": workload.id,
                    "kind": workload.kind,
                    "user": workload.user or "",
                    "account": workload.account or "",
                    "team": tags.get("team", ""),
                    "project": tags.get("project", ""),
                }
                held.add(number(holder.weight / total_weight), label_text(labels))
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
            family = Family(name, text, "gauge")
            for accelerator in latest.accelerators:
                differs = latest.disagreement(accelerator.uuid) == disagreement
                labels = {"uuid": accelerator.uuid, "node": self._node}
                family.add(number(differs), label_text(labels))
            yield family

    def _agent(self) -> Iterable[Family]:
        counts = self._spool.counts()
        yield _gauge(
            "gpuledger_agent_info",
            "The running agent",
            1,
            {"version": __version__, "node": self._node},
        )
        yield _counter("gpuledger_agent_ticks_total", "Rounds of sampling", self._sampler.ticks)
        faults = Family("gpuledger_agent_faults_total", "Exceptions survived, by place", "counter")
        for place, count in self._sampler.exceptions.counts.items():
            faults.add(number(count), label_text({"place": place}))
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
        records = Family(
            "gpuledger_agent_records_lost_total",
            "Records lost for lack of space, and how",
            "counter",
        )
        for record, how, value in (
            ("usage_interval", "dropped", lost.usage_intervals_dropped),
            ("reading", "dropped", lost.readings_dropped),
            ("reading", "downsampled", lost.readings_downsampled),
            ("reading", "memory full", self._sampler.readings_lost),
        ):
            records.add(number(value), label_text({"record": record, "how": how}))
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


def _family_of(name: str, families: dict[str, Family]) -> Family:
    """The family of a metric of the catalog, a new one where there is none yet."""
    family = families.get(name)
    if family is None:
        metric = BY_NAME[name]
        kind: Kind = "counter" if metric.kind == "counter" else "gauge"
        family = families[name] = Family(name, f"{metric.nvml} ({metric.unit})", kind)
    return family


def _gauge(name: str, text: str, value: float, labels: dict[str, str] | None = None) -> Family:
    family = Family(name, text, "gauge")
    family.add(number(value), label_text(labels or {}))
    return family


def _counter(name: str, text: str, value: float) -> Family:
    family = Family(name, text, "counter")
    family.add(number(value))
    return family


def resident_bytes() -> int:
    """Resident memory of this process (proc(5), statm field 2)."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a path object costs more than the read
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Handler(socketserver.StreamRequestHandler):
    """Answers one request of HTTP/1.0 or 1.1 with the page, under / and /metrics, and closes."""

    page: Callable[[], bytes]

    def handle(self) -> None:
        """The page, compressed when the client accepts gzip."""
        head = self._read_head()
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method != "GET":
            self._answer("501 Not Implemented", b"the metrics are at GET /metrics\n")
        elif path not in {"/", "/metrics"}:
            self._answer("404 Not Found", b"the metrics are at /metrics\n")
        else:
            try:
                body = type(self).page()
            except Exception:
                self._answer(
                    "500 Internal Server Error",
                    b"the page could not be built; see the agent's log\n",
                )
                return
            accepted = re.search(r"\naccept-encoding:(.*)", head, re.IGNORECASE)
            gzip = accepted is not None and "gzip" in accepted[1].lower()
            self._answer("200 OK", body, CONTENT_TYPE, gzip=gzip)

    def _read_head(self) -> str:
        """The request's line and headers; empty where they are no request."""
        head = bytearray()
        while len(head) <= MAX_HEAD_BYTES:
            line = self.rfile.readline(MAX_HEAD_BYTES + 1 - len(head))
            head += line
            if line in {b"\r\n", b"\n", b""}:
                return head.decode("latin-1")
        return ""

    def _answer(
        self,
        status: str,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        *,
        gzip: bool = False,
    ) -> None:
        headers = [f"HTTP/1.0 {status}", f"Content-Type: {content_type}"]
        if gzip:
            body = zlib.compress(body, 1, wbits=zlib.MAX_WBITS | 16)
            headers.append("Content-Encoding: gzip")
        headers.append(f"Content-Length: {len(body)}")
        self.wfile.write("\r\n".join([*headers, "", ""]).encode() + body)


class _Server(socketserver.ThreadingTCPServer):
    """Answers a bounded number of requests at once, each within a deadline; anybody on the node may
    connect.
    """

    allow_reuse_address = True
    daemon_threads = True
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
        """Cut off what is past its deadline; called every POLL_S, and after each connection."""
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


def serve(listen: str, metrics: MetricsPage) -> Callable[[], None]:
    """Serve /metrics on ADDRESS:PORT in a thread; the returned call stops it.

    Raises OSError for a port in use.
    """
    address, _, port = listen.rpartition(":")
    host = address.strip("[]") or "127.0.0.1"
    family = socket.getaddrinfo(plain_name(host), int(port), type=socket.SOCK_STREAM)[0][0]

    class Server(_Server):
        address_family = family
        failed = staticmethod(metrics.count_failure)

    class Handler(_Handler):
        @staticmethod
        def page() -> bytes:
            try:
                return metrics.text().encode()
            except Exception as error:
                # Before the answer, so that whoever saw it fail sees it counted.
                metrics.count_failure(error)
                raise

    server = Server((host, int(port)), Handler)
    thread = threading.Thread(
        target=server.serve_forever, args=(POLL_S,), name="metrics", daemon=True
    )
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return end

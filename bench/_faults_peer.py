"""The same broken network between Prometheus' agent mode and VictoriaMetrics, beside ours, for the
same time each.

An exporter shows the number of the scrape as the value of each of its series: so what was scraped
is known, what is missing later was lost, and what is there twice was stored twice. Prometheus is
set to small requests, quick retries and to retry on 429, which it does not by default.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fakes.disasters import FaultyFleet
from fakes.ports import free_port
from fakes.proxy import ProxyProcess

SERIES, TARGETS, SCRAPE_MS = 40, 4, 250
SCENARIOS = {
    "broken network": (),
    "and the receiver killed": ("receiver",),
    "and the sender killed while the receiver is away": ("receiver", "sender"),
}
EVERY_SECONDS = 12.0
"""Between two kills."""
AWAY_SECONDS = 2.0


@dataclass
class Exporter:
    """Targets whose series all show how often the target was scraped."""

    served: Counter = field(default_factory=Counter)
    ended: bool = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[int]:
        exporter = self

        class Page(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                target = self.path.rsplit("/", 1)[1]
                number = exporter.served[target] + 1
                lines = [f'bench_value{{series="{series}"}} {number}' for series in range(SERIES)]
                body = ("# TYPE bench_value gauge\n" + "\n".join(lines) + "\n").encode()
                self.send_response(503 if exporter.ended else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                exporter.served[target] += not exporter.ended

            def log_message(self, *_: object) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()


class Process:
    """A program that is killed and started again on the same folder and port."""

    def __init__(self, command: list[str], port: int) -> None:
        self.command, self.port = command, port
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait_ready(self, path: str) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if ask(self.port, path)[0] == 200:
                    return
            time.sleep(0.05)
        raise SystemExit(f"{self.command[0]} does not answer")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def ask(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def configuration(exporter: int, proxy: int) -> str:
    jobs = "".join(
        f"- job_name: target-{target}\n  metrics_path: /metrics/{target}\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]\n"
        for target in range(TARGETS)
    )
    return (
        f"global: {{scrape_interval: {SCRAPE_MS}ms, scrape_timeout:"
        f" {SCRAPE_MS}ms}}\nscrape_configs:\n{jobs}remote_write:\n- url:"
        f" http://127.0.0.1:{proxy}/api/v1/write\n  remote_timeout: 1500ms\n  queue_config:"
        " {max_samples_per_send: 20, batch_send_deadline: 200ms, capacity: 2000, max_shards: 8,\n"
        "    min_shards: 4, min_backoff: 5ms, max_backoff: 50ms, retry_on_http_429: true}\n"
    )


def theirs(
    seed: int, rate: float, seconds: float, kills: tuple[str, ...]
) -> tuple[int, int, int, int, int]:
    """Faults, samples scraped, samples lost, samples stored twice, kills."""
    exporter, done = Exporter(), 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        store_port, agent_port = free_port(), free_port()
        store = Process(
            [
                "victoria-metrics",
                f"-storageDataPath={folder}/store",
                f"-httpListenAddr=127.0.0.1:{store_port}",
                "-retentionPeriod=12",
            ],
            store_port,
        )
        stack.callback(store.stop)
        store.wait_ready("/health")
        proxy = ProxyProcess(store_port, seed, rate)
        stack.callback(proxy.close)
        config = Path(folder) / "prometheus.yml"
        config.write_text(configuration(stack.enter_context(exporter.listening()), proxy.port))
        agent = Process(
            [
                "prometheus",
                "--enable-feature=agent",
                f"--config.file={config}",
                f"--storage.agent.path={folder}/agent",
                f"--web.listen-address=127.0.0.1:{agent_port}",
            ],
            agent_port,
        )
        stack.callback(agent.stop)
        agent.wait_ready("/-/ready")
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(min(EVERY_SECONDS, max(0.0, ends - time.monotonic())))
            if time.monotonic() < ends and kills:
                done += 1
                store.kill()
                if "sender" in kills:
                    time.sleep(AWAY_SECONDS)
                    agent.kill()
                    agent.start()
                    agent.wait_ready("/-/ready")
                store.start()
                store.wait_ready("/health")
        faults = proxy.counts()[1].total()
        exporter.ended = True
        proxy.say("faults 0")
        settle(store_port)
        lost, twice = compare_with_store(store_port, exporter.served)
        return faults, sum(exporter.served.values()) * SERIES, lost, twice, done


def settle(port: int) -> None:
    """Wait until nothing new has come for 5 s, for 60 s at most."""
    before, since = -1.0, time.monotonic()
    deadline = since + 60
    while time.monotonic() < deadline and time.monotonic() - since < 5:
        ask(port, "/internal/force_flush")
        text = ask(port, "/metrics")[1].decode()
        rows = sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith("vm_rows_inserted_total")
        )
        if rows != before:
            before, since = rows, time.monotonic()
        time.sleep(0.5)


def compare_with_store(port: int, served: Counter) -> tuple[int, int]:
    """Samples lost and stored twice, over all series."""
    ask(port, "/internal/force_flush")
    status, text = ask(port, "/api/v1/export?match[]=bench_value&reduce_mem_usage=1")
    if status != 200:
        raise SystemExit(f"VictoriaMetrics answered {status} to an export")
    values_by_name: dict[tuple[str, str], Counter] = {}
    for line in text.splitlines():
        series = json.loads(line)
        key = series["metric"]["job"].rsplit("-", 1)[1], series["metric"]["series"]
        values_by_name.setdefault(key, Counter()).update(
            int(value) for value in series["values"] if value is not None
        )
    lost = twice = 0
    for target, count in served.items():
        for number in range(SERIES):
            values = values_by_name.get((target, str(number)), Counter())
            lost += sum(value not in values for value in range(1, count + 1))
            twice += sum(times - 1 for times in values.values())
    return lost, twice


def ours(
    seed: int, rate: float, seconds: float, kills: tuple[str, ...]
) -> tuple[int, int, int, int, int]:
    """The same for ours: samples of every batch that was numbered."""
    done = 0
    with FaultyFleet(seed, TARGETS, rate) as fleet:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(min(EVERY_SECONDS, max(0.0, ends - time.monotonic())))
            if time.monotonic() < ends and kills:
                done += 1
                assert fleet.collector.process is not None
                fleet.collector.kill()
                if "sender" in kills:
                    time.sleep(AWAY_SECONDS)
                    for node in fleet.nodes:
                        node.wanted.append("restart")
                fleet.collector.start()
                fleet.collector.wait_ready()
        faults = fleet.proxy.counts()[1].total()
        verdict = fleet.settle()
        samples = verdict.samples // max(1, verdict.batches["committed"]) * verdict.batches["made"]
        lost = sum("sample" in entry or "batch" in entry for entry in verdict.lost)
        return faults, samples, lost + len(verdict.unaccounted), len(verdict.twice), done


def compare(seed: int, rate: float, seconds: float) -> None:
    """Prints the table."""
    print(
        "\n| scenario | way | faults | kills | samples | lost | stored twice"
        " |\n|---|---|---|---|---|---|---|"
    )
    for name, kills in SCENARIOS.items():
        for way, measure in (("GPU Ledger", ours), ("Prometheus agent, VictoriaMetrics", theirs)):
            faults, samples, lost, twice, done = measure(seed, rate, seconds, kills)
            part = f"{lost:,} ({lost / max(samples, 1):.2%})"
            print(
                f"| {name} | {way} | {faults:,} | {done} | {samples:,} | {part} | {twice:,} |",
                flush=True,
            )
    print(BY_DESIGN)


BY_DESIGN = """
What of this is by design: Prometheus takes any 2xx for an acknowledgement (a portal's page ends a request), drops what
is answered 4xx (a gateway's 408), and after a restart sends only what it scrapes from then on. VictoriaMetrics answers
before its samples are on disk, and keeps a repeated sample unless -dedup.minScrapeInterval is set. Their metrics are
for charts, where a gap is no harm; they promise no more. Ours carries money, and pays with a COMMIT for each answer."""

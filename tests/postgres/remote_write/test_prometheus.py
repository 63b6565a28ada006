"""A real Prometheus scrapes a dcgm-exporter and remote-writes to a real collector: the pod's team
is on the bill.
"""

import contextlib
import datetime as dt
import http.server
import json
import re
import shutil
import subprocess
import threading
import time

import pytest

from fakes.ports import free_port
from fakes.postgres import open_folder
from fakes.processes import BIN, collector_process, environment
from fakes.replicas import until

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus (apt-get install prometheus)"
)

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 900ms}}
scrape_configs:
  - job_name: dcgm
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
remote_write:
  - url: {collector}/api/v1/write
    write_relabel_configs: [{{source_labels: [__name__], regex: "DCGM_FI_.*", action: keep}}]
    queue_config: {{batch_send_deadline: 1s, max_samples_per_send: {batch}}}
"""
LEDGER = """
[[rule]]
name = "pods of vision"
match = { kind = "kubernetes", namespace = "vision" }
assign = { team = "computer-vision" }

[[price]]
purchase = "on_demand"
rate_per_gpu_hour = 3.60
currency = "USD"
effective_from = 2025-01-01
"""
FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": "85",
    "DCGM_FI_DEV_POWER_USAGE": "402.113000",
    "DCGM_FI_DEV_FB_USED": "40213",
}
HELD = 'container="train",namespace="vision",pod="train-0"'
MICRO_PER_GPU_SECOND = 1000


class Exporter(http.server.ThreadingHTTPServer):
    """A page as dcgm-exporter writes it, of a node with two GPUs; the first is held by a pod while
    `held`.
    """

    held = True
    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.shown = {True: [], False: []}
        """When it was scraped (s), held and not."""

    def page(self):
        self.shown[self.held].append(time.monotonic())
        lines = []
        for name, value in FIELDS.items():
            lines += [f"# HELP {name} of a GPU", f"# TYPE {name} gauge"]
            for gpu in range(2):
                own = HELD if gpu == 0 and self.held else 'container="",namespace="",pod=""'
                lines.append(
                    f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="00000000:{gpu}1:00.0",'
                    f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="n1",'
                    f'DCGM_FI_DRIVER_VERSION="570.86.15",{own}}} {value}'
                )
        return "\n".join([*lines, ""]).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.server.page())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def exporter():
    server = Exporter(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def prometheus(folder, target, url, batch):
    """A Prometheus of this test's own, on loopback, with its data in the folder."""
    (folder / "prometheus.yml").write_text(
        CONFIG.format(exporter=target, collector=url, batch=batch)
    )
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "prometheus.log").open("wb"),
        cwd=folder,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def gpuledger(folder, dsn, *arguments):
    done = subprocess.run(
        [BIN / "gpuledger", *map(str, arguments)],
        env=environment(GPULEDGER_DSN=dsn),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(collector):
    found = re.search(
        r'remote_write_samples_total{outcome="written"} (\S+)', collector.get("/metrics")[1]
    )
    return float(found[1])


def team_of(folder, dsn):
    """What the pod's team is billed; nothing while it is not."""
    today = dt.datetime.now(dt.UTC).date()
    report = json.loads(
        gpuledger(
            folder,
            dsn,
            "chargeback",
            "--from",
            today - dt.timedelta(days=1),
            "--to",
            today + dt.timedelta(days=1),
            "--by",
            "team",
            "--format",
            "json",
        )
    )
    return {row["team"]: row for row in report["rows"]}.get("computer-vision", {})


@pytest.mark.slow
def test_the_pods_team_is_billed():
    """Some six seconds held, then not: the bill has them, to within the scrapes at both ends;
    nothing is refused.
    """
    folder = open_folder("gpuledger-remote-")
    try:
        with collector_process(
            folder, GPULEDGER_ROLL_UP_SECONDS="1", GPULEDGER_RATE_SECONDS="1"
        ) as collector:
            (folder / "ledger.toml").write_text(LEDGER)
            gpuledger(folder, collector.dsn(), "apply", "ledger.toml")
            # 5 samples a request, 6 a scrape: every scrape is cut.
            with exporter() as page, prometheus(folder, page.server_address[1], collector.url, 5):
                deadline = time.monotonic() + 90
                while written(collector) < 6:
                    assert time.monotonic() < deadline, (folder / "prometheus.log").read_text()[
                        -2000:
                    ]
                    time.sleep(0.1)
                time.sleep(6)
                page.held = False
                until(lambda: len(page.shown[False]) >= 3)
                time.sleep(1)
            held_s = page.shown[False][0] - page.shown[True][0]
            time.sleep(2.5)
            deadline = time.monotonic() + 90
            while (team := team_of(folder, collector.dsn())).get("gpu_ns", 0) / 1e9 < held_s - 2.5:
                assert time.monotonic() < deadline, (team, page.shown)
            metrics = collector.get("/metrics")[1]
        assert 'remote_write_samples_total{outcome="refused"} 0.0' in metrics
        assert 'remote_write_samples_total{outcome="foreign"} 0.0' in metrics
        seconds = team["gpu_ns"] / 1e9
        assert held_s >= 6
        assert abs(seconds - held_s) <= 2.5, (team, page.shown)
        assert team["cost_micro"] == round(seconds * MICRO_PER_GPU_SECOND)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

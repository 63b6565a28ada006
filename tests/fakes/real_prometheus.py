"""A real Prometheus, on loopback, with a configuration of the test's own."""

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.ports import free_port

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus (apt-get install prometheus)"
)
PATIENCE_S = 120


@dataclass(frozen=True)
class Prometheus:
    """Answers questions about what it scraped."""

    url: str
    log: Path

    def get(self, path: str, **parameters: str) -> dict:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=30) as answer:
            return json.loads(answer.read())

    def sum_of(self, expression: str) -> float | None:
        """The sum of a query's series now; None for no series."""
        result = self.get("/api/v1/query", query=expression)["data"]["result"]
        return sum(float(series["value"][1]) for series in result) if result else None

    def wait_for(self, expression: str, value: float) -> None:
        """Wait until a query's sum is this."""
        deadline = time.monotonic() + PATIENCE_S
        while (seen := self.sum_of(expression)) != value:
            targets = self.get("/api/v1/targets")["data"]["activeTargets"]
            faults = [target["lastError"] for target in targets if target["lastError"]]
            assert time.monotonic() < deadline, (
                expression,
                seen,
                faults,
                self.log.read_text()[-2000:],
            )
            time.sleep(0.2)


@contextlib.contextmanager
def prometheus(folder: Path, configuration: str) -> Iterator[Prometheus]:
    """It runs until the block ends, and then sends what its remote writes still hold."""
    (folder / "prometheus.yml").write_text(configuration)
    port = free_port()
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=tsdb",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    running = Prometheus(f"http://127.0.0.1:{port}", log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{running.url}/-/ready", timeout=5).close()
                break
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        yield running
    finally:
        process.terminate()
        process.wait(60)

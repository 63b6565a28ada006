"""Packages of the agent, built by the scripts that people use, and the Pythons that run them."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.sink import sink

ROOT = Path(__file__).resolve().parents[2]
PAGE = str(ROOT / "tests" / "fakes" / "exporter_pages" / "dcgm-exporter.prom")
DEBIAN_PYTHON = Path("/usr/bin/python3")
ELSEWHERE = (
    "unreachable",
    "Network is",
    "timed out",
    "Temporary failure",
    "Connection",
    "Max retries",
)


def build(kind: str, folder: Path) -> Path:
    """What `deploy/KIND/build` makes; a machine without a package index skips, anything else fails."""
    command = [sys.executable, ROOT / "deploy" / kind / "build", folder]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1790000000"}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    if answer.returncode and any(words in answer.stderr for words in ELSEWHERE):
        pytest.skip(f"no package index can be reached: {answer.stderr.strip()[-200:]}")
    assert answer.returncode == 0, answer.stderr
    return Path(answer.stdout.strip())


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, as `./dev wheel` builds it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def bare() -> dict[str, str]:
    """An environment in which no library of a driver is to be found."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LD_", "PYTHON", "GPULEDGER"))
    }


def pythons() -> list[str]:
    """Every supported Python on this machine, the one that runs the tests first."""
    found = [
        sys.executable,
        *(shutil.which(f"python3.{minor}") or "" for minor in (11, 12, 13, 14)),
    ]
    kept = {}
    for path in [*found, str(DEBIAN_PYTHON)]:
        if not path:
            continue
        told = subprocess.run(
            [path, "-IS", "-c", "import sys; print(sys.version)"], capture_output=True, text=True
        )
        if told.returncode == 0 and told.stdout >= "3.11":
            kept.setdefault(told.stdout, path)
    return list(kept.values())


def delivers(command: list[str | Path], folder: Path) -> None:
    """Starts the agent on a page of dcgm-exporter until a collector has a batch of it, and stops it in
    order.
    """
    with sink() as target:
        settings = {
            "SOURCE": "dcgm",
            "TARGET": PAGE,
            "NODE": "h100-03",
            "SPOOL_DIR": str(folder / "spool"),
            "METRICS_LISTEN": "",
            "COLLECTOR_URL": target.url,
            "SAMPLE_INTERVAL_S": "0.1",
            "PUSH_INTERVAL_S": "1",
        }
        environment = {
            **bare(),
            **{f"GPULEDGER_AGENT_{name}": value for name, value in settings.items()},
        }
        log = folder / "log"
        with log.open("wb") as file:
            process = subprocess.Popen([*command, "run"], env=environment, stderr=file, cwd=folder)
        deadline = time.monotonic() + 90
        while not target.committed() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
        assert target.committed(), log.read_text()

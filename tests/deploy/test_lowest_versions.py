"""Both commands with the lowest version of each dependency that pyproject.toml allows.

Left out are the extras whose range is one minor version, which is the pinned one (mcp), and models
that bring torch.
"""

import csv
import http.client
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import openpyxl
import pytest

from fakes import kubelet, prometheus
from fakes.engines import lacking
from fakes.packages import build_wheel
from fakes.postgres import open_folder
from fakes.processes import collector_process, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
EXTRAS = ("collector", "embedded", "parquet", "boosted")
UNREACHABLE = ("Failed to fetch", "network was disabled")
ALL_COMMANDS = """
from typer.main import get_command
from gpuledger_collector.cli import PANELS, build
group = get_command(build())
print(*(group.commands[entry.name].name for entries in PANELS.values() for entry in entries))
"""


def call(*words, **given: str) -> str:
    """What a command prints; it has to succeed."""
    clean = {
        name: value for name, value in environment(**given).items() if not name.startswith("PYTHON")
    }
    command = [str(word) for word in words]
    answer = subprocess.run(
        command, env=clean, cwd="/", capture_output=True, text=True, timeout=240, check=False
    )
    if answer.returncode and words[0] == UV and any(sign in answer.stderr for sign in UNREACHABLE):
        lacking(f"no package index can be reached: {answer.stderr.strip()[-200:]}")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def lowest():
    """The folder of the commands, in an environment that uv makes; built packages only, so nothing
    is compiled.
    """
    folder = open_folder("gpuledger-lowest-")
    try:
        venv = folder / "venv"
        call(UV, "venv", "--python", sys.executable, venv)
        install = [UV, "pip", "install", "--python", venv, "--only-binary", ":all:"]
        extras = [word for extra in EXTRAS for word in ("--extra", extra)]
        call(*install, "--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml", *extras)
        call(*install, "--no-deps", build_wheel(folder / "dist"))
        yield venv / "bin"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_every_command_explains_itself(lowest):
    """`--help` of both, and the module of every command."""
    assert "chargeback" in call(lowest / "gpuledger", "--help")
    assert "simulate" in call(lowest / "gpuledger-agent", "--help")
    assert "--period PERIOD" in call(lowest / "gpuledger", "chargeback", "--help")
    assert {"chargeback", "serve", "mcp"} < set(call(lowest / "python", "-c", ALL_COMMANDS).split())


def test_the_shell_completes(lowest):
    """The script is printed, and what it asks is answered."""
    assert "_GPULEDGER_COMPLETE" in call(lowest / "gpuledger", "completion", "bash")
    asked = {
        "_GPULEDGER_COMPLETE": "complete_bash",
        "COMP_WORDS": "gpuledger charg",
        "COMP_CWORD": "1",
    }
    assert call(lowest / "gpuledger", **asked).split() == ["chargeback"]


def test_the_agent_samples_and_asks_a_kubelet(lowest, tmp_path):
    """A sample of the simulated node; a real gRPC server's pods."""
    sample = json.loads(call(lowest / "gpuledger-agent", "once", "--json", "--source", "simulated"))
    assert sample["accelerators"]
    ask = "import pathlib, sys\nfrom gpuledger_agent.owners.podresources import list_pods\n"
    ask += "print(*(pod.name for pod in list_pods(pathlib.Path(sys.argv[1]))))"
    with kubelet.running(tmp_path / "kubelet.sock") as node:
        node.pods = [kubelet.pod("vision", "train-0", "GPU-1")]
        assert call(lowest / "python", "-c", ask, node.path).split() == ["train-0"]


def test_a_jobs_file_becomes_a_bill(lowest, tmp_path):
    """Migrations, import, rating, forecast, Parquet, statement and configuration on the embedded
    database.
    """
    folder = open_folder("gpuledger-lowest-data-")
    try:
        command, given = lowest / "gpuledger", {"GPULEDGER_DATA_DIR": str(folder)}
        bill = call(
            command, "start", ROOT / "examples/jobs.csv", "--rate", "2.50", "--yes", **given
        )
        assert "1,900.62" in bill
        book = openpyxl.Workbook()
        for row in csv.reader((ROOT / "examples/jobs.csv").read_text().splitlines()):
            book.active.append(row)
        book.save(tmp_path / "jobs.xlsx")
        assert "5 unchanged; no bill changes" in call(
            command, "start", tmp_path / "jobs.xlsx", "--yes", **given
        )
        month = ("--period", "2026-10")
        call(
            command,
            "chargeback",
            *month,
            "--format",
            "parquet",
            "-o",
            tmp_path / "bill.parquet",
            **given,
        )
        assert (tmp_path / "bill.parquet").read_bytes()[:4] == b"PAR1"
        call(
            command, "chargeback", *month, "--format", "focus", "-o", tmp_path / "bill.csv", **given
        )
        assert "no violation" in call(command, "focus", "check", tmp_path / "bill.csv", **given)
        assert "730.62" in call(
            command, "statement", "--owner", "vision", *month, "-o", "/dev/stdout", **given
        )
        declared = tmp_path / "declared.toml"
        declared.write_text(call(command, "export", "config", **given))
        call(command, "apply", declared, "--dry-run", **given)
        forecast = (
            "forecast",
            "--method",
            "boosted,analog",
            "--horizon",
            "24h",
            "--format",
            "json",
        )
        assert json.loads(call(command, *forecast, **given))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_collector_takes_evidence_and_shows_it(lowest, tmp_path):
    """An agent's batches, remote write, page, description and metrics; it ends in order."""
    folder = open_folder("gpuledger-lowest-collector-")
    try:
        with collector_process(folder, lowest) as collector:
            span = ("--from", "2026-11-01T00:00:00Z", "--to", "2026-11-01T03:00:00Z")
            call(
                lowest / "gpuledger-agent",
                "simulate",
                *span,
                "--only",
                "h100-01",
                "--collector",
                collector.url,
            )
            assert write(collector.port) == 204
            table = call(
                lowest / "gpuledger",
                "chargeback",
                "--from",
                "2026-11-01",
                "--to",
                "2026-11-02",
                **collector.environment,
            )
            assert "foundation" in table
            pages = {path: collector.get(path) for path in ("/", "/openapi.json", "/metrics")}
            assert {path: status for path, (status, _) in pages.items()} == dict.fromkeys(
                pages, 200
            )
            assert collector.stop(300) == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(port: int) -> int:
    """Status of a scrape of one GPU, sent as Prometheus sends it."""
    body = prometheus.snappy(prometheus.one(prometheus.scrape(time.time_ns() // 1_000_000)))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", prometheus.WRITE, body, prometheus.headers())
        return connection.getresponse().status
    finally:
        connection.close()

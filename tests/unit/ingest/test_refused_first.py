"""Mistakes in what was asked are refused before Postgres is started, or even looked for."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gpuledger_collector import wiring
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain

GOOD = "job_id,team,gpus,start,end\n1,vision,1,2026-10-01T00:00:00Z,2026-10-01T01:00:00Z\n"
FILES = {
    "good.csv": GOOD,
    "empty.csv": "",
    "header.csv": "job_id,team,gpus,start,end\n",
    "bad.csv": GOOD + "2,vision,many,2026-10-01T00:00:00Z,\n",
    "local.csv": GOOD.replace("Z", ""),
    "odd.csv": "a,b\n1,2\n",
    "report.pdf": "%PDF-1.7\n",
    "jobs.json": '[{"id": 1}]',
}


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Counts how often a database is opened, with an own folder for the embedded one, which is
    never to appear.
    """
    monkeypatch.setenv("GPULEDGER_DATA_DIR", str(tmp_path / "data"))
    count = []

    def refuse(*_arguments, **_options):
        count.append(1)
        raise AssertionError("a database was opened")

    monkeypatch.setattr(wiring, "database", refuse)
    return count


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothere.csv"],
        ["."],
        *([name] for name in FILES if name != "good.csv"),
        ["good.csv", "--rate", "abc"],
        ["good.csv", "--rate", "-1"],
        ["good.csv", "--rate", "1,024"],
        ["good.csv", "--rate", "1", "--currency", "dollars"],
        ["good.csv", "--zone", "Berlin"],
        ["good.csv", "--column", "gpus"],
        ["good.csv", "--column", "gpus=nosuch"],
        ["good.csv", "--empty-start", "soon"],
        ["good.csv", "--sheet", "Jobs"],
        ["good.csv", "--pool", "(unallocated)"],
        ["good.csv", "--days", "3"],
        ["good.csv", "--replace", "--also"],
        ["localhost:9090"],
        ["http://127.0.0.1:1", "--zone", "UTC"],
        ["http://127.0.0.1:1"],
        ["http://"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_refused_before_a_server_is_started(opened, tmp_path, monkeypatch, arguments):
    """One sentence and exit code 2; no server, and no folder for one."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = CliRunner().invoke(build(), ["start", *arguments, "--yes"])
    sentence, code = (
        ("", done.exit_code) if isinstance(done.exception, SystemExit) else explain(done.exception)
    )
    assert code == (3 if arguments == ["http://127.0.0.1:1"] else 2), done.output
    assert (done.stderr + sentence).strip()
    assert opened == []
    assert not (tmp_path / "data").exists()


def test_what_is_right_opens_one(opened, tmp_path, monkeypatch):
    """So that the count above means something."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text(GOOD)
    CliRunner().invoke(build(), ["start", "good.csv", "--rate", "1", "--yes"])
    assert opened == [1]


def test_a_bill_loads_no_server(tmp_path):
    """What serves pages takes longer to import than a mistake to be found; it is loaded for --serve
    alone.
    """
    code = (
        "import sys\nsys.modules |= dict.fromkeys(('fastapi', 'uvicorn', 'apscheduler'))\n"
        "sys.argv = ['gpuledger', 'start', 'nothere.csv']\n"
        "from gpuledger_collector.__main__ import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        "gpuledger: nothere.csv: No such file or directory\n",
    )

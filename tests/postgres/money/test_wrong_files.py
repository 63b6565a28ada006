"""What is no table is said in one sentence, whichever import reads it; Ctrl-C says that nothing was
imported.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from fakes.processes import BIN, environment
from gpuledger_collector.cli import imports, start
from gpuledger_collector.ingest.files.samples import NO_SAMPLE
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Lock

PDF = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n"
ROWS = "workload_id,start,end,gpus\n1,2025-10-01T00:00:00Z,2025-10-01T01:00:00Z,2\n"
TABLES = (("usage",), ("prices",), ("inventory",), ("samples",), ("queue",))
KINDS = (*TABLES, ("sacct",), ("shares", "--pool", "p"), ("bill",))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_a_pdf_is_one_sentence(run, fleet, tmp_path, kind):
    """Neither a codec's words nor a column that is missing."""
    (tmp_path / "x.pdf").write_bytes(PDF)
    code, _, err = run("import", kind[0], tmp_path / "x.pdf", *kind[1:])
    assert code == 2
    assert "x.pdf: is no text; save its table as CSV UTF-8 or .xlsx" in err
    assert len(err.splitlines()) == 2
    assert "codec" not in err


@pytest.mark.parametrize(
    "kind", [kind for kind in TABLES if kind != ("samples",)], ids=lambda kind: kind[0]
)
def test_json_is_one_sentence(run, fleet, tmp_path, kind):
    """The same for JSON, of which no column is missing; samples may be lines of JSON."""
    (tmp_path / "x.json").write_text('{"a": [1, "x"]}\n')
    code, _, err = run("import", kind[0], tmp_path / "x.json")
    assert code == 2
    assert "x.json:1: is JSON and no table; write its rows as CSV" in err
    assert "does not name this required column" not in err


WITHOUT_SAMPLE = (
    "{}",
    '{"a": 1}',
    '{"samples": [1]}',
    '{"uuid": "GPU-1", "ts": 1759276800}',
    '{"uuid": "GPU-1", "ts": 1759276800, "gpu_power_watts": 300}',
    '{"uuid": "GPU-1", "ts": 1759276800, "values": {"power": 300}}',
    (
        '{"workload_id": "1", "start": "2025-10-01T00:00:00Z", "end": "2025-10-01T01:00:00Z",'
        ' "gpus": 1}'
    ),
)


@pytest.mark.parametrize("line", WITHOUT_SAMPLE)
def test_json_lines_without_a_sample_are_one_sentence(run, tmp_path, monkeypatch, line):
    """However many there are, and before a database is opened: they are no import of nothing."""
    monkeypatch.setattr(imports, "open_session", None)
    path = tmp_path / "x.jsonl"
    path.write_text(f"{line}\n" * 3)
    code, out, err = run("import", "samples", path)
    assert (code, out) == (2, "")
    assert err.splitlines() == [f"{path}:1: {NO_SAMPLE}", f"{path}: nothing was imported"]


@pytest.mark.parametrize("line", ["{}", '{"a": 1}', "[]", "1"])
@pytest.mark.parametrize(
    "command", [["start"], ["import", "usage"], ["import", "samples"]], ids=" ".join
)
def test_no_line_of_json_is_an_empty_import(run, tmp_path, monkeypatch, command, line):
    """Whoever reads it names file and line, before a database is opened."""
    for module in (imports, start):
        monkeypatch.setattr(module, "open_session", None)
    path = tmp_path / "x.jsonl"
    path.write_text(f"{line}\n")
    code, out, err = run(*command, path)
    assert (code, out) == (2, "")
    assert err.startswith(f"{path}:1:")


def test_a_recording_without_a_sample_is_said(run, tmp_path):
    """Its header and its ticks are known, and hold nothing to import."""
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"format": "gpuledger-recording/1", "accelerators": []}\n{"offset_ms": 0, "samples": []}\n'
    )
    code, _, err = run("import", "samples", path, "--start", "2025-10-01T00:00:00Z")
    assert (code, err.splitlines()[0]) == (2, f"{path}: {NO_SAMPLE}")


def test_lines_without_a_sample_among_others_are_bad_rows(run, fleet, tmp_path):
    """Each is named, and `--skip-bad` imports the others; a sample whose readings are all absent is
    one.
    """
    path = tmp_path / "x.jsonl"
    samples = ['{"uuid": "GPU-1", "ts": 1759276800, "values": {}}', "{}", '{"a": 1}']
    path.write_text("\n".join(samples) + "\n")
    code, _, err = run("import", "samples", path)
    assert code == 2
    assert err.splitlines()[:2] == [f"{path}:2: {NO_SAMPLE}", f"{path}:3: {NO_SAMPLE}"]
    assert "2 bad rows, nothing was imported; --skip-bad imports the others" in err
    code, out, err = run("import", "samples", path, "--skip-bad")
    assert (code, out.startswith("samples: 1 added")) == (0, True), err


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_a_folder_is_one_sentence(run, fleet, tmp_path, kind):
    """Whatever reads it."""
    code, _, err = run("import", kind[0], tmp_path, *kind[1:])
    assert (code, err) == (2, f"{tmp_path}: is a folder and no file")


def interrupted(process, said):
    """Interrupt a command, and what it says."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert said in err
    assert "Traceback" not in err


def started(dsn, file):
    command = [BIN / "gpuledger", "import", "usage", file, "--dsn", dsn]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_import_that_is_interrupted_while_it_reads_says_so(fleet, dsn, tmp_path):
    """A pipe that gives nothing: Ctrl-C before anything is written."""
    os.mkfifo(tmp_path / "u.csv")
    process = started(dsn, tmp_path / "u.csv")
    with (tmp_path / "u.csv").open("w"):  # waits until the command opens it
        until_it_reads(process)
        interrupted(process, "stopped: nothing was imported")


def until_it_reads(process) -> None:
    """Wait until a process waits for a pipe, or for two seconds where the kernel does not say."""
    for _ in range(40):
        if "pipe_read" in Path(f"/proc/{process.pid}/wchan").read_text():
            return
        time.sleep(0.05)


def test_an_import_that_is_interrupted_in_its_transaction_says_so(fleet, dsn, tmp_path):
    """It waits for another import; nothing of it is there afterwards."""
    (tmp_path / "u.csv").write_text(ROWS)
    with psycopg.connect(dsn) as other:
        locks.take(other, Lock.IMPORTS)
        process = started(dsn, tmp_path / "u.csv")
        waiting = (
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM"
            " pg_database "
        )
        while fleet.rows(f"{waiting} WHERE datname = current_database())") == [(0,)]:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        interrupted(process, "stopped: nothing was imported")
    assert fleet.rows("SELECT count(*) FROM imported_usage") == [(0,)]

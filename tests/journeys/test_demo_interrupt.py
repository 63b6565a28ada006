"""Ctrl-C or SIGTERM in the demo's month: everything that it started ends before it does."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.postgres import open_folder
from fakes.processes import BIN

pytestmark = pytest.mark.slow


def processes_of(folder):
    """Command lines of living processes that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry.parent / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if words and (str(folder) in words or f"GPULEDGER_DATA_DIR={folder}" in environment):
            found.append(words)
    return found


@pytest.mark.parametrize("times", [1, 3], ids=["once", "impatiently"])
def test_an_interrupt_ends_collector_and_database(times):
    """As a terminal sends it, to the whole group, also again while the collector is ending; then
    the port is free.
    """
    folder = open_folder("gpuledger-demo-")
    output = folder / "out"
    with subprocess.Popen(
        [
            BIN / "gpuledger",
            "demo",
            "--once",
            "--days",
            "1",
            "--output",
            output,
            "--port",
            str(free_port()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as demo:
        line = next(line for line in demo.stdout if "simulating" in line)
        assert line
        assert processes_of(output)
        for _ in range(times):
            os.killpg(demo.pid, signal.SIGINT)
            time.sleep(0.5)  # whether the demo has noticed or not: both must end well
        rest, errors = demo.communicate(timeout=120)
    # The last one may come when Python has put its handlers away: a shell calls that 130 as well.
    assert demo.returncode in {130, -signal.SIGINT}
    assert "ending the collector and its database" in rest
    assert "Traceback" not in errors
    assert processes_of(output) == []
    shutil.rmtree(folder)


def test_killed_in_the_middle_it_leaves_no_collector():
    """SIGTERM during the month ends the collector and its Postgres as well.

    A second demo in its folder is refused.
    """
    folder = open_folder("gpuledger-demo-")
    command = [
        BIN / "gpuledger",
        "demo",
        "--once",
        "--days",
        "1",
        "--output",
        folder / "out",
        "--port",
        str(free_port()),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            line = next(line for line in demo.stdout if "collector at http" in line)
            address = "127.0.0.1", int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1])
            socket.create_connection(address).close()
            second = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False
            )
            assert "a demo is running in" in second.stderr
            assert second.returncode == 2
            postmaster = int(
                next((folder / "out" / "data").rglob("postmaster.pid")).read_text().split()[0]
            )
        finally:
            demo.terminate()
            demo.communicate(timeout=60)
    assert demo.returncode == 130
    with pytest.raises(OSError):
        socket.create_connection(address)
    assert not Path(f"/proc/{postmaster}").exists()
    assert processes_of(folder / "out") == []
    shutil.rmtree(folder)

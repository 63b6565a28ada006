"""Ctrl-C in the demo's month: everything that it started ends before it does."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.postgres import open_folder

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
    """As a terminal sends it, to the whole group, also again while the collector is ending; then the port is free."""
    folder = open_folder("gpuledger-demo-")
    output = folder / "out"
    program = Path(sys.executable).with_name("gpuledger")
    with subprocess.Popen(
        [program, "demo", "--once", "--days", "3", "--output", output],
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
    assert demo.returncode == 130
    assert "ending the collector and its database" in rest
    assert "Traceback" not in errors
    assert processes_of(output) == []
    shutil.rmtree(folder)

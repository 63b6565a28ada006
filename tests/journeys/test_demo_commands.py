"""The demo's commands: each as a shell would have started it, in lanes that keep their order and
end at a failure.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

from fakes.ports import free_port
from fakes.processes import environment

LANES = """
import json, sys
from pathlib import Path
from gpuledger_collector.cli.demo_commands import preload, run_lanes
lanes, variables, folder = json.loads(sys.argv[1])
preload(())
runs = run_lanes([[tuple(command) for command in lane] for lane in lanes], variables, Path(folder))
print(json.dumps([[list(run.command), run.code, run.text()] for run in runs]))
"""
VERSION, NODES = ["gpuledger", "--version"], ["gpuledger-agent", "simulate", "--list-nodes"]
REFUSED = ["gpuledger", "idle", "--state", "tired"]


def run(lanes, folder, **variables):
    """In a process of its own: a fork of this one would have its threads' locks."""
    given = json.dumps([lanes, environment(**variables), str(folder)])
    answer = subprocess.run(
        [sys.executable, "-c", LANES, given],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_lanes_come_back_in_their_order(tmp_path):
    """Programs of the agent and of the collector, lane by lane, with exit codes and what they
    printed.
    """
    runs = run([[VERSION, NODES], [NODES, VERSION]], tmp_path)
    assert [command for command, _, _ in runs] == [VERSION, NODES, NODES, VERSION]
    assert [code for _, code, _ in runs] == [0, 0, 0, 0]
    assert runs[0][2].startswith("gpuledger ")
    assert "l4-01" in runs[1][2].splitlines()


def test_after_a_failure_nothing_more_is_started(tmp_path):
    """The refusal is in its output, as on standard error; the rest of the lane has no exit code."""
    runs = run([[VERSION, REFUSED, VERSION]], tmp_path)
    assert [code for _, code, _ in runs] == [0, 2, None]
    assert "--state: 'tired' is none of" in runs[1][2]


def test_a_command_has_the_environment_and_the_folder_that_it_is_given(tmp_path):
    """Files go to the folder, settings come from the environment."""
    ((_, code, output),) = run([[["gpuledger", "examples", "here"]]], tmp_path)
    assert code == 0, output
    assert (tmp_path / "here" / "jobs.csv").exists()
    ((_, code, output),) = run([[NODES]], tmp_path, GPULEDGER_AGENT_SEED="seven")
    assert code == 2
    assert "GPULEDGER_AGENT_SEED: 'seven'" in output


def test_an_interrupt_ends_the_commands_that_run(tmp_path):
    """SIGTERM to the caller alone: an agent that samples until it is stopped has ended before the
    caller does.
    """
    port = free_port()
    variables = environment(
        GPULEDGER_AGENT_COLLECTOR_URL="http://127.0.0.1:9",
        GPULEDGER_AGENT_SPOOL_DIR=str(tmp_path / "spool"),
        GPULEDGER_AGENT_METRICS_LISTEN=f"127.0.0.1:{port}",
    )
    agent = ["gpuledger-agent", "run", "--source", "simulated", "--node", "l4-01"]
    given = json.dumps([[[agent]], variables, str(tmp_path)])
    code = f"import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler)\n{LANES}"
    with subprocess.Popen(
        [sys.executable, "-c", code, given], env=environment(), stderr=subprocess.PIPE
    ) as caller:
        wait_for(lambda: listens(port))
        caller.terminate()
        caller.communicate(timeout=60)
    assert caller.returncode == -signal.SIGINT  # how Python ends on a KeyboardInterrupt
    assert not listens(port)


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)

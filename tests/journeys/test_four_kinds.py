"""One node, six GPUs, four schedulers' worth of owners: each lands on its team, and what differs is
seen.

GPU 0: a Slurm job (through our own prolog), with no process. GPU 1: a pod, known by the kubelet (a
real gRPC server). GPU 2: a container, known by its engine (HTTP on a unix socket). GPU 3: a plain
process of this test. GPU 4: given to the same job, used by the plain process, which nobody gave it.
GPU 5: nobody's.
"""

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from fakes import engine, kubelet
from fakes.nvml import stand_in
from fakes.postgres import open_folder
from fakes.processes import BIN, collector_process, environment, free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
INTERVAL_S = 0.2
UUIDS = [f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(6)]
RULES = """
[[rule]]
name = "pods by namespace"
match = { kind = "kubernetes", namespace = "ml-prod" }
assign = { team = "serving" }

[[rule]]
name = "shells"
match = { kind = "process", user = "USER" }
assign = { team = "research" }

[[price]]
purchase = "on_demand"
rate_per_gpu_hour = 3.60
currency = "USD"
effective_from = 2025-01-01
"""


@pytest.fixture
def home():
    """A folder that the embedded server's user can reach, too."""
    import shutil

    folder = open_folder("gpuledger-four-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_agent(home, environ, **settings):
    given = {f"GPULEDGER_AGENT_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [BIN / "gpuledger-agent", "run", "--source", "nvml", "--node", "n1"],
        env={
            **environment(),
            **{name: environ[name] for name in ("LD_LIBRARY_PATH", "NVML_STUB_SCENARIO")},
            **given,
        },
        stderr=(home / "agent.log").open("wb"),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def gpuledger(home, dsn, *arguments):
    done = subprocess.run(
        [BIN / "gpuledger", *map(str, arguments)],
        env=environment(GPULEDGER_DSN=dsn),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def series(port, name):
    """Values of a metric by uuid from the agent's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        lines = [line for line in page.read().decode().splitlines() if line.startswith(name + "{")]
    return {
        line.partition('uuid="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
    }


def prolog(home, script):
    """Runs our prolog or epilog as slurmd does: a bare environment with the job's own variables."""
    subprocess.run(
        ["/bin/sh", ROOT / "deploy" / "slurm" / script],
        env={
            "SLURM_JOB_ID": "4242",
            "SLURM_JOB_USER": "amina",
            "SLURM_JOB_ACCOUNT": "vision",
            "SLURM_JOB_GPUS": "0,4",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_NAME": "train",
            "GPULEDGER_SLURM_JOBS_DIR": str(home / "jobs"),
            "GPULEDGER_NVIDIA_PROC": str(home / "none"),
        },
        check=True,
        timeout=30,
    )


def test_a_job_a_pod_a_container_and_a_process_each_land_on_their_team(home):
    """Held seconds by team from one node's agent through a real collector, and the two kinds of
    disagreement.
    """
    user = pwd.getpwuid(os.getuid()).pw_name
    shell = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    environ = stand_in(home, f"gpus 6\nprocess 3 {shell.pid}\nprocess 4 {shell.pid}\nbusy 3 80\n")
    if environ is None:
        shell.kill()
        shell.wait()
        pytest.skip("no C compiler: the NVML stand-in cannot be built (apt-get install gcc)")
    port = free_port()
    with (
        kubelet.running(home / "kubelet.sock") as pods,
        engine.running(home / "docker.sock") as docker,
        collector_process(home) as collector,
    ):
        pods.pods = [kubelet.pod("ml-prod", "bert-0", UUIDS[1])]
        docker.containers = [
            engine.container("d", "notebook", requests=engine.gpus("2"), team="analytics")
        ]
        prolog(home, "prolog.sh")
        with running_agent(
            home,
            environ,
            collector_url=collector.url,
            spool_dir=home / "spool",
            pool="mixed",
            metrics_listen=f"127.0.0.1:{port}",
            sample_interval_s=INTERVAL_S,
            push_interval_s=1,
            slurm_jobs_dir=home / "jobs",
            kubelet_socket=home / "kubelet.sock",
            kubernetes_api_url="off",
            container_socket=home / "docker.sock",
            owners="slurm,kubernetes,containers,processes",
        ):
            deadline = time.monotonic() + 90
            held = {}
            while len(held) < 5:
                assert time.monotonic() < deadline, (held, (home / "agent.log").read_text())
                time.sleep(0.1)
                with contextlib.suppress(OSError):
                    held = series(port, "gpu_held_ratio")
            empty = series(port, "gpu_allocated_without_process")
            strange = series(port, "gpu_used_without_allocation")
            time.sleep(5)
        shell.kill()
        shell.wait()
        (home / "rules.toml").write_text(RULES.replace("USER", user))
        gpuledger(home, collector.dsn(), "apply", "rules.toml")
        days = (
            "--from",
            time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400)),
            "--to",
            "2100-01-01",
        )
        report = json.loads(
            gpuledger(
                home, collector.dsn(), "chargeback", *days, "--by", "team", "--format", "json"
            )
        )
        devices = json.loads(
            gpuledger(
                home,
                collector.dsn(),
                "chargeback",
                *days,
                "--by",
                "team,workload",
                "--format",
                "json",
            )
        )

    log = (home / "agent.log").read_text()
    seconds = {row["team"]: row["gpu_ns"] / 1e9 for row in report["rows"]}
    assert seconds.keys() >= {"vision", "serving", "analytics", "research", "(unallocated)"}, (
        seconds,
        log,
    )
    one = seconds["serving"]
    assert one >= 4
    for team, gpus in (("vision", 2), ("analytics", 1), ("research", 1)):
        assert seconds[team] == pytest.approx(one * gpus, abs=3 * INTERVAL_S * gpus), (seconds, log)
    assert {
        row["workload"].split(":")[0] for row in devices["rows"] if row["team"] != "(unallocated)"
    } >= {
        "slurm",
        "kubernetes",
        "container",
        "process",
    }, devices
    told = {index: (empty[uuid], strange[uuid]) for index, uuid in enumerate(UUIDS)}
    assert told == {0: (1, 0), 1: (1, 0), 2: (1, 0), 3: (0, 1), 4: (0, 1), 5: (0, 0)}, log
    prolog(home, "epilog.sh")
    assert list((home / "jobs").iterdir()) == []

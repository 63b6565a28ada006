"""Advice acts on a real slurmctld: gpuledger-scale powers cloud nodes up, ResumeProgram starts
them, a job runs there.

One node is this machine: the hook of gpuledger-resume really starts its slurmd, when Slurm says so.
The others are names that nobody starts; of them only what slurmctld was told is looked at.
"""

import http.server
import json
import os
import secrets
import shutil
import subprocess
import threading
import time

import pytest

from fakes.collector import JSON, running
from fakes.ports import free_port
from fakes.postgres import database, dsn, open_folder, postgres
from fakes.processes import BIN
from fakes.slurm import DEPLOY, NODE, PATH, Cluster, answers, why_not
from fakes.systemd import check_trace, confined
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

__all__ = ["database", "dsn", "postgres"]

NETLINK = frozenset({"AF_NETLINK"})
"""glibc and curl ask which addresses the machine has, and go on without an answer."""
REASON = why_not()
slurm_only = pytest.mark.skipif(REASON is not None, reason=f"no Slurm: {REASON}")

CONF = """\
ClusterName=power
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=defer,batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=1
ResumeProgram={home}/resume
SuspendProgram={home}/suspend
PrivateData=cloud
SuspendTime=3600
ResumeTimeout=60
SuspendTimeout=5
NodeName={node} NodeAddr=127.0.0.1 CPUs=1 State=CLOUD
NodeName=cloud[2-4] NodeAddr=127.0.0.1 CPUs=1 State=CLOUD
PartitionName=gpu Nodes={node},cloud[2-4] Default=YES MaxTime=60 State=UP
"""


class Powered(Cluster):
    """slurmctld with four cloud nodes, all powered down; no accounting, and no slurmd until the
    hook starts one.
    """

    def start(self):
        for folder in ("state", "spool"):
            (self.home / folder).mkdir()
        key = self.home / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        (self.home / "slurm.conf").write_text(CONF.format(**self._values))
        self._script(
            "hook",
            f"""
            echo "$1 $2" >> {self.home}/hook.calls
            [ "$1 $2" = "resume {NODE}" ] || exit 7
            SLURM_CONF={self.home}/slurm.conf {shutil.which("slurmd", path=PATH)} -b
            """,
        )
        for action in ("resume", "suspend"):
            self._script(
                action,
                f"""
                GPULEDGER_POWER_CONF=/nonexistent GPULEDGER_POWER_LOG={self.home}/power.log
                GPULEDGER_POWER_HOOK={self.home}/hook
                export GPULEDGER_POWER_CONF GPULEDGER_POWER_LOG GPULEDGER_POWER_HOOK
                exec {DEPLOY}/gpuledger-{action} "$@"
                """,
            )
        self._spawn(
            "munged",
            "--foreground",
            "--force",
            f"--socket={self.home}/munge.sock",
            f"--key-file={key}",
            f"--pid-file={self.home}/munge.pid",
            f"--seed-file={self.home}/munge.seed",
            "--log-file",
            self.home / "munge.log",
            "--num-threads=1",
        )
        self._wait(lambda: (self.home / "munge.sock").exists(), "munged")
        self._spawn("slurmctld", "-D")
        self._wait(lambda: answers(self._values["ctld"]) and self.states(), "slurmctld")

    def _script(self, name, body):
        path = self.home / name
        path.write_text(
            "#!/bin/sh\n" + "\n".join(line.strip() for line in body.strip().splitlines()) + "\n"
        )
        path.chmod(0o755)

    def states(self):
        """State by node, as scontrol writes it."""
        lines = self.run("scontrol", "show", "node", "-o").splitlines()
        fields = [
            dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines
        ]
        return {one["NodeName"]: one["State"] for one in fields if "NodeName" in one}

    def stop(self):
        """The slurmd that the hook left behind too, by the pid that it wrote."""
        super().stop()
        pid = self.home / "slurmd.pid"
        if pid.exists() and pid.read_text().strip():
            subprocess.run(["kill", pid.read_text().strip()], check=False)


@pytest.fixture
def cluster():
    home = open_folder("gpuledger-power-")
    made = Powered(home, (), 1)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(home, ignore_errors=True)


class Advisor:
    """GET /v1/scaling/{pool} with an answer that the test sets: (status, object)."""

    def __init__(self):
        self.answer, self.asked = (503, {"detail": "no number"}), []
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                test.asked.append((self.path, self.headers.get("Authorization")))
                status, made = test.answer
                body = json.dumps(made).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def says(self, gpus):
        self.answer = (
            200,
            {
                "pool": "gpu",
                "desired_gpus": gpus,
                "demand_gpus": 0.0,
                "mode": "young",
                "reason": "r",
            },
        )


@pytest.fixture
def advisor():
    made = Advisor()
    yield made
    made.server.shutdown()
    made.server.server_close()


def scale(url, *arguments, environment=None, before=(), **settings):
    """Exit code and what gpuledger-scale says; `before` are words before its command."""
    given = {
        "URL": url,
        "POOL": "gpu",
        "NODES": f"{NODE},cloud[2-4]",
        "NODE_GPUS": "4",
        "CEILING": "3",
    } | settings
    done = subprocess.run(
        [*before, DEPLOY / "gpuledger-scale", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **(environment or os.environ),
            **{f"GPULEDGER_SCALE_{name}": value for name, value in given.items()},
        },
    )
    return done.returncode, done.stdout + done.stderr


def wait_for(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@slurm_only
def test_advice_powers_nodes_up_and_the_resumed_one_runs_a_job(cluster, advisor):
    """Nothing without advice or --apply; with both, as many nodes as are advised within the
    ceiling, and no more.
    """

    def run(*arguments, **settings):
        return scale(advisor.url, *arguments, environment=cluster.environment, **settings)

    before = cluster.states()
    assert set(before) == {NODE, "cloud2", "cloud3", "cloud4"}
    assert all("POWERED_DOWN" in state for state in before.values()), before
    code, said = run("--apply")
    assert (code, said) == (0, "gpuledger-scale: gpu: no advice, nothing is touched\n")

    advisor.says(4.5)
    code, said = run()
    assert code == 0, said
    assert "4.5 GPUs are advised, 2 nodes within 0..3; 0 are up" in said
    assert said.count("would run: scontrol update") == 2
    assert cluster.states() == before

    code, said = run("--apply", MAX_UP="1")
    assert code == 0, said
    ran = [line.split("nodename=")[1].split()[0] for line in said.splitlines() if "ran:" in line]
    assert len(ran) == 1, said
    if ran != [NODE]:  # slurmctld lists its nodes in an order of its own
        code, said = run("--apply", NODES=NODE, CEILING="1")
        assert f"ran: scontrol update nodename={NODE} state=power_up" in said
    wait_for(lambda: cluster.states()[NODE] in {"IDLE+CLOUD", "IDLE"})
    assert f"resume {NODE}" in (cluster.home / "hook.calls").read_text().splitlines()
    assert f"resume {NODE}: done" in (cluster.home / "power.log").read_text()
    out = cluster.home / "job.out"
    cluster.run(
        "sbatch",
        "--wait",
        f"--nodelist={NODE}",
        f"--output={out}",
        "--chdir=/tmp",
        "--wrap=echo ran here",
    )
    assert out.read_text() == "ran here\n"

    advisor.says(100.0)
    code, said = run("--apply")
    assert "100.0 GPUs are advised, 3 nodes within 0..3" in said
    ordered = {
        name
        for name, state in cluster.states().items()
        if "POWER_UP" in state or "POWERING_UP" in state
    }
    assert len(ordered) == 2
    assert NODE not in ordered
    code, said = run("--apply")
    # What is coming counts as up: a second run orders nothing.
    assert (code, "ran:" in said) == (
        0,
        False,
    )
    wait_for(
        lambda: set((cluster.home / "hook.calls").read_text().split()) == {"resume", NODE, *ordered}
    )

    advisor.says(0.0)
    code, said = run("--apply")
    assert (code, "ran:" in said) == (0, False)  # powering down is asked for apart
    code, said = run("--apply", NODES=NODE, MAX_DOWN="1")
    assert f"ran: scontrol update nodename={NODE} state=power_down" in said
    wait_for(
        lambda: (
            f"suspend {NODE}: the hook failed with 7" in (cluster.home / "power.log").read_text()
        )
    )


@slurm_only
def test_the_units_leave_what_their_commands_need(cluster, advisor, tmp_path):
    """gpuledger-scale orders a node and the agent reads the queue, with every call that the units
    forbid failing.
    """
    advisor.says(4.0)
    unit, trace = DEPLOY / "gpuledger-scale@.service", tmp_path / "scale.trace"
    code, said = scale(
        advisor.url,
        "--apply",
        before=confined(unit, trace),
        environment=cluster.environment,
        NODES="cloud2",
    )
    assert (code, "ran: scontrol update nodename=cloud2 state=power_up" in said) == (0, True), said
    check_trace(unit, trace.read_text(), NETLINK)
    unit, trace = DEPLOY / "gpuledger-queue.service", tmp_path / "queue.trace"
    command = [*confined(unit, trace), BIN / "gpuledger-agent", "queue", "--slurm", "--print"]
    shown = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["source"] == "slurm"
    # squeue was told by slurmctld that no GPU is waited for.
    assert f"{cluster.home}/munge.sock" in trace.read_text()
    check_trace(unit, trace.read_text(), NETLINK)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"POOL": ""}, "GPULEDGER_SCALE_POOL"),
        ({"POOL": "a/../b"}, "GPULEDGER_SCALE_POOL"),
        ({"NODES": "$(reboot)"}, "GPULEDGER_SCALE_NODES"),
        ({"NODES": "-x"}, "GPULEDGER_SCALE_NODES"),
        ({"NODE_GPUS": "0"}, "is below 1"),
        ({"CEILING": ""}, "GPULEDGER_SCALE_CEILING"),
        ({"CEILING": "1", "FLOOR": "2"}, "is below 2"),
        ({"NODE_PRICE": "3"}, "or neither"),
        ({"NODE_PRICE": "3", "HOUR_LIMIT": "5", "FLOOR": "2"}, "pays for 1 nodes"),
        ({"MAX_DOWN": "some"}, "no whole number"),
    ],
)
def test_settings_that_are_wrong_end_it_before_anything_is_asked(advisor, settings, words):
    """Exit 2 and the setting's name."""
    code, said = scale(advisor.url, "--apply", **settings)
    assert code == 2, said
    assert words in said
    assert advisor.asked == []


@pytest.fixture
def scontrol(tmp_path):
    """A scontrol that shows the nodes of a file and writes down what it is told; gives
    (environment, orders).
    """
    (tmp_path / "scontrol").write_text(
        f'#!/bin/sh\ncase $1 in -a) cat {tmp_path}/nodes ;; show) seq 6 ;; *) echo "$@" >>'
        f" {tmp_path}/orders ;; esac\n"
    )
    (tmp_path / "scontrol").chmod(0o755)

    def show(*states):
        lines = [
            f"NodeName=n{number} Arch=x86_64 State={state} Weight=1"
            for number, state in enumerate(states)
        ]
        (tmp_path / "nodes").write_text("\n".join(lines) + "\n")

    def orders():
        path = tmp_path / "orders"
        return path.read_text().splitlines() if path.exists() else []

    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, show, orders


def test_drained_and_down_nodes_are_left_alone_and_busy_ones_never_go(advisor, scontrol, tmp_path):
    """Only powered-down nodes go up, only idle ones down; the token travels as a header; money caps
    the ceiling.
    """
    environment, show, orders = scontrol
    (tmp_path / "token").write_text("secret\n")
    show(
        "IDLE+CLOUD+POWERED_DOWN+DRAIN",
        "DOWN*+CLOUD",
        "IDLE+CLOUD+POWERED_DOWN",
        "IDLE+CLOUD+POWERING_DOWN",
        "IDLE+CLOUD+POWERED_DOWN",
        "MIXED+CLOUD",
    )
    advisor.says(24.0)
    code, said = scale(
        advisor.url,
        "--apply",
        environment=environment,
        CEILING="6",
        TOKEN_FILE=str(tmp_path / "token"),
    )
    assert code == 0, said
    assert orders() == [f"update nodename=n{number} state=power_up" for number in (2, 4)]
    assert advisor.asked == [("/v1/scaling/gpu?delay_s=600", "Bearer secret")]
    code, said = scale(
        advisor.url, environment=environment, CEILING="6", NODE_PRICE="2.50", HOUR_LIMIT="7.4"
    )
    assert "2 nodes within 0..2; 1 are up" in said
    show(
        "IDLE+CLOUD",
        "ALLOCATED+CLOUD",
        "IDLE+CLOUD+COMPLETING",
        "IDLE+CLOUD+POWERING_UP",
        "IDLE+CLOUD",
    )
    (tmp_path / "orders").unlink()
    advisor.says(0.0)
    code, said = scale(advisor.url, "--apply", environment=environment, FLOOR="1", MAX_DOWN="9")
    assert code == 0, said
    assert "scontrol hides 1 of 6 nodes (slurm.conf: PrivateData=cloud)" in said
    assert orders() == [f"update nodename=n{number} state=power_down" for number in (0, 4)]


def test_the_number_of_a_real_collector_is_read(dsn, scontrol):
    """Three GPUs of a real ledger, always held: the script finds the API's own number in the API's
    own answer.
    """
    environment, show, orders = scontrol
    show("IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERED_DOWN")
    now_ms = time.time_ns() // 1_000_000
    end = now_ms // HOUR_MS * HOUR_MS
    made = {
        "version": 1,
        "node": "n1",
        "epoch": "0192aaaa-0000-7000-8000-000000000001",
        "seq": 1,
        "heartbeat": {"agent_version": "0", "source": "simulated", "status": "ok"},
        "accelerators": [
            {
                "uuid": f"GPU-{gpu}",
                "device_uuid": f"GPU-{gpu}",
                "index": gpu,
                "model": "NVIDIA L4",
                "pool": "gpu",
            }
            for gpu in range(3)
        ],
        "workloads": [{"id": "1", "kind": "slurm", "tags": {"team": "vision"}}],
        "usage_intervals": [
            {
                "accelerator": gpu,
                "start_ms": end - (hour + 1) * HOUR_MS,
                "end_ms": end - hour * HOUR_MS,
                "state": "held",
                "workload": 0,
                "held_ms": HOUR_MS,
                "busy_ms": HOUR_MS,
                "idle_ms": 0,
            }
            for hour in range(48)
            for gpu in range(3)
        ],
    }
    with running(dsn) as collector:
        assert collector.post(json.dumps(made).encode(), JSON)[0] == 200
        refresh(Database(dsn), ALWAYS, now_ms)
        gpus = collector.request("GET", "/v1/scaling/gpu")[2]["desired_gpus"]
        code, said = scale(
            f"http://127.0.0.1:{collector.port}", "--apply", environment=environment, NODE_GPUS="2"
        )
        assert (code, gpus >= 3) == (0, True), said
        assert f"gpu: {gpus} GPUs are advised, 2 nodes within 0..3; 0 are up" in said
        assert orders() == [
            "update nodename=n0 state=power_up",
            "update nodename=n1 state=power_up",
        ]
        code, said = scale(
            f"http://127.0.0.1:{collector.port}", "--apply", environment=environment, POOL="other"
        )
        assert (code, said) == (0, "gpuledger-scale: other: no advice, nothing is touched\n")


@pytest.mark.parametrize(
    "answer",
    [
        (503, {"desired_gpus": 9.0}),
        (200, {"detail": "odd"}),
        (200, {"desired_gpus": None}),
        (200, {"desired_gpus": -4.0}),
        (200, {"reason": "desired_gpus"}),
    ],
)
def test_what_is_no_number_touches_nothing(advisor, scontrol, answer):
    """Stale, odd or negative: Slurm reacts as it does without us."""
    environment, show, orders = scontrol
    show("IDLE+CLOUD+POWERED_DOWN")
    advisor.answer = answer
    assert scale(advisor.url, "--apply", environment=environment) == (
        0,
        "gpuledger-scale: gpu: no advice, nothing is touched\n",
    )
    advisor.says(4.0)
    code, said = scale(f"http://127.0.0.1:{free_port()}", "--apply", environment=environment)
    assert "no advice" in said
    assert (code, orders()) == (0, [])


def test_the_glue_ends_with_0_whatever_the_hook_does(tmp_path):
    """A hook that fails, hangs or is missing, an odd name, no nodes: logged, bounded, exit 0."""
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\n[ "$3" = bad ] && exit 1\nprintf "%s\\n" n1 n2 "n;3"\n'
    )
    (tmp_path / "hook").write_text(
        f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/calls\n[ "$2" = n1 ] || sleep 30\n'
    )
    for name in ("scontrol", "hook"):
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GPULEDGER_POWER_CONF": "/nonexistent",
        "GPULEDGER_POWER_HOOK": str(tmp_path / "hook"),
        "GPULEDGER_POWER_SECONDS": "1",
    }

    def call(program, *arguments, **more):
        done = subprocess.run(
            [DEPLOY / program, *arguments],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0
        return done.stderr

    said = call("gpuledger-resume", "n[1-3]")
    assert "resume n1: done" in said
    assert "resume n2: the hook failed with 124" in said
    assert "'n;3' is no node's name" in said
    assert sorted((tmp_path / "calls").read_text().splitlines()) == ["resume n1", "resume n2"]
    assert "scontrol cannot read it" in call("gpuledger-suspend", "bad")
    assert "no nodes were named" in call("gpuledger-suspend")
    assert "the hook failed with 12" in call(
        "gpuledger-suspend", "n1", GPULEDGER_POWER_HOOK="/nonexistent"
    )
    assert "nothing was done" in call("gpuledger-suspend", "n1", GPULEDGER_POWER_HOOK="")
    assert "the rest is left out" in call("gpuledger-resume", "n1", GPULEDGER_POWER_MAX_NODES="1")

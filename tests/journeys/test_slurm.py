"""A real Slurm, our prolog and epilog, a real agent on stubbed GPUs, a real collector: the bill is
what sacct says.
"""

import datetime as dt
import json
import shutil
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import psycopg
import pytest

from fakes.postgres import open_folder
from fakes.processes import BIN, collector_process, environment
from fakes.slurm import GPUS, cluster, why_not
from gpuledger_agent.owners.slurm import SlurmOwners
from gpuledger_agent.queue.slurm import pending
from gpuledger_common.readings import Accelerator

REASON = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=f"no Slurm: {REASON}"),
]

STUB = Path(__file__).resolve().parents[1] / "fakes" / "nvml_stub.c"
COLUMNS = (
    "jobidraw,cluster,account,user,partition,qos,state,submit,eligible,start,end,elapsedraw,suspended,alloctres,"
    "nodelist,comment,wckey,jobname"
)
PRICES = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from
,,on_demand,3.60,USD,2025-01-01
"""
MICRO_PER_GPU_SECOND = 1000
INTERVAL_S = 0.2
ACCELERATORS = [Accelerator(f"GPU-{index}", f"GPU-{index}", index, "H100") for index in range(GPUS)]


@pytest.fixture(scope="module")
def home():
    folder = open_folder("gpuledger-slurm-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def slurm(home):
    place = home / "slurm"
    place.mkdir()
    with cluster(place, "vision", "nlp") as running:
        yield running


def wait_for(true, seconds=600.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def held(owners):
    """Job ids by index of the GPU."""
    found = owners.holders(ACCELERATORS, ())
    return {
        int(uuid.removeprefix("GPU-")): [one.workload.id for one in holders]
        for uuid, holders in found.items()
    }


def finished(slurm):
    return not slurm.run("squeue", "-h").strip() and not any(slurm.jobs.iterdir())


def test_jobs_hold_their_gpus_from_prolog_to_epilog(slurm):
    """Whole GPUs go to one job each, shards of one GPU to the jobs on it; what users write breaks
    nothing.
    """
    owners = SlurmOwners(slurm.jobs)
    assert held(owners) == {}
    whole = slurm.submit(
        "vision",
        "gpu:h100:2",
        120,
        "--comment=team=seg;project=x y\nuser=root\nplaces=3",
        "--job-name=we|ird\n;näme",
    )
    shards = [slurm.submit(account, "shard:2", 120, user="nobody") for account in ("nlp", "vision")]
    wait_for(lambda: len(list(slurm.jobs.glob("[0-9]*"))) == 3)
    by_index = held(owners)
    assert sorted(map(tuple, by_index.values())) == sorted([(whole,), (whole,), tuple(shards)])
    told = slurm.run("scontrol", "show", "job", "-d", "-o", whole)
    first, last = (int(part) for part in told.partition("(IDX:")[2].partition(")")[0].split("-"))
    assert [index for index, jobs in by_index.items() if jobs == [whole]] == list(
        range(first, last + 1)
    )
    (holder,) = owners.holders(ACCELERATORS, ())[f"GPU-{first}"]
    assert (holder.workload.account, holder.workload.user) == ("vision", "root")
    assert holder.workload.tags["team"] == "seg"
    assert holder.workload.tags["project"].startswith("x y")
    slurm.run("scancel", whole, *shards)
    wait_for(lambda: finished(slurm))
    assert held(owners) == {}
    wait_for(lambda: "idle" in slurm.run("sinfo", "-h", "-o", "%T"))


def test_a_prolog_that_cannot_write_drains_no_node(slurm):
    """A folder that cannot be made costs the attribution of the job, never the node: the job runs
    to its end.
    """
    slurm.jobs.rename(slurm.home / "aside")
    slurm.jobs.write_text("in the way")
    try:
        job = slurm.submit("vision", "gpu:1", 0.1)
        wait_for(
            lambda: (
                slurm.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "state").strip()
                == "COMPLETED"
            )
        )
        wait_for(lambda: "idle" in slurm.run("sinfo", "-h", "-o", "%T"))
    finally:
        slurm.jobs.unlink()
        (slurm.home / "aside").rename(slurm.jobs)


def test_what_waits_in_the_queue_is_read(slurm, monkeypatch):
    """While one job has every GPU the next ones wait, an array's tasks one by one; a held job waits
    for nobody.
    """
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    jobs = [slurm.submit("vision", f"gpu:h100:{GPUS}", 60)]
    wait_for(lambda: slurm.run("squeue", "-h", "-t", "R").strip())
    try:
        asked = (
            ("gpu:h100:2", "--comment=team=seg;x=y|z"),
            ("gpu:1", "--array=0-2"),
            ("gpu:1", "--hold"),
        )
        jobs += [slurm.submit("nlp", gres, 1, option) for gres, option in asked]
        wait_for(lambda: len(pending()) == 4)
        found = {one.workload_id: one for one in pending()}
        assert set(found) == {jobs[1], *(f"{jobs[2]}_{task}" for task in range(3))}
        assert [found[one].gpus for one in sorted(found)] == [2.0, 1.0, 1.0, 1.0]
        first = found[jobs[1]]
        assert (first.pool, first.gpu_model, first.team, first.account) == (
            "gpu",
            "h100",
            "seg",
            "nlp",
        )
        assert abs(first.submitted - time.time()) < 120
    finally:
        slurm.run("scancel", *jobs)
        wait_for(lambda: finished(slurm))


def test_the_bill_is_what_sacct_says(slurm, home):
    """GPU-seconds of each account, from the agent to within the sampling, and from sacct's own rows
    exactly.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the NVML stand-in cannot be built (apt-get install gcc)")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", home / "libnvidia-ml.so.1", STUB], check=True
    )
    (home / "scenario").write_text(f"gpus {GPUS}\n")
    with collector_process(home) as collector:
        agent = subprocess.Popen(
            [BIN / "gpuledger-agent", "run", "--source", "nvml", "--node", "n1"],
            env=environment(
                LD_LIBRARY_PATH=str(home),
                NVML_STUB_SCENARIO=str(home / "scenario"),
                GPULEDGER_AGENT_COLLECTOR_URL=collector.url,
                GPULEDGER_AGENT_SPOOL_DIR=str(home / "spool"),
                GPULEDGER_AGENT_METRICS_LISTEN="",
                GPULEDGER_AGENT_SAMPLE_INTERVAL_S=str(INTERVAL_S),
                GPULEDGER_AGENT_PUSH_INTERVAL_S="1",
                GPULEDGER_AGENT_SLURM_JOBS_DIR=str(slurm.jobs),
                GPULEDGER_AGENT_POOL="slurm",
                GPULEDGER_AGENT_OWNERS="slurm",
            ),
            stderr=(home / "agent.log").open("wb"),
        )
        try:
            wait_for(lambda: longest_ms(collector.dsn()))
            jobs = [
                slurm.submit("vision", "gpu:h100:2", 6),
                slurm.submit("nlp", "gpu:1", 4, user="nobody"),
                slurm.submit("vision", "gpu:1", 3, "--comment=team=nlp"),
            ]
            wait_for(lambda: finished(slurm))
            time.sleep(2)
        finally:
            agent.terminate()
            agent.wait(60)
        seen_s = longest_ms(collector.dsn()) / 1000
        text = slurm.run("sacct", "-X", "-a", "-P", "-n", "-D", "-j", ",".join(jobs), "-o", COLUMNS)
        rows = [line.split("|") for line in text.splitlines()]
        assert [row[0] for row in rows] == jobs, text
        (home / "jobs.txt").write_text(text)
        (home / "prices.csv").write_text(PRICES)
        gpuledger(home, collector.dsn(), "import", "prices", home / "prices.csv")
        gpuledger(
            home,
            collector.dsn(),
            "import",
            "sacct",
            home / "jobs.txt",
            "--pool",
            "accounting",
            "--also",
        )
        bill = charged(home, collector.dsn())

    expected: dict[str, int] = defaultdict(int)
    slack: dict[str, float] = defaultdict(float)
    for row in rows:
        gpus = int(row[13].partition("gres/gpu=")[2].partition(",")[0])
        team = row[15].removeprefix("team=") or row[2]
        expected[team] += gpus * int(row[11])
        # Both ends are sampled, and sacct counts whole seconds.
        slack[team] += gpus * (2 * seen_s + 1)
    assert set(expected) == {"vision", "nlp"}
    for team, seconds in expected.items():
        assert bill["accounting", team] == (seconds * 10**9, seconds * MICRO_PER_GPU_SECOND)
        held_ns, cost_micro = bill["slurm", team]
        assert abs(held_ns / 1e9 - seconds) <= slack[team], (bill, expected)
        assert (
            abs(cost_micro - seconds * MICRO_PER_GPU_SECOND) <= slack[team] * MICRO_PER_GPU_SECOND
        )


def longest_ms(dsn):
    """The longest time between two samples of a GPU: INTERVAL_S, or longer where others use this
    machine.
    """
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT coalesce(max(passed), 0) FROM (SELECT at_ms - lag(at_ms) OVER (PARTITION BY"
            " accelerator_id ORDER BY at_ms) AS passed FROM gpu_sample) AS pairs"
        ).fetchone()
    return row[0]


def gpuledger(home, dsn, *arguments):
    """What the command prints."""
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


def charged(home, dsn):
    """GPU-nanoseconds and micro-units of money by pool and team."""
    today = dt.datetime.now(dt.UTC).date()
    start, end = today - dt.timedelta(days=1), today + dt.timedelta(days=1)
    report = json.loads(
        gpuledger(
            home,
            dsn,
            "chargeback",
            "--from",
            start,
            "--to",
            end,
            "--by",
            "pool,team",
            "--format",
            "json",
        )
    )
    return {
        (row["pool"], row["team"]): (row["gpu_ns"], row["cost_micro"]) for row in report["rows"]
    }

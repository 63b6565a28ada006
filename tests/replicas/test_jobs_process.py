"""The jobs as a process of their own: beside one worker, apart from all of them, killed and
replaced.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from fakes.batches import batch
from fakes.processes import BIN, environment
from fakes.replicas import QUICK, Replica, until
from gpuledger_collector.storage.rows import select_value
from gpuledger_collector.worker_group import JOBS

pytestmark = pytest.mark.slow


def hours(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        return select_value(connection, "SELECT count(*) FROM usage_hour")


@pytest.fixture
def collector(folder, dsn):
    (folder / "collector.toml").write_text('log_level = "info"')
    made = Replica(folder, 1, dsn, GPULEDGER_CONFIG=str(folder / "collector.toml"))
    made.start()
    made.wait_ready()
    yield made
    if made.process.poll() is None:
        made.kill()


def test_one_worker_has_its_jobs_beside_it(collector, dsn):
    """They fold what it takes; killed while they wait for a lock they are started again and go on,
    and the worker is the same process and answers meanwhile.
    """
    until(collector.leads)
    before = collector.processes()
    assert set(before) == {"1", JOBS}
    assert collector.send(batch(1)) == 200
    until(lambda: hours(dsn))
    with psycopg.connect(dsn) as blocker, psycopg.connect(dsn, autocommit=True) as watcher:
        blocker.execute("LOCK TABLE usage_hour IN ACCESS EXCLUSIVE MODE")
        assert (
            collector.send(batch(2, start_ms=batch(1).usage_intervals[0].start_ms + 60_000)) == 200
        )
        until(
            lambda: select_value(
                watcher,
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gpuledger-jobs'"
                " AND wait_event_type = 'Lock' AND datname = current_database()",
            )
        )
        os.kill(before[JOBS], signal.SIGKILL)
        until(lambda: collector.processes().get(JOBS) not in {None, before[JOBS]})
        assert collector.ready()
    until(collector.leads)
    assert collector.processes()["1"] == before["1"]
    until(
        lambda: (
            "the process of the jobs has ended (signal 9); it is started again" in collector.log()
        )
    )
    assert collector.stop() == 0


def test_a_reload_replaces_the_jobs(collector):
    """HUP: new code and settings for them as well, after the workers."""
    until(collector.leads)
    before = collector.processes()
    collector.process.send_signal(signal.SIGHUP)
    until(lambda: {*collector.processes().values()}.isdisjoint(before.values()))
    until(lambda: set(collector.processes()) == {"1", JOBS} and collector.leads())
    assert collector.stop() == 0


def test_a_reload_that_fails_leaves_the_jobs_as_they_are(collector, folder):
    """A broken installation: no successor starts, and what runs goes on."""
    until(collector.leads)
    before = collector.processes()
    (folder / "collector.toml").write_text("no setting = 1")
    collector.process.send_signal(signal.SIGHUP)
    until(lambda: "worker 1 stays as it is: its successor could not start" in collector.log())
    assert collector.processes() == before
    assert collector.leads()
    assert collector.stop() == 0


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search("^SigCgt:\\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("command", [("serve", "--no-jobs"), ("jobs",)])
def test_a_signal_while_starting_ends_it(folder, dsn, command):
    """As early as a process can take it, long before it serves."""
    settings = environment(GPULEDGER_DSN=dsn, GPULEDGER_LISTEN="127.0.0.1:0", **QUICK)
    started = subprocess.Popen([BIN / "gpuledger", *command], env=settings, cwd=folder)
    try:
        until(lambda: catches(started.pid, signal.SIGTERM))
        started.terminate()
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()


def test_jobs_run_apart_from_collectors_that_have_none(folder, dsn):
    """`serve --no-jobs` is one process that runs none; `gpuledger jobs` runs them, and ends in
    order.
    """
    settings = environment(GPULEDGER_DSN=dsn, **QUICK)
    alone = Replica(folder, 1, dsn, GPULEDGER_JOBS="false")
    alone.start()
    alone.wait_ready()
    with (folder / "jobs.log").open("wb") as log:
        jobs = subprocess.Popen([BIN / "gpuledger", "jobs"], env=settings, stdout=log, stderr=log)
    try:
        assert alone.send(batch(1)) == 200
        until(lambda: hours(dsn))
        assert alone.processes() == {}
        assert not alone.leads()
        jobs.send_signal(signal.SIGHUP)
        jobs.terminate()
        assert jobs.wait(60) == 0
        said = (folder / "jobs.log").read_text()
        assert "gpuledger runs the jobs" in said.splitlines()
        assert "Traceback" not in said
        with psycopg.connect(dsn) as connection:
            assert (
                select_value(connection, "SELECT count(*) FROM job_run WHERE ended_at IS NULL") == 0
            )
            # The collector that serves; the jobs took theirs away.
            assert select_value(connection, "SELECT count(*) FROM replica") == 1
    finally:
        jobs.kill()
        jobs.wait()
        assert alone.stop() == 0


def test_jobs_of_no_database_are_refused(folder):
    """The bundled one belongs to the collector that runs it."""
    refused = subprocess.run(
        [BIN / "gpuledger", "jobs"],
        env=environment(GPULEDGER_DATA_DIR=str(folder)),
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert refused.stderr == (
        "gpuledger: jobs: the embedded database belongs to `gpuledger serve`, which runs the jobs"
        " itself; name a database with --dsn\n"
    )

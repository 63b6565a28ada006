"""The real agent and the real collector, both killed while they talk: the spool keeps what was not
acknowledged.
"""

import shutil
import sqlite3
import subprocess
import time

import psycopg
import pytest

from fakes.postgres import open_folder
from fakes.processes import BIN, CollectorProcess, collector_process, environment

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    path = open_folder("gpuledger-faults-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


class AgentProcess:
    """`gpuledger-agent run` on a simulated node, sampling and pushing much faster than usual."""

    def __init__(self, collector: CollectorProcess) -> None:
        self.folder = collector.folder
        self.environment = environment(
            GPULEDGER_AGENT_COLLECTOR_URL=collector.url,
            GPULEDGER_AGENT_SPOOL_DIR=str(self.folder / "spool"),
            GPULEDGER_AGENT_METRICS_LISTEN="",
            GPULEDGER_AGENT_SAMPLE_INTERVAL_S="0.1",
            GPULEDGER_AGENT_PUSH_INTERVAL_S="1",
        )

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "gpuledger-agent", "run", "--source", "simulated", "--node", "node-1"],
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def said(self) -> str:
        return (self.folder / "agent.log").read_text()


def batches(collector: CollectorProcess) -> int:
    """Batches in the ledger; a database that was just killed is asked again until it is back."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with psycopg.connect(collector.dsn()) as connection:
                row = connection.execute("SELECT count(*) FROM ingest_batch").fetchone()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            assert row is not None
            return row[0]


def wait_for_batches(collector: CollectorProcess, more: int, agent: AgentProcess) -> None:
    wanted, deadline = batches(collector) + more, time.monotonic() + 120
    while batches(collector) < wanted:
        assert time.monotonic() < deadline, agent.said()[-2000:]
        assert agent.process.poll() is None, agent.said()[-2000:]
        time.sleep(0.05)


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_killed_agents_and_collectors_leave_no_hole(folder, rounds):
    """After kills on both sides every numbered batch is in the ledger once, and no time is held
    twice.
    """
    with collector_process(folder) as collector:
        agent = AgentProcess(collector)
        agent.start()
        for _ in range(rounds):
            wait_for_batches(collector, 2, agent)
            agent.kill()
            agent.start()
            wait_for_batches(collector, 2, agent)
            collector.kill()
            time.sleep(0.5)
            agent.kill()
            agent.start()
            collector.start()
            collector.wait_ready()
            wait_for_batches(collector, 2, agent)
            collector.kill_postgres()
        wait_for_batches_of_a_revived(collector, agent)
        deadline = time.monotonic() + 120
        while agent_pending(agent) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert agent.stop() == 0, agent.said()[-2000:]
        assert "; 0 batches wait in the spool" in agent.said().splitlines()[-1]
        with psycopg.connect(collector.dsn()) as connection:
            numbered = connection.execute(
                "SELECT count(*), count(DISTINCT seq), min(seq), max(seq) FROM ingest_batch GROUP"
                " BY epoch"
            ).fetchall()
            overlapping = connection.execute(
                "SELECT count(*) FROM (SELECT start_ms, lag(end_ms) OVER (PARTITION BY"
                " accelerator_id, workload_id ORDER BY start_ms, end_ms) AS before FROM"
                " usage_interval) AS s WHERE start_ms < before"
            ).fetchone()
            twice = connection.execute(
                "SELECT count(*) - count(DISTINCT (node_id, epoch, seq, record)) FROM"
                " usage_interval"
            ).fetchone()
    assert all(
        count == distinct == last - first + 1 for count, distinct, first, last in numbered
    ), numbered
    assert [first for _, _, first, _ in numbered] == [1] * len(numbered)
    assert overlapping == (0,)
    assert twice == (0,)


def wait_for_batches_of_a_revived(collector: CollectorProcess, agent: AgentProcess) -> None:
    """Wait until the database, which was killed, answers again and takes new batches."""
    deadline = time.monotonic() + 120
    while True:
        try:
            collector.wait_ready()
            wait_for_batches(collector, 2, agent)
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def agent_pending(agent: AgentProcess) -> int:
    with sqlite3.connect(
        f"file:{agent.folder / 'spool' / 'spool.sqlite'}?mode=ro", uri=True
    ) as spool:
        return spool.execute("SELECT count(*) FROM batch").fetchone()[0]

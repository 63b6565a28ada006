"""Processes are killed while batches are pushed: nothing that was acknowledged is lost, nothing is
counted twice.
"""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

import psycopg
import pytest

from fakes.batches import NOON_MS, batch
from fakes.postgres import open_folder
from fakes.processes import BIN, CollectorProcess, collector_process
from gpuledger_collector.storage.telemetry.usage_evidence import intervals

pytestmark = pytest.mark.slow

MINUTE_MS = 60_000


@pytest.fixture
def folder():
    path = open_folder("gpuledger-faults-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@dataclass
class Sender:
    """What an agent does, without its spool: sends a batch until it is acknowledged, some of them
    twice.
    """

    collector: CollectorProcess
    node: str
    acknowledged: list[int] = field(default_factory=list)
    unexpected: list[int] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        chance = random.Random(self.node)
        seq = 0
        while not self.stopping.is_set():
            seq += 1
            made = batch(seq, node=self.node, start_ms=NOON_MS + seq * MINUTE_MS)
            while (status := self.collector.send(made)) != 200:
                if status not in (None, 503):
                    self.unexpected.append(status)
                    return
                if self.stopping.wait(0.02):
                    return
            self.acknowledged.append(seq)
            if chance.random() < 0.2:
                self.collector.send(made)


def push_while(collector: CollectorProcess, faults) -> list[Sender]:
    """Senders that push while `faults` happen, and a while after."""
    senders = [Sender(collector, f"node-{number}") for number in range(4)]
    threads = [threading.Thread(target=sender.run) for sender in senders]
    for thread in threads:
        thread.start()
    try:
        for fault in faults:
            time.sleep(random.Random(str(fault)).uniform(0.2, 0.6))
            fault()
        before = sum(len(sender.acknowledged) for sender in senders)
        deadline = time.monotonic() + 120
        while sum(len(sender.acknowledged) for sender in senders) < before + 20:
            assert time.monotonic() < deadline, [sender.unexpected for sender in senders]
            time.sleep(0.05)
    finally:
        for sender in senders:
            sender.stopping.set()
        for thread in threads:
            thread.join()
    return senders


def totals_of(connection):
    """Usage intervals and samples: as batches counted them, as they are stored, apart, and packed."""
    return connection.execute(
        "SELECT (SELECT sum(usage_intervals) FROM ingest_batch), (SELECT count(*) FROM"
        f" {intervals(0)} AS s), (SELECT sum(samples) FROM ingest_batch), (SELECT count(*) FROM"
        " gpu_sample), (SELECT count(DISTINCT (accelerator_id, at_ms)) FROM gpu_sample), (SELECT"
        " coalesce(sum(rows), 0) FROM sample_archive)"
    ).fetchone()


def assert_conserved(collector: CollectorProcess, senders: list[Sender]) -> None:
    """Every acknowledged batch is in the ledger once, with each of its records once."""
    collector.wait_ready()
    # Each question by itself: a transaction that stays open holds the tables that it read, and
    # packing drops them.
    with psycopg.connect(collector.dsn(), autocommit=True) as connection:
        ledger = connection.execute(
            "SELECT n.name, seq FROM ingest_batch JOIN node n ON n.id = node_id"
        ).fetchall()
        twice = connection.execute(
            "SELECT count(*) - count(DISTINCT (node_id, epoch, seq, record)) FROM"
            f" {intervals(0)} AS s"
        ).fetchone()
        totals = totals_of(connection)
        # Samples of days long past are packed beside all this, when a collector starts: while they
        # are, both forms of them are there, and readers take each reading once. One that was killed
        # in between leaves both to the next.
        for fault in (None, kill_and_restart(collector)):
            if fault is not None and totals[2] != totals[3] + totals[5]:
                fault()
            deadline = time.monotonic() + 60
            while totals[2] != totals[3] + totals[5] and time.monotonic() < deadline:
                time.sleep(0.2)
                totals = totals_of(connection)
    acknowledged = {(sender.node, seq) for sender in senders for seq in sender.acknowledged}
    assert [sender.unexpected for sender in senders] == [[]] * len(senders)
    assert len(acknowledged) > 20
    assert acknowledged <= set(ledger)
    assert len(ledger) == len(set(ledger))
    assert twice == (0,)
    assert totals[0] == totals[1] == 2 * len(ledger)
    assert totals[2] == totals[3] + totals[5] == totals[4] + totals[5] == 12 * len(ledger)


def kill_and_restart(collector: CollectorProcess):
    def fault() -> None:
        collector.kill()
        collector.start()
        collector.wait_ready()

    return fault


def kill_database(collector: CollectorProcess, how: signal.Signals):
    def fault() -> None:
        before = collector.postmaster()
        collector.kill_postgres(how)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if collector.postmaster() != before and collector.get("/readyz")[0] == 200:
                    return
            except (OSError, ValueError, IndexError):
                pass
            time.sleep(0.05)
        raise AssertionError("the database did not come back")

    return fault


def kill_both(collector: CollectorProcess):
    def fault() -> None:
        collector.kill_postgres()
        collector.kill()
        collector.start()
        collector.wait_ready()

    return fault


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_kills_lose_nothing_and_double_nothing(folder, rounds):
    """kill -9 of the collector, of the postmaster, of both, and an immediate shutdown of Postgres,
    under load.
    """
    with collector_process(folder) as collector:
        faults = [
            kill_and_restart(collector),
            kill_database(collector, signal.SIGKILL),
            kill_both(collector),
            kill_and_restart(collector),
            kill_database(collector, signal.SIGQUIT),
        ]
        senders = push_while(collector, faults * rounds)
        assert_conserved(collector, senders)


def test_a_stop_answers_what_is_under_way_and_ends_with_0(folder):
    """SIGTERM under load: exit code 0, the database stopped, every acknowledged batch there after
    the next start.
    """
    with collector_process(folder) as collector:
        codes = []

        def stop_and_start() -> None:
            postmaster = collector.postmaster()
            codes.append(collector.stop())
            assert gone(postmaster)
            collector.start()
            collector.wait_ready()

        senders = push_while(collector, [stop_and_start])
        assert codes == [0]
        assert_conserved(collector, senders)


def gone(pid: int) -> bool:
    """Whether the process has ended; one that ended and waits to be reaped by init is given a
    moment.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_second_collector_on_the_address_says_so(folder):
    """One sentence and exit code 3 when the address is taken."""
    with collector_process(folder) as collector:
        second = subprocess.run(
            [BIN / "gpuledger", "serve"],
            env=collector.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert second.returncode == 3
    assert "GPULEDGER_LISTEN" in second.stderr
    assert "Traceback" not in second.stderr

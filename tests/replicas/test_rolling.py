"""Collectors are stopped and started in turn while agents push: nothing lost or doubled, every
request answered.
"""

import contextlib
import http.client
import signal
import threading
import time

import psycopg
import pytest

from fakes.batches import NOON_MS, batch
from fakes.replicas import Balancer, Replica, replicas, until
from fakes.truth import Node, Truth, judge
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def pushing(balancer: Balancer, folder, count: int):
    """Agents (real spool, real push) behind the balancer; their ledger of truth, and they
    themselves.
    """
    truth = Truth()
    nodes = [
        Node(truth, f"node-{number}", balancer.port, folder / f"spool-{number}")
        for number in range(count)
    ]
    threads = [threading.Thread(target=node.run, daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield truth, nodes
    finally:
        for node in nodes:
            node.end()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)


def restart(one: Replica) -> None:
    """SIGTERM; it says 503 while it still serves, closes connections after its answers, ends with
    0, and comes back.
    """
    assert one.process is not None
    kept = http.client.HTTPConnection("127.0.0.1", one.port, timeout=60)
    assert asked(kept, "/readyz") == (200, None)
    one.process.send_signal(signal.SIGTERM)
    until(lambda: one.get("/readyz")[0] == 503)
    assert asked(kept, "/healthz") == (200, "close")
    kept.close()
    assert one.process.poll() is None
    assert one.process.wait(60) == 0
    one.start()
    one.wait_ready()


def asked(connection: http.client.HTTPConnection, path: str) -> tuple[int, str | None]:
    """Status, and what the answer says of the connection."""
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.headers.get("Connection")


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(25, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_rolling_restarts_lose_nothing_and_double_nothing(folder, dsn, rounds):
    """Each collector is restarted in turn under load; the ledger, the samples and the bill are
    those of the truth.
    """
    with (
        replicas(
            folder, dsn, GPULEDGER_SHUTDOWN_DELAY_SECONDS="4"
        ) as pair,  # long enough to be seen on a slow machine
        Balancer([one.port for one in pair]) as balancer,
    ):
        with pushing(balancer, folder, 4) as (truth, nodes):
            for one in pair * rounds:
                before = len(truth.acknowledged)
                until(lambda before=before: len(truth.acknowledged) >= before + 10)
                restart(one)
        refresh(Database(dsn), ALWAYS, int(time.time() * 1000))
        verdict = judge(truth, nodes, dsn)
    assert (verdict.lost, verdict.twice, verdict.unaccounted) == ([], [], [])
    assert (
        verdict.batches["made"]
        == verdict.batches["acknowledged"]
        == verdict.batches["committed"]
        >= 20 * rounds
    )
    assert all(taken > 0 for taken in balancer.taken.values())


def test_a_request_under_way_is_answered_before_the_end(folder, dsn):
    """SIGTERM while a transaction waits for a lock: the batch is committed, its agent hears 200,
    the exit code is 0.
    """
    with replicas(folder, dsn, 1) as (one,):
        assert one.send(batch(1)) == 200
        answers = []
        with psycopg.connect(dsn) as blocker:
            blocker.execute("LOCK TABLE usage_interval IN SHARE MODE")
            made = batch(2, start_ms=NOON_MS + 60_000)
            sender = threading.Thread(target=lambda: answers.append(one.send(made)))
            sender.start()
            with psycopg.connect(dsn, autocommit=True) as watcher:
                until(
                    lambda: (
                        watcher.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone()
                        is not None
                    )
                )
            one.process.terminate()
            # The listener is closed, and still the process waits for its answer.
            until(lambda: not accepts(one))
            assert one.process.poll() is None
            assert answers == []
        sender.join(60)
        assert one.process.wait(60) == 0
        assert answers == [200]
    with psycopg.connect(dsn) as connection:
        assert connection.execute(
            "SELECT count(*), sum(usage_intervals) FROM ingest_batch"
        ).fetchone() == (2, 4)


def accepts(one: Replica) -> bool:
    try:
        return bool(one.get("/healthz"))
    except OSError:
        return False

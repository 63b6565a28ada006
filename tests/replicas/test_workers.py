"""Several workers of one collector: killed, replaced and revoked under load, and seen as one from
outside.
"""

import asyncio
import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import threading
import time
import types
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.batches import NOON_MS, batch, body_of
from fakes.postgres import fresh_database, open_folder
from fakes.processes import MSGPACK
from fakes.replicas import Replica, until
from fakes.truth import Node, Truth, judge
from gpuledger_collector.cli import build
from gpuledger_collector.listening import listen_shared, stop_listening
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import EnvironmentLacks
from gpuledger_collector.supervisor import Supervisor, Worker
from gpuledger_collector.worker_group import JOBS

pytestmark = pytest.mark.slow

WORKERS = 2


class Collector(Replica):
    """A collector of two workers."""

    def __init__(self, folder: Path, number: int, dsn: str, **settings: str) -> None:
        super().__init__(folder, number, dsn, **{"GPULEDGER_WORKERS": str(WORKERS), **settings})

    def all_serve(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return f'"workers":"{WORKERS} of {WORKERS}"' in self.get("/readyz")[1]
        return False

    def serves_without(self, gone: set[int]) -> bool:
        """Whether these processes have successors, and all serve.

        In this order: a worker answers what it last heard, so that "2 of 2" may be of a moment
        before the end of one.
        """
        pids = self.workers().values()
        return len(pids) == WORKERS and not gone & set(pids) and self.all_serve()

    def jobs(self) -> int:
        """The process id of the jobs."""
        until(self.leads)
        return self.processes()[JOBS]

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(value)


@pytest.fixture(scope="module")
def shared(postgres):
    """The database of the collector."""
    with fresh_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def collector(shared):
    """A collector whose tests leave both workers running."""
    folder = open_folder("gpuledger-workers-")
    made = Collector(folder, 1, shared)
    made.start()
    try:
        until(made.all_serve)
        yield made
    finally:
        if made.process.poll() is None:
            assert made.stop() == 0
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def pushing(port: int, folder: Path, prefix: str):
    """Agents (real spool, real push); the function adds one, and their truth and they themselves
    are given.
    """
    truth, nodes, threads = Truth(), [], []

    def add() -> None:
        name = f"{prefix}-{len(nodes)}"
        nodes.append(Node(truth, name, port, folder / name))
        threads.append(threading.Thread(target=nodes[-1].run, daemon=True))
        threads[-1].start()

    for _ in range(4):
        add()
    try:
        yield truth, nodes, add
    finally:
        for node in nodes:
            node.end()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)


def waiting_writers(connection) -> int:
    """Sessions of writers that wait for a lock, each in the middle of a transaction with batches."""
    row = connection.execute(
        "SELECT count(DISTINCT pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT"
        " l.granted AND a.application_name = 'gpuledger-ingest' AND datname = current_database()"
    ).fetchone()
    return row[0]


def settled(truth: Truth, nodes: list[Node], dsn: str):
    refresh(Database(dsn), ALWAYS, int(time.time() * 1000))
    verdict = judge(truth, nodes, dsn)
    assert (verdict.lost, verdict.twice, verdict.unaccounted) == ([], [], [])
    assert (
        verdict.batches["made"] == verdict.batches["acknowledged"] == verdict.batches["committed"]
    )


@pytest.mark.parametrize("who", ["jobs", "worker", "supervisor"])
def test_killed_in_mid_post_nothing_is_lost_or_doubled(collector, shared, tmp_path, who):
    """SIGKILL while every worker is in a transaction: what was acknowledged is there once, and all
    serve again.
    """
    with pushing(collector.port, tmp_path, who) as (truth, nodes, add):
        until(lambda: len(truth.acknowledged) >= 20)
        with (
            psycopg.connect(shared, autocommit=True) as watcher,
            psycopg.connect(shared) as blocker,
        ):
            before = collector.workers()
            victims = {"jobs": collector.jobs(), "worker": before["1"]}
            blocker.execute("LOCK TABLE usage_interval IN SHARE MODE")
            while waiting_writers(watcher) < WORKERS:
                add()  # the kernel chooses the worker of a connection: one more, until both have one
                time.sleep(0.2)
            if who == "supervisor":
                collector.kill()
                collector.start()
            else:
                os.kill(victims[who], signal.SIGKILL)
        until(lambda: collector.serves_without({victims.get(who)}))
        acknowledged = len(truth.acknowledged)
        until(lambda: len(truth.acknowledged) >= acknowledged + 20)
        assert collector.jobs() != victims["jobs"] or who == "worker"
    settled(truth, nodes, shared)
    if who != "supervisor":
        kept = set(before.values()) & set(collector.workers().values())
        assert len(kept) == WORKERS - (who == "worker")


def test_a_worker_that_starts_is_sent_nothing(collector, shared):
    """While the successor of a killed worker is stopped in its start, every new connection is
    answered by the other.
    """
    before, alive = set(collector.workers().values()), set(collector.processes().values())
    children = Path(f"/proc/{collector.process.pid}/task/{collector.process.pid}/children")

    def starting() -> set[int]:
        return {int(pid) for pid in children.read_text().split()} - alive

    os.kill(min(before), signal.SIGKILL)
    until(starting)
    (successor,) = starting()
    os.kill(successor, signal.SIGSTOP)
    try:
        for _ in range(40):
            connection = http.client.HTTPConnection("127.0.0.1", collector.port, timeout=60)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        os.kill(successor, signal.SIGCONT)
    until(collector.all_serve)
    assert successor in collector.workers().values()


def taken(*listening: socket.socket) -> list[int]:
    """How many of sixty connections to an address each of its sockets is given, and answers."""
    opened = [socket.create_connection(listening[0].getsockname(), 60) for _ in range(60)]
    counts = []
    for listener in listening:
        listener.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            counts.append(0)
            while True:
                with listener.accept()[0] as accepted:
                    accepted.sendall(b"x")
                counts[-1] += 1
    for connection in opened:
        with connection:
            assert connection.recv(1) == b"x"
    return counts


def test_sockets_of_one_address_listen_when_their_workers_do():
    """Only the first one before that; one that stopped listening is sent nothing, and answers its
    part again later.
    """
    first, second = listen_shared(Settings(listen="127.0.0.1:0"), 2)
    port = first.getsockname()[1]
    with first, second:
        assert taken(first) == [60]
        second.listen(100)
        assert min(taken(first, second)) > 0
        stop_listening(second)
        stop_listening(second)
        assert taken(first) == [60]
        with pytest.raises(EnvironmentLacks, match="is a collector running already"):
            listen_shared(Settings(listen=f"127.0.0.1:{port}"), 2)
        second.listen(100)
        assert min(taken(first, second)) > 0


def test_a_worker_that_serves_again_is_sent_what_its_dead_peers_would_be(tmp_path):
    """All died at once and went on listening; the socket of one that is still to be started is sent
    nothing then.
    """
    first, second = listen_shared(Settings(listen="127.0.0.1:0"), 2)
    with first, second:
        second.listen(100)
        supervisor = Supervisor(Settings(), [first, second], tmp_path, print)
        worker = Worker("2a", types.SimpleNamespace(pid=1), None)
        supervisor._slots[1].worker = worker

        async def hear_ready() -> None:
            lines = asyncio.StreamReader()
            lines.feed_data(b"ready\n")
            await supervisor._listen(worker, lines)

        asyncio.run(hear_ready())
        assert taken(second) == [60]


def test_a_rolling_restart_refuses_no_connection(collector, shared, tmp_path):
    """SIGHUP under load: every worker is a new process, /readyz never says no, nothing is refused
    or lost.
    """
    refused, statuses, ended = [], set(), threading.Event()

    def knock() -> None:
        while not ended.is_set():
            try:
                statuses.add(collector.get("/readyz")[0])
            except ConnectionRefusedError as error:
                refused.append(error)
            except (OSError, http.client.HTTPException):
                pass  # accepted by a worker that ended before it read the request: a client sends it again

    threads = [threading.Thread(target=knock) for _ in range(3)]
    with pushing(collector.port, tmp_path, "roll") as (truth, nodes, _):
        until(lambda: len(truth.acknowledged) >= 20)
        for thread in threads:
            thread.start()
        before = set(collector.workers().values())
        collector.process.send_signal(signal.SIGHUP)
        until(lambda: collector.serves_without(before))
        acknowledged = len(truth.acknowledged)
        until(lambda: len(truth.acknowledged) >= acknowledged + 20)
        ended.set()
        for thread in threads:
            thread.join(60)
    settled(truth, nodes, shared)
    assert refused == []
    assert statuses == {200}
    until(lambda: "all workers were replaced" in collector.log())


def test_metrics_are_those_of_all_workers(collector):
    """One answer counts the batches of both; the counts of a worker outlive it, and memory is
    stated of each.
    """
    name = 'gpuledger_ingest_batches_total{status="committed"}'
    begun = collector.metric(name)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += 1
            assert collector.send(batch(sent, "counted", start_ms=NOON_MS + sent * 60_000)) == 200

    send(40)  # a connection each: the chance that one worker takes all of them is 1 in 2^39
    assert collector.metric(name) == begun + sent
    assert collector.metric("gpuledger_ingest_answer_seconds_count") >= begun + sent
    until(collector.leads)
    assert (
        collector.metric("gpuledger_workers")
        == collector.metric("gpuledger_workers_wanted")
        == WORKERS
    )
    for number in range(1, WORKERS + 1):
        assert collector.metric(f'process_resident_memory_bytes{{worker="{number}"}}') > 2**20
    restarts, victim = collector.metric("gpuledger_worker_restarts_total"), collector.workers()["1"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: collector.serves_without({victim}))
    until(lambda: collector.metric("gpuledger_worker_restarts_total") == restarts + 1)
    assert collector.metric(name) == begun + sent
    send(40)
    assert collector.metric(name) == begun + sent


def test_a_token_revoked_under_load_is_refused_by_every_worker(collector, shared):
    """Senders on connections of their own post all the time: each hears 200 until it hears 401, and
    then only that.

    The last test of the module: from here on the collector lets nobody in without a token.
    """

    def command(*arguments: str) -> str:
        done = CliRunner().invoke(build(), ["token", *arguments, "--dsn", shared])
        assert done.exit_code == 0, done.output
        return done.output

    secret = re.search(
        r"gpl_\S+", command("create", "--role", "agent", "--node", "*", "--name", "fleet")
    ).group()
    ended, heard = threading.Event(), [[] for _ in range(12)]

    def post(number: int) -> None:
        headers = {**MSGPACK, "Authorization": f"Bearer {secret}"}
        connection = http.client.HTTPConnection("127.0.0.1", collector.port, timeout=60)
        seq = 0
        while not ended.is_set():
            seq += 1
            body = body_of(batch(seq, f"revoked-{number}", start_ms=NOON_MS + seq * 60_000))
            connection.request("POST", "/v1/batches", body, headers)
            answer = connection.getresponse()
            answer.read()
            heard[number].append(answer.status)

    threads = [threading.Thread(target=post, args=(number,)) for number in range(len(heard))]
    for thread in threads:
        thread.start()
    until(lambda: all(statuses.count(200) >= 3 for statuses in heard))
    command("revoke", "fleet")
    until(lambda: all(401 in statuses for statuses in heard))
    lengths = [len(statuses) for statuses in heard]
    until(
        lambda: all(
            len(statuses) >= length + 3 for statuses, length in zip(heard, lengths, strict=True)
        )
    )
    ended.set()
    for thread in threads:
        thread.join(60)
    for statuses in heard:
        assert set(statuses) == {200, 401}
        assert statuses == sorted(statuses)


def test_what_no_worker_can_start_with_is_said_once(folder, shared):
    """A certificate that is none: one sentence, exit code 3, and nobody is left behind."""
    (folder / "bad.pem").write_text("none")
    pem = str(folder / "bad.pem")
    bad = Collector(
        folder, 2, shared, GPULEDGER_TLS_CERTIFICATE_FILE=pem, GPULEDGER_TLS_KEY_FILE=pem
    )
    bad.start()
    assert bad.process.wait(120) == 3
    assert bad.log().count("cannot be used for TLS") == 1
    assert "Traceback" not in bad.log()

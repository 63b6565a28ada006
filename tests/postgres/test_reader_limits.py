"""What one reader may take: questions at once, their time, and nothing after it has gone; agents do
not notice.
"""

import contextlib
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fakes.batches import batch, body_of
from fakes.collector import MSGPACK, running
from fakes.replicas import until
from fakes.two_teams import token
from gpuledger_collector.api.reader_limits import (
    AT_ONCE,
    AT_ONCE_OF_ALL,
    BUSY_SWITCH_SECONDS,
    CALM_SWITCH_SECONDS,
)
from gpuledger_collector.storage import cancellation

pytestmark = pytest.mark.slow
CHARGEBACK = "/v1/chargeback?period=2026-10&by=team"
PAGE = "/statements/team/2026-10"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'billing_zone'::regclass"


class Watched:
    """A database whose billing zones are locked, so that every question about days waits in
    Postgres.
    """

    def __init__(self, dsn):
        self.dsn = dsn
        self.blocker = psycopg.connect(dsn)
        self.blocker.execute("LOCK TABLE billing_zone IN ACCESS EXCLUSIVE MODE")
        self.watcher = psycopg.connect(dsn, autocommit=True)

    def waiting(self):
        """How many sessions wait for them."""
        return self.watcher.execute(WAITING).fetchone()[0]

    def release(self):
        self.blocker.rollback()

    def close(self):
        self.blocker.close()
        self.watcher.close()


@contextlib.contextmanager
def locked_zones(dsn):
    with contextlib.closing(Watched(dsn)) as watched:
        yield watched


def bearer(dsn, role, name, **reach):
    return {"Authorization": f"Bearer {token(dsn, role, name, **reach)}"}


@pytest.mark.parametrize("path", [CHARGEBACK, PAGE])
def test_what_takes_too_long_is_503_and_ends_in_the_database(dsn, path):
    """With Retry-After and a sentence; no session goes on for it."""
    with running(dsn, page_seconds=1) as collector, locked_zones(dsn) as watched:
        status, told, answer = collector.request("GET", path)
        assert (status, told["Retry-After"]) == (503, "1")
        assert "over 1 s (page_seconds): ask for a shorter period" in str(answer)
        until(lambda: watched.waiting() == 0)
        until(lambda: collector.parts.app.state.reader_limits.readers == {})


def test_who_goes_away_cancels_the_question(dsn):
    """The statement ends, although nothing else would end it."""
    with running(dsn, page_seconds=0) as collector, locked_zones(dsn) as watched:
        with socket.create_connection(("127.0.0.1", collector.port), 60) as connection:
            connection.sendall(f"GET {CHARGEBACK} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            until(lambda: watched.waiting() == 1)
        until(lambda: watched.waiting() == 0)
        until(lambda: collector.parts.app.state.reader_limits.readers == {})


def test_one_reader_has_few_questions_at_once(dsn):
    """The rest is 429; agents, other readers and probes are answered meanwhile."""
    with (
        running(dsn, require_tokens=True, page_seconds=0) as collector,
        locked_zones(dsn) as watched,
    ):
        collector.parts.app.state.reader_limits.wait_seconds = 0.2
        viewer = bearer(dsn, "viewer", "crowd", owner={"team": "vision"})
        finance, agent = (
            bearer(dsn, "finance", "finance"),
            bearer(dsn, "agent", "node-1", node="node-1"),
        )
        ask = lambda _: collector.request("GET", CHARGEBACK, headers=viewer)  # noqa: E731
        with ThreadPoolExecutor(60) as pool:
            answers = [pool.submit(ask, number) for number in range(60)]
            until(lambda: sum(answer.done() for answer in answers) == 60 - AT_ONCE)
            assert watched.waiting() == AT_ONCE
            assert collector.request("GET", "/readyz")[0] == 200
            assert collector.request("GET", "/v1/nodes", headers=finance)[0] == 200
            assert collector.post(body_of(batch(1, "node-1")), {**agent, **MSGPACK})[0] == 200
            watched.release()
        by_status = {status: told for status, told, _ in (answer.result() for answer in answers)}
        assert set(by_status) == {200, 429}
        assert int(by_status[429]["Retry-After"]) >= 1
        refused = next(
            text for status, _, text in (answer.result() for answer in answers) if status == 429
        )
        assert refused["detail"] == f"crowd has {AT_ONCE} questions in progress: wait for an answer"
        until(lambda: collector.parts.app.state.reader_limits.readers == {})


def test_all_readers_leave_threads_for_others(dsn):
    """Probes and agents are answered while more readers ask than there are threads."""
    with (
        running(dsn, require_tokens=True, page_seconds=0) as collector,
        locked_zones(dsn) as watched,
    ):
        collector.parts.app.state.reader_limits.wait_seconds = 0.2
        readers = [bearer(dsn, "finance", f"finance-{number}") for number in range(15)]
        agent = bearer(dsn, "agent", "node-1", node="node-1")
        with ThreadPoolExecutor(60) as pool:
            ask = lambda number: collector.request("GET", CHARGEBACK, headers=readers[number % 15])  # noqa: E731
            answers = [pool.submit(ask, number) for number in range(60)]
            until(lambda: sum(answer.done() for answer in answers) == 60 - AT_ONCE_OF_ALL)
            assert watched.waiting() == AT_ONCE_OF_ALL
            assert collector.request("GET", "/readyz")[0] == 200
            assert collector.request("GET", "/metrics")[0] == 200
            assert collector.post(body_of(batch(1, "node-1")), {**agent, **MSGPACK})[0] == 200
            watched.release()
        assert {answer.result()[0] for answer in answers} == {200, 503}


def test_probes_need_no_thread_of_readers(dsn, monkeypatch):
    """/readyz answers while every thread of synchronous routes is taken."""
    monkeypatch.setattr("gpuledger_collector.api.reader_limits.AT_ONCE", 100)
    with running(dsn, page_seconds=0) as collector, locked_zones(dsn) as watched:
        limits = collector.parts.app.state.reader_limits
        limits.turns._value = 100
        threads = [
            threading.Thread(target=collector.request, args=("GET", CHARGEBACK)) for _ in range(45)
        ]
        for thread in threads:
            thread.start()
        until(lambda: watched.waiting() == 40)
        assert collector.request("GET", "/readyz")[0] == 200
        watched.release()
        for thread in threads:
            thread.join(60)


def test_one_large_answer_at_a_time_is_in_memory(dsn, monkeypatch):
    """Another one waits for its turn, and no longer than a page may take; its thread notices that
    it was left.
    """
    monkeypatch.setattr(cancellation, "LARGE_LINES", -1)
    with running(dsn, page_seconds=1) as collector:
        limits = collector.parts.app.state.reader_limits
        with limits.large:
            status, told, answer = collector.request("GET", CHARGEBACK)
            assert (status, told["Retry-After"]) == (503, "1")
            assert "over 1 s (page_seconds)" in str(answer)
            until(lambda: limits.readers == {})
        for _ in range(3):
            assert collector.request("GET", CHARGEBACK)[0] == 200
        until(lambda: not limits.large.locked())


@pytest.mark.parametrize("path", [CHARGEBACK, PAGE])
def test_an_answer_has_a_number_of_lines(dsn, monkeypatch, path):
    """A sentence, before they are objects; a command has no limit."""
    monkeypatch.setattr(cancellation, "MOST_LINES_IN_MEMORY", -1)
    with running(dsn) as collector:
        status, _, answer = collector.request("GET", path)
        assert status == 422
        assert "lines of the ledger: ask for a shorter period or fewer dimensions" in str(answer)
    assert cancellation.line_limit() == ""


def test_threads_take_short_turns_while_readers_are_answered(dsn):
    """The event loop, which answers agents, waits for each of them at each step."""
    with running(dsn, page_seconds=0) as collector, locked_zones(dsn) as watched:
        limits = collector.parts.app.state.reader_limits
        assert sys.getswitchinterval() == pytest.approx(CALM_SWITCH_SECONDS)
        thread = threading.Thread(target=collector.request, args=("GET", CHARGEBACK))
        thread.start()
        until(lambda: watched.waiting() == 1)
        assert sys.getswitchinterval() == pytest.approx(BUSY_SWITCH_SECONDS)
        watched.release()
        thread.join(60)
        until(lambda: limits.readers == {})
        assert sys.getswitchinterval() == pytest.approx(CALM_SWITCH_SECONDS)

"""GET /live on a real collector: one statement for all who watch, each told what it may see, bounded,
and ended at once when anything ends it.
"""

import contextlib
import json
import os
import signal
import socket
import time
from dataclasses import replace

import psycopg
import pytest

from fakes.collector import running
from fakes.processes import collector_process
from fakes.replicas import until
from fakes.two_teams import FOREIGN, NOW_MS, OWN, finding_of, token
from gpuledger_collector.api import live
from gpuledger_collector.services.live import LiveWatch
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings

PATIENCE_S = 60


class Watching:
    """A reader of the stream over a socket of its own."""

    def __init__(self, port, secret="", path="/live", method="GET", address="127.0.0.1", **headers):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (address, 0))
        lines = [f"{method} {path} HTTP/1.1", "Host: x"]
        lines += [f"Authorization: Bearer {secret}"] if secret else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.text = self.socket.makefile("r", newline="")
        self.status = int(self.text.readline().split()[1])
        self.headers = {}
        while line := self.text.readline().strip():
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value

    def event(self, *names):
        """The next event of one of these names, and its data."""
        name = ""
        while True:
            line = self.text.readline()
            assert line, "the stream has ended"
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            if line.startswith("data: ") and name in names:
                return name, json.loads(line.removeprefix("data: "))

    def rest(self):
        """What else comes until the connection or the answer ends."""
        lines = []
        for line in self.text:
            if line == "0\r\n":
                break
            lines.append(line)
        return "".join(lines)

    def close(self):
        self.text.close()
        self.socket.close()


@contextlib.contextmanager
def watching(port, *arguments, **options):
    with contextlib.closing(Watching(port, *arguments, **options)) as reader:
        yield reader


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Looks follow each other soon."""
    monkeypatch.setattr(live.LiveHub.__init__, "__defaults__", (0.2,))


@pytest.fixture
def looks(monkeypatch):
    """How often the fleet was looked at."""
    taken, look = [], LiveWatch.look

    def count(watch, now_ms):
        taken.append(now_ms)
        return look(watch, now_ms)

    monkeypatch.setattr(LiveWatch, "look", count)
    return taken


def insert_findings(dsn, team, *keys, evidence=None):
    found = replace(finding_of(team, "idle"), evidence=evidence or {})
    with psycopg.connect(dsn) as connection:
        findings.upsert(connection, [replace(found, key=key) for key in keys])


def streams(collector):
    """How many places are taken, as Prometheus reads it."""
    text = collector.request("GET", "/metrics")[2]
    (line,) = [line for line in text.splitlines() if line.startswith("gpuledger_live_streams ")]
    return float(line.split()[1])


def test_all_who_watch_are_told_by_one_statement(dsn, looks):
    """Two viewers cost what one costs: a look is one statement, and both hear the same look."""
    with running(dsn) as collector:
        with watching(collector.port) as one, watching(collector.port) as other:
            assert one.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert one.headers["cache-control"] == "no-store, no-transform"
            assert one.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in one.headers
            for _ in range(3):
                heard = {one.event("look")[1]["at_ms"] for _ in range(4)}
                assert heard & {other.event("look")[1]["at_ms"] for _ in range(4)}
            with psycopg.connect(dsn) as connection:
                (sessions,) = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gpuledger-live'"
                ).fetchone()
            assert sessions == 1
            insert_findings(dsn, OWN, "new")
            for reader in (one, other):
                assert reader.event("change")[1]["text"] == "1 new idle GPU"
        until(lambda: streams(collector) == 0)
        count = len(looks)
        time.sleep(1)
        assert len(looks) <= count + 1  # nobody watches, nobody asks


def test_a_look_is_one_statement(dsn, monkeypatch):
    """Counted where the driver sends them."""
    watch, sent = LiveWatch(Database(dsn)), []
    watch.look(NOW_MS)
    execute = psycopg.Cursor.execute
    monkeypatch.setattr(
        psycopg.Cursor,
        "execute",
        lambda cursor, query, *more, **options: (
            sent.append(query) or execute(cursor, query, *more, **options)
        ),
    )
    watch.look(NOW_MS)
    assert len(sent) == 1
    watch.close()


def test_a_team_lead_is_told_of_its_own_part(dsn):
    """Neither a finding of others, nor what nobody holds, nor nodes, nor when evidence came."""
    with running(dsn) as collector:
        viewer = token(dsn, "viewer", owner={"team": OWN})
        finance = token(dsn, "finance")
        with (
            watching(collector.port, viewer) as lead,
            watching(collector.port, finance) as all_of_it,
            watching(collector.port, finance, f"/live?team={OWN}") as part,
        ):
            for reader in (lead, all_of_it, part):
                reader.event("look")
            insert_findings(dsn, FOREIGN, "foreign")
            assert all_of_it.event("change")[1]["text"] == "1 new idle GPU"
            insert_findings(dsn, OWN, "own")
            # The first thing that either hears of is its own.
            for reader in (lead, part):
                facts = reader.event("change")[1]
                assert facts["text"] == "1 new idle GPU"
                assert set(facts) == {"at_ms", "rest", "text"}
            assert "newest_ms" in all_of_it.event("change")[1]
        assert collector.request("GET", f"/live?team={FOREIGN}", headers=bearer(viewer))[0] == 403
        agent = token(dsn, "agent", node="n")
        assert collector.request("GET", "/live", headers=bearer(agent))[0] == 403
        assert collector.request("GET", "/live")[0] == 401


def test_a_narrowed_stream_is_told_of_its_place(dsn):
    """A pool, the pool without a name, a node."""
    with running(dsn) as collector, contextlib.ExitStack() as stack:
        paths = ("/live?pool=p", "/live?pool=(unnamed)", "/live?node=n", "/live")
        pool, unnamed, node, whole = (
            stack.enter_context(watching(collector.port, path=path)) for path in paths
        )
        for reader in (pool, unnamed, node, whole):
            reader.event("look")
        insert_findings(dsn, OWN, "first", evidence={"pool": "p", "node": "n"})
        for reader in (pool, node, whole):
            assert reader.event("change")[1]["text"] == "1 new idle GPU"
        insert_findings(dsn, OWN, "second", "third", evidence={"pool": "", "node": "m"})
        for reader in (unnamed, whole):
            assert reader.event("change")[1]["text"] == "2 new idle GPUs"
        insert_findings(dsn, OWN, "4th", "5th", "6th", evidence={"pool": "p", "node": "n"})
        for reader in (pool, node, whole):
            assert reader.event("change")[1]["text"] == "3 new idle GPUs"


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def test_streams_are_bounded(dsn, monkeypatch):
    """Of one reader and of all, with Retry-After; who leaves or is killed frees its place."""
    monkeypatch.setattr(live, "MOST_STREAMS", 3)
    monkeypatch.setattr(live, "MOST_OF_READER", 2)
    with running(dsn) as collector, contextlib.ExitStack() as stack:
        secrets = [token(dsn, "finance", name) for name in ("a", "b", "c")]
        first = [stack.enter_context(watching(collector.port, secrets[0])) for _ in range(2)]
        status, headers, answer = collector.request("GET", "/live", headers=bearer(secrets[0]))
        assert (status, headers["Retry-After"]) == (429, "30")
        assert answer["detail"] == "a has 2 live pages open: close one"
        stack.enter_context(watching(collector.port, secrets[1]))
        status, headers, _ = collector.request("GET", "/live", headers=bearer(secrets[2]))
        assert (status, headers["Retry-After"]) == (503, "30")
        assert streams(collector) == 3
        # Pages and probes are answered all the same.
        assert collector.request("GET", "/readyz")[0] == 200
        assert collector.request("GET", "/", headers=bearer(secrets[2]))[0] == 200
        # A killed browser: its machine answers with a reset.
        first[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        first[0].close()
        until(lambda: streams(collector) == 2)
        with watching(collector.port, secrets[2]) as reader:
            assert reader.status == 200
            reader.event("look")


def test_readers_with_the_token_of_a_file_are_bounded_by_address(dsn, monkeypatch, tmp_path):
    """One of them takes no place of the others; a token of one's own counts wherever it is used."""
    monkeypatch.setattr(live, "MOST_OF_READER", 1)
    path = tmp_path / "tokens"
    path.write_text("shared-by-all-of-finance\n")
    with running(dsn, reader_token_file=path) as collector, contextlib.ExitStack() as stack:

        def status(secret, address):
            reader = Watching(collector.port, secret, address=address)
            return stack.enter_context(contextlib.closing(reader)).status

        addresses = ("127.0.0.1", "127.0.0.2", "127.0.0.1")
        assert [status("shared-by-all-of-finance", address) for address in addresses] == [
            200,
            200,
            429,
        ]
        own = token(dsn, "finance", "own")
        assert [status(own, address) for address in addresses] == [200, 429, 429]


def test_opening_thousands_takes_no_more(dsn):
    """A reader that opens and leaves them: the bound holds, and afterwards nothing is left."""
    with running(dsn) as collector:
        statuses = []
        for _ in range(4):
            with contextlib.ExitStack() as stack:
                for _ in range(60):
                    statuses.append(stack.enter_context(watching(collector.port)).status)
                assert streams(collector) == live.MOST_OF_READER
            until(lambda: streams(collector) == 0)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) == 4 * live.MOST_OF_READER
        with watching(collector.port) as reader:
            reader.event("look")


def test_who_may_no_longer_read_is_told_nothing_more(dsn):
    """A revoked token ends its stream."""
    with running(dsn) as collector:
        secret = token(dsn, "finance", "leaving")
        with watching(collector.port, secret) as reader:
            reader.event("look")
            with psycopg.connect(dsn) as connection:
                tokens.revoke(connection, "leaving", NOW_MS)
            reader.rest()


def test_a_stream_ends_when_its_life_does(dsn, monkeypatch):
    """The answer is complete, so that the browser comes back."""
    monkeypatch.setattr(live, "LIFE_SECONDS", 1.0)
    with running(dsn) as collector:
        with watching(collector.port) as reader:
            assert reader.event("look")[0] == "look"
            reader.rest()
        until(lambda: streams(collector) == 0)


def test_silence_is_filled(dsn, monkeypatch):
    """With comments, while there is no look."""
    monkeypatch.setattr(live.LiveHub.__init__, "__defaults__", (3600.0,))
    monkeypatch.setattr(live, "SILENCE_SECONDS", 0.2)
    with running(dsn) as collector, watching(collector.port) as reader:
        while ": nothing to say" not in reader.text.readline():
            pass


def test_a_database_that_fails_ends_streams(dsn, monkeypatch):
    """They come back with the next look that succeeds."""
    look = LiveWatch.look
    with running(dsn) as collector, watching(collector.port) as reader:
        reader.event("look")

        def fail(watch, now_ms):
            raise psycopg.OperationalError("gone")

        monkeypatch.setattr(LiveWatch, "look", fail)
        reader.rest()
        monkeypatch.setattr(LiveWatch, "look", look)
        with watching(collector.port) as back:
            back.event("look")


def test_head_and_foreign_pages(dsn):
    """A HEAD ends at once; a page of another host takes no place."""
    with running(dsn) as collector:
        status, headers, text = collector.request("HEAD", "/live")
        assert (status, text) == (200, "")
        assert headers["Content-Type"].startswith("text/event-stream")
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert collector.request("GET", "/live", headers=foreign)[0] == 403
        assert streams(collector) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_stopping_ends_streams_at_once(tmp_path, how):
    """An open stream delays neither the drain nor the exit."""
    with (
        collector_process(tmp_path, GPULEDGER_DRAIN_SECONDS="60") as collector,
        watching(collector.port) as reader,
    ):
        reader.event("look")
        began = time.monotonic()
        os.kill(collector.process.pid, how)
        reader.rest()
        assert time.monotonic() - began < 10
        assert collector.process.wait(30) == 0

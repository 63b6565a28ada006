"""What one sender may take: quotas by node, time for heads and bodies, connections; and that memory
stays flat.
"""

import contextlib
import os
import random
import socket
import threading
import time
from pathlib import Path

import psycopg
import pytest

from fakes.batches import NOON_MS, batch, body_of, samples
from fakes.collector import JSON, MSGPACK, running
from fakes.prometheus import WRITE, headers, one, scrape, snappy
from fakes.replicas import until
from gpuledger_agent.push import Reply, reaction
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.api import limits, queue
from gpuledger_collector.api.intake import MIN_BYTES_PER_SECOND
from gpuledger_collector.api.limits import BURST_SECONDS, OverQuota, Quota
from gpuledger_collector.storage.access import tokens

pytestmark = pytest.mark.slow


def large(seq: int, node: str = "node-1"):
    """A batch with 1,000 samples."""
    instants = range(NOON_MS, NOON_MS + 500 * 1000, 1000)
    return batch(seq, node, samples=samples(2, instants, gpu_utilization_ratio=[0.5] * 1000))


def test_a_bucket_fills_at_its_rate():
    """It holds a minute; a debt is waited for and no longer; another name is not concerned."""
    now = [0.0]
    quota = Quota(10, "samples", lambda: now[0])
    quota.take("a", 10 * BURST_SECONDS + 50)
    with pytest.raises(OverQuota) as refused:
        quota.check("a")
    assert refused.value.seconds == 5
    assert 5 <= refused.value.retry_after <= 7
    quota.check("b")
    now[0] = 4.9
    with pytest.raises(OverQuota):
        quota.check("a")
    now[0] = 5.1
    quota.check("a")
    now[0] = 1e6
    quota.take("a", 10 * BURST_SECONDS + 1)
    with pytest.raises(OverQuota, match="a sends more than 10 samples a second"):
        quota.check("a")


def test_names_without_end_take_no_memory(monkeypatch):
    """The least lately used bucket makes room."""
    monkeypatch.setattr(limits, "MAX_BUCKETS", 100)
    quota = Quota(1, "samples")
    for number in range(1000):
        quota.take("busy", 0)
        quota.take(f"node-{number}", 1000)
    assert len(quota._buckets) == 100
    assert "busy" in quota._buckets


def test_a_node_over_its_quota_is_asked_to_come_back(dsn):
    """429 with Retry-After, which the agent follows; nothing of it is committed, and another node
    is served.
    """
    with running(dsn, node_samples_per_second=20) as collector:
        collector.parts.intake.quotas.samples.steady = lambda: 0.0  # however long the requests take
        statuses = [collector.send(large(seq))[0] for seq in (1, 2)]
        assert statuses == [200, 200]
        status, told, answer = collector.request("POST", "/v1/batches", body_of(large(3)), MSGPACK)
        assert status == 429
        assert answer == {
            "status": "refused",
            "detail": "node-1 sends more than 20 samples a second",
        }
        assert 40 <= int(told["Retry-After"]) <= 60
        found = reaction(Reply(status, {"retry-after": told["Retry-After"]}, b""), 0)
        assert (found.step, found.wait_s) == ("retry", float(told["Retry-After"]))
        assert collector.send(large(1, "node-2"))[0] == 200
        assert (
            'ingest_batches_total{status="throttled"} 1.0'
            in collector.request("GET", "/metrics")[2]
        )


def test_bytes_have_a_quota_too(dsn):
    """Bodies are counted as they are sent."""
    with running(dsn, node_bytes_per_second=10) as collector:
        collector.parts.intake.quotas.bytes.steady = lambda: 0.0
        statuses = [collector.send(large(seq))[0] for seq in (1, 2, 3)]
    assert statuses == [200, 429, 429]


def test_a_token_of_a_node_is_refused_before_its_body_comes(dsn):
    """A node that owes is answered without a byte of its body being read."""
    with psycopg.connect(dsn) as connection:
        token = Token(0, "node-1", "agent", "node-1", None, "", made_ms=round(time.time() * 1000))
        secret = tokens.create(connection, token)[1]
    with running(dsn, node_bytes_per_second=1, require_tokens=True) as collector:
        bearer = {**MSGPACK, "Authorization": f"Bearer {secret}"}
        assert collector.post(body_of(large(1)), bearer)[0] == 200
        with socket.create_connection(("127.0.0.1", collector.port), 60) as connection:
            head = "".join(f"{name}: {value}\r\n" for name, value in bearer.items())
            connection.sendall(
                f"POST /v1/batches HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 5000\r\n\r\n".encode()
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 429")


def test_remote_write_over_its_quota_is_kept_by_prometheus(dsn):
    """503 with Retry-After, not 429: that would be dropped."""
    with running(dsn, remote_write_samples_per_second=1) as collector:
        # A bucket that fills while the requests go would take more.
        collector.parts.remote.quota.steady = lambda: 0.0
        answers = []
        for at_ms in range(NOON_MS, NOON_MS + 100_000, 1000):
            body = snappy(one(scrape(at_ms)))
            status, told, text = collector.request("POST", WRITE, body, headers())
            answers.append(status)
            if status != 204:
                break
        assert answers == [204] * 16 + [503]
        assert "more than 1 samples a second" in text
        assert int(told["Retry-After"]) >= 1


@pytest.fixture
def impatient(dsn, monkeypatch):
    """A collector that waits a second for a head and a body."""
    monkeypatch.setattr(limits.BoundedProtocol, "head_seconds", 1.0)
    monkeypatch.setattr(limits.BoundedProtocol, "body_seconds", 3.0)
    with running(dsn) as collector:
        collector.parts.intake.grace_seconds = 1.0
        yield collector


SLOW = {
    "nothing at all": (b"", b""),
    "half a head": (b"POST /v1/batches HTTP/1.1\r\nHost: ", b"x"),
    "a head without end": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", b"y"),
    "empty lines": (b"", b"\r\n"),
    "a body": (
        (
            b"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Type:"
            b" application/msgpack\r\nContent-Length: 1000000\r\n\r\n"
        ),
        b"z",
    ),
    "a body in chunks": (
        (
            b"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Type: application/msgpack\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        ),
        b"1\r\nz\r\n",
    ),
    "a body of remote write": (
        (
            b"POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Encoding: snappy\r\nContent-Length: 1000000\r\n\r\n"
        ),
        b"z",
    ),
    "a body of another route": (
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
        b"z",
    ),
}


def drip(port: int, first: bytes, again: bytes, seconds: float) -> float:
    """Sends `first`, then `again` ten times a second, until the connection is closed; after how
    many seconds.
    """
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.settimeout(0.1)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(first)
            while time.monotonic() - begun < seconds:
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(4096):
                        break
                connection.sendall(again)
    return time.monotonic() - begun


def test_slow_senders_are_expired(impatient):
    """Heads and bodies of a byte now and then, or of nothing: each connection is over in seconds."""
    lasted: dict[str, float] = {}
    threads = [
        threading.Thread(
            target=lambda name=name: lasted.update({name: drip(impatient.port, *SLOW[name], 60)})
        )
        for name in SLOW
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lasted) == len(SLOW)
    assert {name: seconds for name, seconds in lasted.items() if seconds > 30} == {}


def test_a_head_is_bounded(impatient):
    """A megabyte of header is not kept."""
    with socket.create_connection(("127.0.0.1", impatient.port), 60) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1_000_000)
            connection.sendall(b"y" * 1_000_000)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100)[9:12] in {b"", b"400", b"431"}


@pytest.fixture
def occupied(dsn, monkeypatch):
    """A collector, a connection to it whose request is in progress, and what ends that."""
    monkeypatch.setattr(queue, "SESSION", "-c lock_timeout=20000")
    body = b'{"source": "s", "at": 1760000000, "waiting": []}'
    head = (
        "POST /v1/queue HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length:"
        f" {len(body)}\r\n\r\n"
    )
    with running(dsn) as collector, psycopg.connect(dsn) as blocker:
        blocker.execute("LOCK TABLE queue_reading IN ACCESS EXCLUSIVE MODE")
        with socket.create_connection(("127.0.0.1", collector.port), 30) as connection:
            connection.sendall(head.encode() + body)
            until(lambda: collector.parts.intake.in_progress)
            yield collector, connection, blocker.rollback


def test_a_head_behind_a_request_in_progress_is_bounded(occupied):
    """It is not kept while an answer is computed either, and nobody else waits for it."""
    collector, connection, _ = occupied
    connection.sendall(b"GET / HTTP/1.1\r\nX: ")
    with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        connection.sendall(b"y" * 16_000_000)  # more than sockets hold
    assert collector.request("GET", "/healthz")[0] == 200


@pytest.mark.parametrize("path", ["/healthz", "/v1/batches", "/v1/disputes"])
@pytest.mark.parametrize("trailer", [b"x: y\r\n", b"y"])
def test_trailers_are_bounded(occupied, path, trailer):
    """What follows the last chunk of a body is kept as headers are: without a bound, a connection
    without a token took 50 MB of memory a second.
    """
    collector, _, _ = occupied
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", collector.port), 60) as connection:
        connection.sendall(head.encode() + b"2\r\n{}\r\n0\r\n")
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            connection.sendall(trailer * (16_000_000 // len(trailer)))
    assert collector.request("GET", "/healthz")[0] == 200


def test_requests_behind_one_in_progress_are_answered_in_turn(occupied):
    """Complete heads are not counted as one that is not, however many there are."""
    _, connection, release = occupied
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 3000 + b"\r\n\r\n"
    sender = threading.Thread(target=connection.sendall, args=(request * 200,))
    sender.start()
    time.sleep(0.5)  # some of them are read meanwhile
    release()
    answers = b""
    while answers.count(b"HTTP/1.1 200") < 201:
        part = connection.recv(1 << 16)
        assert part
        answers += part
    sender.join()


def test_a_slow_but_steady_body_is_taken(impatient, monkeypatch):
    """What comes faster than the least rate may take longer than one that does not: here more than
    a second.
    """
    monkeypatch.setattr(limits.BoundedProtocol, "body_seconds", 60.0)
    instants, chance = range(NOON_MS, NOON_MS + 500 * 1000, 1000), random.Random(1)
    noise = samples(2, instants, gpu_utilization_ratio=[chance.random() for _ in range(1000)])
    body = body_of(batch(1, samples=noise))
    assert len(body) > 4 * MIN_BYTES_PER_SECOND
    head = "".join(f"{name}: {value}\r\n" for name, value in MSGPACK.items())
    with socket.create_connection(("127.0.0.1", impatient.port), 60) as connection:
        connection.sendall(
            f"POST /v1/batches HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
        )
        step = len(body) // 8 + 1
        for place in range(0, len(body), step):
            connection.sendall(body[place : place + step])
            time.sleep(0.2)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_too_many_connections_are_closed(dsn):
    """Those beyond the bound are closed at once; those within are served."""
    with running(dsn, max_connections=20) as collector, contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", collector.port), 60))
            for _ in range(20)
        ]
        held[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert held[0].recv(100).startswith(b"HTTP/1.1 200")
        with (
            socket.create_connection(("127.0.0.1", collector.port), 60) as other,
            contextlib.suppress(OSError),
        ):
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert other.recv(100) == b""


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_thousand_slow_senders_take_no_memory(dsn):
    """1,000 connections that send heads and bodies byte by byte: under 40 MiB in all, and others
    are served.
    """
    with running(dsn) as collector, contextlib.ExitStack() as stack:
        collector.send(batch())
        before = resident_mib()
        kinds = list(SLOW.values())
        held = []
        for number in range(1000):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", collector.port), 60)
            )
            connection.sendall(kinds[number % len(kinds)][0])
            held.append(connection)
        for _ in range(5):
            for number, connection in enumerate(held):
                with contextlib.suppress(OSError):
                    connection.sendall(kinds[number % len(kinds)][1])
            begun = time.monotonic()
            assert collector.request("GET", "/healthz")[0] == 200
            assert time.monotonic() - begun < 20
        assert resident_mib() - before < 40


def test_a_large_body_of_any_route_is_refused_without_a_token(dsn):
    """Readers are asked for their token before a byte is read, a run's report is answered after its
    first part.
    """
    part = b"[" * limits.MAX_BODY_BYTES + b"["
    chunk = b"%x\r\n%b\r\n" % (len(part), part)
    with running(dsn, require_tokens=True) as collector:
        expected = {
            "/v1/disputes": b"401",
            "/v1/disputes/1/answers": b"401",
            "/v1/runs/x/progress": b"413",
        }
        for path, status in expected.items():
            for framing, sent in (
                ("Content-Length: 100000000", part),
                ("Transfer-Encoding: chunked", chunk),
            ):
                with socket.create_connection(("127.0.0.1", collector.port), 30) as connection:
                    head = (
                        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type:"
                        f" application/json\r\n{framing}\r\n\r\n"
                    )
                    connection.sendall(head.encode() + sent)
                    assert connection.recv(100).startswith(b"HTTP/1.1 " + status), (path, framing)
            assert collector.request("POST", path, b"{}" + b" " * (len(part) - 3), JSON)[0] in {
                401,
                422,
            }

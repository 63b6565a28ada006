"""POST /v1/batches as servers and clients may put it: in parts, at once, under a prefix, broken
off.
"""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import time

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from fakes.batches import NOON_MS, batch, body_of
from fakes.collector import running
from fakes.postgres import fresh_database

HEAD = "Host: x\r\nContent-Type: application/msgpack\r\nContent-Encoding: zstd\r\n"


@pytest.fixture(scope="module")
def collector(postgres):
    with fresh_database(postgres) as dsn, running(dsn) as started:
        yield started


def post(body, head=HEAD, length=True):
    announced = f"Content-Length: {len(body)}\r\n" if length else ""
    return f"POST /v1/batches HTTP/1.1\r\n{head}{announced}\r\n".encode() + body


def talk(collector, *parts, pause=0.05, answers=1):
    """Send these parts one after the other; the answers: status and JSON (None without a body)."""
    with socket.create_connection(("127.0.0.1", collector.port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        reader = connection.makefile("rb")
        return [read(reader) for _ in range(answers)]


def read(reader):
    status = int(reader.readline().split()[1])
    headers = {}
    while line := reader.readline().strip():
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    body = reader.read(int(headers.get("content-length", 0)))
    return status, json.loads(body) if body else None


def of(seq, **changes):
    return body_of(batch(seq, "http", start_ms=NOON_MS + seq * 60_000, **changes))


COMMITTED = (200, {"status": "committed"})


def test_one_after_the_other_without_waiting(collector):
    """Requests that come in one packet, and one that begins in it, are each answered in order."""
    one, two, three = post(of(1)), post(of(2)), post(of(3))
    assert talk(collector, one + two + three[:100], three[100:], answers=3) == [COMMITTED] * 3


@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_body_in_parts(collector, size):
    """However a body is cut, also within its head and with its length unknown, it is the same
    batch.
    """
    whole = post(of(10 + size))
    parts = [whole[:30], *(whole[at : at + size * 50] for at in range(30, len(whole), size * 50))]
    assert talk(collector, *parts, pause=0.002) == [COMMITTED]
    body = of(1000 + size)
    chunks = [body[at : at + size * 50] for at in range(0, len(body), size * 50)]
    sent = [f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks]
    head = post(b"", HEAD + "Transfer-Encoding: chunked\r\n", length=False)
    assert talk(collector, head, *sent, b"0\r\n\r\n", pause=0.002) == [COMMITTED]
    assert talk(collector, head + b"".join(sent) + b"0\r\n\r\n") == [(200, {"status": "duplicate"})]


def test_a_sender_that_waits_to_be_asked(collector):
    """Expect: 100-continue is answered, and the body then taken."""
    body = of(20)
    head = post(body, HEAD + "Expect: 100-continue\r\n")[: -len(body)]
    with socket.create_connection(("127.0.0.1", collector.port), timeout=10) as connection:
        connection.sendall(head)
        reader = connection.makefile("rb")
        assert read(reader) == (100, None)
        connection.sendall(body)
        assert read(reader) == COMMITTED


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_are_not_allowed(collector, method):
    """A batch is posted and nothing else."""
    connection = http.client.HTTPConnection("127.0.0.1", collector.port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, "/v1/batches")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("head", [HEAD, HEAD + "Transfer-Encoding: chunked\r\n"])
def test_an_empty_body_is_refused(collector, head):
    """Nothing is no batch, and the connection lives."""
    empty = post(b"", head) if head == HEAD else post(b"0\r\n\r\n", head, length=False)
    (status, answer), then = talk(collector, empty, post(of(30 + len(head))), answers=2)
    assert (status, answer["status"]) == (400, "refused")
    assert then == COMMITTED


def test_of_two_headers_of_a_name_the_first_counts(collector):
    """As everywhere else in the collector."""
    twice = (
        HEAD + "Content-Type: text/plain\r\nX-GPULedger-Sent-At: 1\r\nX-GPULedger-Sent-At: no\r\n"
    )
    assert talk(collector, post(of(40), twice)) == [COMMITTED]
    [(status, _)] = talk(collector, post(of(41), "Content-Type: text/plain\r\n" + HEAD))
    assert status == 415


def test_a_sender_that_goes_holds_nothing(collector):
    """A body that breaks off leaves no bytes under way, and no batch."""
    body = of(50)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", collector.port), timeout=10) as connection:
            connection.sendall(post(body)[:-40])
            time.sleep(0.02)
    end = time.monotonic() + 5
    while collector.parts.intake.in_progress and time.monotonic() < end:
        time.sleep(0.01)
    assert collector.parts.intake.in_progress == 0
    assert talk(collector, post(body)) == [COMMITTED]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/batches",
        "/api/v1/write",
        "/v1/queue",
        "/v1/inference",
        "/v1/disputes",
        "/v1/runs/x/progress",
    ],
)
def test_a_sender_that_goes_writes_no_traceback(collector, caplog, path):
    """Threat: a log that anybody fills.

    A body that breaks off is no fault of ours, on any route that takes one.
    """
    kind = "application/x-protobuf" if "write" in path else "application/json"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Encoding: "
    coded = "snappy" if "write" in path else "identity"
    with socket.create_connection(("127.0.0.1", collector.port), timeout=10) as connection:
        connection.sendall(f"{head}{coded}\r\nContent-Length: 5000\r\n\r\n{{".encode())
        time.sleep(0.3)
    time.sleep(0.7)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def ask(app, scope, *messages):
    """What an ASGI application answers."""
    sent, left = [], list(messages)

    async def receive():
        return left.pop(0) if left else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(body)


def scope_of(path, root_path=""):
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": root_path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/msgpack"), (b"content-encoding", b"zstd")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


@pytest.mark.parametrize(
    ("mount", "path", "root_path"),
    [
        ("", "/v1/batches", ""),
        ("", "/ledger/v1/batches", "/ledger"),
        ("/ledger", "/ledger/v1/batches", ""),
    ],
)
def test_under_a_prefix(collector, mount, path, root_path):
    """Behind a proxy's prefix, or mounted in another application, the answers are the same as
    without.
    """
    app = (
        Starlette(routes=[Mount(mount, app=collector.parts.app)]) if mount else collector.parts.app
    )
    body = of(60 + len(mount) + 10 * len(root_path))
    halves = (
        {"type": "http.request", "body": body[:50], "more_body": True},
        {"type": "http.request", "body": body[50:]},
    )
    assert (
        asyncio.run(asyncio.wait_for(ask(app, scope_of(path, root_path), *halves), 10)) == COMMITTED
    )
    before = counted(collector)
    status, answer = asyncio.run(
        asyncio.wait_for(ask(app, scope_of(path, root_path), halves[0]), 10)
    )
    assert (status, answer["detail"]) == (400, "the sender disconnected")
    # Refused batches are an alarm; one whose sender had no patience comes again.
    after = counted(collector)
    assert after == before | {"disconnected": before["disconnected"] + 1}


def counted(collector):
    """Batches by their outcome."""
    found = re.findall(
        r'batches_total\{status="(\w+)"\} (\S+)', collector.request("GET", "/metrics")[2]
    )
    return {status: float(count) for status, count in found}


def test_the_metrics_say_that_the_database_is_up(collector):
    """Also where nobody asks /readyz; it was an alarm on every such installation."""
    assert "\ngpuledger_database_up 1.0\n" in collector.request("GET", "/metrics")[2]

"""Anybody on a node may ask its agent for /metrics: that takes none of what the agent needs for
itself.
"""

import contextlib
import gzip
import socket
import threading
import urllib.request
from functools import partial

import pytest

from fakes.hostile_pages import drip_bytes
from fakes.ports import free_port
from fakes.replicas import until
from gpuledger_agent import daemon, exposition
from gpuledger_agent.exposition import MAX_CONNECTIONS, MAX_HEAD_BYTES, MetricsPage, serve
from gpuledger_agent.settings import Settings

SCRAPE = b"GET /metrics HTTP/1.0\r\n\r\n"


@pytest.fixture
def port(tmp_path):
    """The port of an agent's /metrics."""
    chosen = free_port()
    settings = Settings(node="h100-03", source="simulated", spool_dir=tmp_path)
    running = daemon.build(settings, lambda: settings)
    end = serve(f"127.0.0.1:{chosen}", MetricsPage(running.sampler, running.spool))
    yield chosen
    end()
    running.spool.close()


def scrape(port):
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page,
    ):
        return page.status
    return None


def test_connections_are_few(port):
    """Those beyond are closed without an answer and without a thread; once others have ended, there
    is room again.
    """
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        until(lambda: threading.active_count() == before + MAX_CONNECTIONS)
        for _ in range(MAX_CONNECTIONS):
            with (
                contextlib.suppress(ConnectionError),
                socket.create_connection(("127.0.0.1", port), 30) as further,
            ):
                further.sendall(SCRAPE)
                assert further.recv(100) == b""
        assert threading.active_count() == before + MAX_CONNECTIONS
    until(lambda: scrape(port) == 200)


def answer_to(port, request):
    """The bytes that a request gets."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(partial(connection.recv, 65_536), b""))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: n\r\n\r\n", b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0\n\n", b"200 OK"),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 60_000 + b"\r\n\r\n", b"200 OK"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"501 Not Implemented"),
        (b"\r\n", b"501 Not Implemented"),
        (b"\xff\0 /metrics", b"501 Not Implemented"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a" * (MAX_HEAD_BYTES - 22), b"501 Not Implemented"),
    ],
)
def test_every_request_gets_a_status(port, request_, status):
    """The page for what asks for it, with its length; a head that is too long is no request."""
    head, _, body = answer_to(port, request_).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 " + status)
    assert f"Content-Length: {len(body)}".encode() in head
    assert (b"gpuledger_agent_info" in body) == (status == b"200 OK")


def test_a_page_is_compressed_where_that_is_accepted(port):
    """As Prometheus asks; the same text comes out."""
    asked = b"GET /metrics HTTP/1.1\r\naccept-encoding: deflate, gzip;q=1\r\n\r\n"
    head, _, body = answer_to(port, asked).partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert b"gpuledger_agent_info" in gzip.decompress(body)


def test_a_request_as_a_whole_has_a_deadline(port, monkeypatch):
    """One that arrives a byte now and then is cut off; its place is free again."""
    monkeypatch.setattr(exposition, "DEADLINE_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        with pytest.raises(ConnectionError):
            drip_bytes(connection, b"y")
    assert scrape(port) == 200

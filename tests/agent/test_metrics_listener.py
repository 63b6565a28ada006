"""Anybody on a node may ask its agent for /metrics: that takes none of what the agent needs for
itself.
"""

import contextlib
import socket
import threading
import urllib.request

import pytest

from fakes.hostile_pages import drip_bytes
from fakes.ports import free_port
from fakes.replicas import until
from gpuledger_agent import daemon, exposition
from gpuledger_agent.exposition import MAX_CONNECTIONS, AgentCollector, serve
from gpuledger_agent.settings import Settings

SCRAPE = b"GET /metrics HTTP/1.0\r\n\r\n"


@pytest.fixture
def port(tmp_path):
    """The port of an agent's /metrics."""
    chosen = free_port()
    settings = Settings(node="h100-03", source="simulated", spool_dir=tmp_path)
    running = daemon.build(settings, lambda: settings)
    end = serve(f"127.0.0.1:{chosen}", AgentCollector(running.sampler, running.spool))
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


def test_a_request_as_a_whole_has_a_deadline(port, monkeypatch):
    """One that arrives a byte now and then is cut off; its place is free again."""
    monkeypatch.setattr(exposition, "DEADLINE_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        with pytest.raises(ConnectionError):
            drip_bytes(connection, b"y")
    assert scrape(port) == 200

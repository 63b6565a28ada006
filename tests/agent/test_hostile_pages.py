"""Whoever owns the port of an exporter or a server writes the page: no page holds or fills an
agent.
"""

import http.client
import socket

import pytest

from fakes import hostile_pages as pages
from fakes.agents import agent
from fakes.hostile_pages import hostile
from fakes.sink import sink
from gpuledger_agent.daemon import LAST_SEND_S
from gpuledger_agent.push import Http
from gpuledger_agent.queue import QueueFailed, report, send
from gpuledger_agent.serving import fetch_page
from gpuledger_common import http_exchange
from gpuledger_common.http_exchange import BoundedConnection, get_page
from gpuledger_common.profiles import fetch as exporter
from gpuledger_common.profiles.fetch import MAX_PAGE_BYTES, TIMEOUT_S, fetch
from gpuledger_common.readings import SourceUnavailable

__all__ = ["agent"]

SLOW = (pages.drip, pages.drip_headers, pages.say_continue, pages.say_nothing)


@pytest.mark.parametrize("respond", SLOW)
def test_an_exchange_as_a_whole_has_a_deadline(respond):
    """Each byte comes in time, the answer never: what is left of the deadline is all that a read
    may wait.
    """
    with (
        hostile(respond) as url,
        pytest.raises(TimeoutError, match=r"no complete answer within 0\.4 s"),
    ):
        get_page(url, timeout_s=0.4, max_bytes=10_000)


def test_an_answer_that_is_always_a_little_ahead_has_the_deadline_too():
    """No read waits, so no timeout of a socket ends it: the clock does."""
    ticks = iter(range(1_000))
    with hostile(pages.never_end) as url, pytest.raises(TimeoutError):
        get_page(url, timeout_s=20, max_bytes=2**40, clock=lambda: float(next(ticks)))


def test_the_names_are_resolved_within_the_deadline(monkeypatch):
    """A name server that does not answer holds a thread of its own, not the caller."""
    resolve = socket.getaddrinfo
    hang = pages.threading.Event()

    def getaddrinfo(host, *arguments, flags=0, **options):
        if not flags:
            hang.wait(pages.END_S)
        return resolve(host, *arguments, flags=flags, **options)

    monkeypatch.setattr(http_exchange.socket, "getaddrinfo", getaddrinfo)
    try:
        with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
            get_page("http://exporter.example:9400/metrics", timeout_s=0.2, max_bytes=10)
    finally:
        hang.set()


@pytest.mark.parametrize("respond", [pages.never_end, pages.never_end_chunked])
def test_an_answer_has_a_size(respond):
    """A sentence, and not the first part of a page as if it were the page."""
    with (
        hostile(respond) as url,
        pytest.raises(OSError, match="the answer is larger than 100000 bytes"),
    ):
        get_page(url, timeout_s=60, max_bytes=100_000)


def test_a_compressed_answer_is_not_taken():
    """Nothing inflates: none was asked for."""
    with (
        hostile(pages.inflate) as url,
        pytest.raises(http.client.HTTPException, match=r"'gzip'.* not asked for"),
    ):
        get_page(url, timeout_s=60, max_bytes=10**9)


def test_a_redirection_is_not_followed():
    """The other address, perhaps one that only this node can reach, is never asked."""
    elsewhere = []
    with (
        hostile(pages.send(b"a 1\n"), elsewhere) as other,
        hostile(pages.redirect(f"{other}/metrics")) as url,
        pytest.raises(
            ValueError,
            match=rf"HTTP status 302: it redirects to {other}/metrics, which is not followed",
        ),
    ):
        get_page(url, timeout_s=60, max_bytes=10_000)
    assert elsewhere == []


def test_a_connection_is_used_again_and_its_deadline_begins_anew():
    """Each exchange has the whole deadline; one that failed leaves a connection that opens again."""
    now, asked = [0.0], []

    def respond(connection):
        for _ in range(2):
            pages.send(b"a 1\n")(connection)
            asked.append(connection.recv(4096))

    with hostile(respond, asked) as url:
        connection = BoundedConnection(url, timeout_s=60, max_bytes=10**6, clock=lambda: now[0])
        bodies = []
        for _ in range(2):
            bodies.append(connection.exchange("GET", "/metrics").body)
            now[0] += 50
        connection.close()
    assert bodies == [b"a 1\n"] * 2
    assert len([request for request in asked if request]) == 2


@pytest.mark.parametrize("respond", SLOW)
def test_the_exporters_page_has_a_deadline(respond, monkeypatch):
    """The source is unavailable, as it is where nothing answers."""
    monkeypatch.setattr(exporter, "TIMEOUT_S", 0.3)
    with (
        hostile(respond) as url,
        pytest.raises(SourceUnavailable, match=r"no answer \(no complete answer within"),
    ):
        fetch(url)


def test_a_page_that_is_too_large_is_none():
    """Its first half would bill half of the node."""
    with (
        hostile(pages.never_end) as url,
        pytest.raises(SourceUnavailable, match=f"larger than {MAX_PAGE_BYTES}"),
    ):
        fetch(url)


def test_a_saved_page_is_bounded_and_a_pipe_does_not_block(tmp_path):
    """As `--target FILE` and `profiles check` read it."""
    large = tmp_path / "large.prom"
    with large.open("wb") as file:
        file.truncate(MAX_PAGE_BYTES + 1)
    pages_of = {"/dev/zero": "not a regular file", str(large): "larger than"}
    for path, reason in pages_of.items():
        with pytest.raises(SourceUnavailable, match=f"cannot be read .{reason}"):
            fetch(path)


@pytest.mark.parametrize("respond", SLOW)
def test_a_collector_that_drips_does_not_hold_the_push(respond):
    """The reply has no status, so the batch stays in the spool."""
    with hostile(respond) as url:
        reply = Http(url, timeout_s=0.3).post(b"", 0)
    assert reply.status is None
    assert "no complete answer within 0.3 s" in reply.error


def test_the_queue_is_sent_to_no_other_address(tmp_path):
    """A redirection would carry the token away."""
    token, elsewhere = tmp_path / "token", []
    token.write_text("gpl_secret")
    with hostile(pages.send(b"{}"), elsewhere) as other, hostile(pages.redirect(other)) as url:
        with pytest.raises(QueueFailed, match="HTTP status 302"):
            send(report("slurm", 0.0, []), url, token)
        with hostile(pages.send(b'{"status": "committed"}')) as good:
            assert send(report("slurm", 0.0, []), good, token) == "committed"
    assert elsewhere == []


def test_the_page_of_a_server_is_bounded_by_the_same_code():
    """Inference servers are asked by the same function as exporters."""
    with (
        hostile(pages.inflate) as url,
        pytest.raises(http.client.HTTPException, match="not asked for"),
    ):
        fetch_page(url)


@pytest.mark.slow
@pytest.mark.parametrize("respond", [pages.drip, pages.drip_headers])
def test_an_agent_before_a_dripping_page_sends_heartbeats_and_stops(agent, respond):
    """The node is seen, the heartbeat says why there are no GPUs, and SIGTERM is obeyed."""
    asked = []
    with hostile(respond, asked) as url, sink() as target:
        running = agent(target.url, source="exporter", target=url)
        # The first page is over as soon as a second one is asked for; an agent without a deadline
        # stays to its end.
        running.wait_for(lambda: len(asked) >= 2)
        assert "no complete answer within 5 s" in running.log.read_text()
        running.wait_for(lambda: len(target.batches) >= 2, TIMEOUT_S * 30)
        running.process.terminate()
        assert running.process.wait(TIMEOUT_S + LAST_SEND_S + 60) == 0


@pytest.mark.slow
def test_an_agent_before_a_page_of_blanks_and_of_too_many_lines_stops(agent):
    """One line of blanks took a quadratic pattern for hours; a million samples are refused in a
    sentence.
    """
    body = b"a" + b" " * 60_000 + b"\n" + b"a 1\n" * 1_000_000
    with hostile(pages.send(body)) as url, sink() as target:
        running = agent(target.url, source="exporter", target=url)
        running.wait_for(lambda: target.batches, 300)
        assert "the page has more than 50000 samples" in running.log.read_text()
        running.process.terminate()
        assert running.process.wait(300) == 0

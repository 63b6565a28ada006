"""Whoever receives messages, or answers what the collector asks, keeps no job waiting: each
exchange has a deadline.
"""

import ssl

import pytest

from fakes import hostile_pages as pages
from fakes.hostile_pages import hostile
from fakes.mail import message
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.ingest.remote_write import prometheus_api
from gpuledger_collector.ingest.remote_write.prometheus_api import NoAnswer, PrometheusApi, TooLarge
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction
from gpuledger_collector.notifications.reclaim import KubernetesBackend, NotReclaimed
from gpuledger_collector.notifications.smtp import SmtpTransport
from gpuledger_collector.notifications.transport import DeliveryUnknown, NotAccepted
from gpuledger_collector.notifications.webhooks import WebhookTransport

NEVER_ANSWER = (pages.drip_headers, pages.say_continue, pages.say_nothing)
WAIT_S = 0.5


def greet(connection):
    """A mail server that greets a byte at a time."""
    connection.sendall(b"220-")
    pages.drip_bytes(connection, b"x")


def refuse(connection):
    """The head of an answer, and a body without end."""
    connection.sendall(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Encoding: gzip\r\n\r\n")
    for _ in range(pages.END_BLOCKS):
        connection.sendall(b"x" * 60_000)
    raise pages.CallerStayed


def hook(url):
    return WebhookTransport("webhook", {"ops": f"{url}/x"}, timeout_s=WAIT_S)


@pytest.mark.parametrize("respond", NEVER_ANSWER)
def test_a_receiver_that_drips_keeps_no_other_message_waiting(respond):
    """Handed over and unconfirmed, after one deadline for the whole exchange."""
    handed = []
    with (
        hostile(respond) as url,
        pytest.raises(DeliveryUnknown, match=r"no complete answer within 0\.5 s"),
    ):
        hook(url).deliver(message(recipient="webhook:ops"), lambda: handed.append(1))
    assert handed == [1]


@pytest.mark.parametrize(
    "respond", [pages.drip, pages.never_end, pages.never_end_chunked, pages.inflate]
)
def test_the_status_of_a_receiver_counts_whatever_its_body_is(respond):
    """It has accepted the message: nothing of its body is kept, inflated or waited for beyond the
    deadline.
    """
    with hostile(respond) as url:
        transport = WebhookTransport("webhook", {"ops": f"{url}/x"}, timeout_s=600)
        transport.deliver(message(recipient="webhook:ops"), lambda: None)


def test_a_receiver_that_asks_to_wait_is_heard():
    """Also in front of a body without end."""
    with hostile(refuse) as url, pytest.raises(NotAccepted, match="answered 503") as caught:
        hook(url).deliver(message(recipient="webhook:ops"), lambda: None)
    assert caught.value.wait_s == 7


def test_a_redirect_of_a_receiver_is_not_followed():
    """It answered with another status than 2xx."""
    elsewhere = []
    with hostile(pages.send(b""), elsewhere) as other, hostile(pages.redirect(other)) as url:
        with pytest.raises(NotAccepted, match="answered 302"):
            hook(url).deliver(message(recipient="webhook:ops"), lambda: None)
        assert elsewhere == []


def test_a_receiver_that_never_connects_has_a_deadline():
    """A listener that speaks no TLS: the handshake has the deadline, too."""
    with hostile(pages.say_nothing) as url:
        addresses = {"ops": url.replace("http:", "https:")}
        transport = WebhookTransport(
            "webhook", addresses, timeout_s=WAIT_S, private=frozenset(addresses)
        )
        with pytest.raises(NotAccepted) as caught:
            transport.deliver(message(recipient="webhook:ops"), lambda: pytest.fail("handed over"))
    assert caught.value.unreachable


@pytest.mark.parametrize("respond", [*NEVER_ANSWER, pages.drip, pages.never_end])
def test_an_api_server_that_drips_is_left(respond):
    """The job of reclaiming goes on with the next action."""
    action = ReclaimAction(
        0, "k", 0, "evict", {"namespace": "n", "pod": "p", "uid": "u"}, "t", "shown", 0, 0
    )
    with hostile(respond) as url, pytest.raises(NotReclaimed, match="gave no answer"):
        KubernetesBackend(url, lambda: "t", timeout_s=WAIT_S).is_gone(action)


@pytest.mark.parametrize("respond", [*NEVER_ANSWER, pages.drip])
def test_a_prometheus_that_drips_is_left(respond, monkeypatch):
    """`start` says that it gives no answer; the first bytes of one are no answer."""
    monkeypatch.setattr(prometheus_api, "TIMEOUT_S", WAIT_S)
    with hostile(respond) as url, pytest.raises(NoAnswer, match="gives no answer"):
        PrometheusApi(url).series("up", Period(0, 1000))


def test_a_prometheus_that_never_ends_is_asked_for_less():
    """Beyond the bound of an answer."""
    with hostile(pages.never_end) as url, pytest.raises(TooLarge, match="more than 8 MiB"):
        PrometheusApi(url, context=ssl.create_default_context()).series("up", Period(0, 1000))


def test_a_mail_server_that_drips_is_left():
    """Before the dot: nothing was sent, and the mail is tried again."""
    with hostile(greet, speaks_first=True) as url, pytest.raises(NotAccepted) as caught:
        SmtpTransport(
            "127.0.0.1", int(url.rpartition(":")[2]), "ledger@example.com", "none", session_s=WAIT_S
        ).deliver(message(), lambda: pytest.fail("handed over"))
    assert caught.value.unreachable

"""The sender against a real mail server: every message arrives once, whatever ends the sender."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fakes.mail import PLAIN, Inbox, certificate, mail_server, message
from fakes.ports import free_port
from gpuledger_collector.notifications.folder import MailFolder
from gpuledger_collector.notifications.sender import MAX_ATTEMPTS, Sender
from gpuledger_collector.notifications.smtp import SmtpTransport
from gpuledger_collector.notifications.webhooks import WebhookTransport
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications import outbox
from gpuledger_collector.storage.notifications.outbox import Outbox

pytestmark = pytest.mark.slow

FROM = "ledger@example.com"
STEPS = (
    "claimed",
    "composed",
    "connected",
    "sender_named",
    "recipient_named",
    "text_sent",
    "dot_sent",
    "taken",
    "recorded",
)
DIES = """
import os, signal, sys
from gpuledger_collector.notifications.sender import Sender
from gpuledger_collector.notifications.smtp import SmtpTransport
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications.outbox import Outbox
dsn, port, last = sys.argv[1:]
def on_step(name):
    if name == last:
        os.kill(os.getpid(), signal.SIGKILL)
Sender(Outbox(Database(dsn)),
       {"mail": SmtpTransport("127.0.0.1", int(port), "ledger@example.com", "none")},
       lambda: 10**12, on_step=on_step).send_due()
"""


@pytest.fixture
def box(dsn) -> Outbox:
    """The outbox of the test's database."""
    return Outbox(Database(dsn))


def put(connect, *messages) -> None:
    with connect() as connection:
        for one in messages:
            outbox.insert(connection, one)


def standing(connect) -> list[tuple[str, int]]:
    with connect() as connection:
        return [(one.state, one.attempts) for one in outbox.list_messages(connection)]


def sender(box: Outbox, port: int, now_ms: int = 10**12, **settings) -> Sender:
    resend = settings.pop("resend", False)
    smtp = SmtpTransport(
        "127.0.0.1", port, FROM, **{"security": "none", "timeout_s": 5.0, **settings}
    )
    return Sender(box, {"mail": smtp}, lambda: now_ms, resend)


def killed_at(step: str, dsn: str, port: int) -> None:
    """Runs a sender in a process of its own that SIGKILL ends when it reaches the step."""
    done = subprocess.run(
        [sys.executable, "-c", DIES, dsn, str(port), step], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("step", STEPS)
def test_a_sender_killed_at_any_step_sends_exactly_one_mail(step, dsn, connect, box) -> None:
    """SIGKILL at the step, then a new sender, twice: the server took one mail."""
    inbox = Inbox()
    put(connect, message())
    with mail_server(inbox) as port:
        killed_at(step, dsn, port)
        if step in ("dot_sent", "taken", "recorded"):
            inbox.wait(1)
        for _ in range(2):
            sender(box, port).send_due()
        inbox.wait(1)
    assert len(inbox.mails) == 1
    assert standing(connect)[0][0] == ("unconfirmed" if step in ("dot_sent", "taken") else "sent")


@pytest.mark.parametrize(
    ("resend", "arrived", "state"), [(False, 0, "unconfirmed"), (True, 1, "sent")]
)
def test_the_window_that_is_left_is_seen_and_can_be_turned_round(
    resend, arrived, state, dsn, connect, box
) -> None:
    """Killed between the record and the dot, microseconds apart: reported as unconfirmed, or sent
    again if so set.
    """
    inbox = Inbox()
    put(connect, message())
    with mail_server(inbox) as port:
        killed_at("handing_over", dsn, port)
        sender(box, port, resend=resend).send_due()
        inbox.wait(arrived)
    assert len(inbox.mails) == arrived
    assert standing(connect)[0][0] == state


def test_a_repeat_bears_the_same_message_id(dsn, connect, box) -> None:
    """With mail_resend_unconfirmed a mail may come twice, and mailboxes that look at the Message-ID
    show it once.
    """
    inbox = Inbox()
    put(connect, message())
    with mail_server(inbox) as port:
        killed_at("taken", dsn, port)
        sender(box, port, resend=True).send_due()
        inbox.wait(2)
    first, second = inbox.mails
    assert first["Message-ID"] == second["Message-ID"] == f"<{message().digest}@example.com>"
    assert bytes(first) == bytes(second)


def test_replicas_at_once_send_each_message_once(connect, box) -> None:
    """Four senders over thirty messages: thirty mails, all different."""
    inbox = Inbox()
    put(connect, *(message(f"event-{number}") for number in range(30)))
    with mail_server(inbox) as port:
        threads = [threading.Thread(target=sender(box, port).send_due) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        inbox.wait(30)
    assert len(inbox.mails) == len({mail["Message-ID"] for mail in inbox.mails}) == 30


def test_the_same_event_is_put_once(connect) -> None:
    """A key is one message for each recipient, also when its text has changed."""
    with connect() as connection:
        assert outbox.insert(connection, message())
        assert not outbox.insert(connection, message())
        assert outbox.insert(connection, message(recipient="other@example.com"))


def test_a_server_that_is_down_delays_and_loses_nothing(connect, box) -> None:
    """Down: tried again with growing waits, the rest is left alone meanwhile.

    Up: everything arrives once.
    """
    inbox = Inbox()
    port = free_port()
    put(connect, message("a"), message("b"))
    assert (
        str(sender(box, port, 0).send_due()) == "0 sent, 1 to be retried, 0 unconfirmed, 0 given up"
    )
    assert sender(box, port, 59_999).send_due().retried == 1  # the other one
    with mail_server(inbox, port):
        assert sender(box, port, 59_999).send_due().sent == 0
        assert sender(box, port, 10**9).send_due().sent == 2
        inbox.wait(2)
    assert len(inbox.mails) == 2


def test_a_message_is_given_up_after_many_attempts(connect, box) -> None:
    """A server that is away for a day ends in a dead message with its reason, shown by the listing."""
    put(connect, message())
    port = free_port()
    now_ms = 0
    for _ in range(MAX_ATTEMPTS):
        sender(box, port, now_ms).send_due()
        now_ms += 3_600_000
    assert standing(connect) == [("dead", MAX_ATTEMPTS)]
    with connect() as connection:
        assert "refused" in outbox.list_messages(connection, ["dead"])[0].error


def test_a_servers_answers_are_told_apart(connect, box) -> None:
    """4xx is tried again, 5xx about the mail is the end, and no answer to a whole mail is
    unconfirmed.
    """
    inbox = Inbox()
    with mail_server(inbox) as port:
        inbox.rcpt_replies = ["451 try later", "250 OK", "550 no such user"]
        put(connect, message("a"))
        assert sender(box, port, 0).send_due().retried == 1
        assert sender(box, port, 10**6).send_due().sent == 1
        put(connect, message("b"))
        assert sender(box, port).send_due().dead == 1
        inbox.data_replies = ["452 full", "250 taken", "drop"]
        put(connect, message("c"))
        assert sender(box, port, 0).send_due().retried == 1
        assert sender(box, port, 10**6).send_due().sent == 1
        put(connect, message("d"))
        assert sender(box, port).send_due().unconfirmed == 1
        assert sender(box, port).send_due().sent == 0
        inbox.wait(3)
    assert len(inbox.mails) == 3


def test_a_mail_arrives_as_it_was_written(connect, box) -> None:
    """Dots at line ends, umlauts, HTML and attachments survive the way; machines do not answer it."""
    inbox = Inbox()
    put(connect, message(at_ms=1_759_276_800_000))
    with mail_server(inbox) as port:
        sender(box, port, 2 * 10**12).send_due()
        inbox.wait(1)
    (mail,) = inbox.mails
    assert mail.get_body(("plain",)).get_content().splitlines() == PLAIN.text.splitlines()
    assert mail.get_body(("html",)).get_content().strip() == PLAIN.html
    assert [part.get_filename() for part in mail.iter_attachments()] == ["a.csv"]
    assert (mail["Subject"], mail["To"], mail["From"]) == (
        PLAIN.subject,
        "lead@example.com",
        f"GPU Ledger <{FROM}>",
    )
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Date"] == "Wed, 01 Oct 2025 00:00:00 -0000"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_tls_and_login(security, connect, box, tmp_path) -> None:
    """The password goes over TLS with a certificate that is checked; a wrong one sends nothing."""
    inbox = Inbox()
    context, trusted = certificate(tmp_path)
    options = {"authenticator": inbox.authenticate, "auth_required": True}
    if security == "starttls":
        options |= {"tls_context": context, "require_starttls": True}
    else:
        options |= {"ssl_context": context, "auth_require_tls": False}
    put(connect, message())
    with mail_server(inbox, **options) as port:
        login = {"security": security, "user": "ledger", "password": lambda: "s3cret"}
        # Nobody vouches for the certificate.
        assert sender(box, port, 0, **login).send_due().retried == 1
        assert inbox.logins == []
        known = {**login, "ca_file": str(trusted)}
        assert (
            sender(box, port, 10**7, **{**known, "password": lambda: "wrong"}).send_due().retried
            == 1
        )
        with connect() as connection:
            assert outbox.list_messages(connection)[0].error.endswith(
                "the mail server refuses our login (535)"
            )
        assert sender(box, port, 10**8, **known).send_due().sent == 1
        inbox.wait(1)
    assert len(inbox.mails) == 1


def test_no_tls_offered_sends_nothing(connect, box) -> None:
    """A server that takes STARTTLS away gets neither password nor mail."""
    inbox = Inbox()
    put(connect, message())
    with mail_server(inbox) as port:
        assert sender(box, port, security="starttls").send_due().retried == 1
    assert inbox.mails == []


def test_the_folder_holds_each_mail_once(connect, box, tmp_path) -> None:
    """A sender that ends after writing and before recording writes the same file again."""
    put(connect, message())

    def die(step: str) -> None:
        if step == "taken":
            raise KeyboardInterrupt

    way = {"mail": MailFolder(tmp_path / "mails", FROM)}
    with pytest.raises(KeyboardInterrupt):
        Sender(box, way, lambda: 0, on_step=die).send_due()
    (first,) = (tmp_path / "mails").iterdir()
    written = first.read_bytes()
    assert Sender(box, way, lambda: 0).send_due().sent == 1
    assert [path.read_bytes() for path in (tmp_path / "mails").iterdir()] == [written]


def test_hooks_post_once_to_configured_addresses_only(connect, box) -> None:
    """Slack's form, a webhook's key, and a hook that nobody configured; redirects lead nowhere."""
    posts: list[tuple[str, str | None, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, self.headers["Idempotency-Key"], body))
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        base = f"http://127.0.0.1:{server.server_address[1]}"
        addresses = {"ops": f"{base}/chat", "erp": f"{base}/erp?x=1", "old": f"{base}/moved"}
        names = ("slack:ops", "teams:ops", "webhook:erp", "webhook:old", "webhook:nowhere")
        put(connect, *(message(recipient=name) for name in names))
        ways = {
            channel: WebhookTransport(channel, addresses)
            for channel in ("slack", "teams", "webhook")
        }
        done = Sender(box, ways, lambda: 0).send_due()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert str(done) == "3 sent, 1 to be retried, 0 unconfirmed, 1 given up"
    assert [path for path, _, _ in posts] == ["/chat", "/chat", "/erp?x=1", "/moved"]
    assert posts[2][1] == message(recipient="webhook:erp").digest
    assert b'"text": "*GPUs of vision*' in posts[0][2]
    assert b'"contentType": "application/vnd.microsoft.card.adaptive"' in posts[1][2]


def test_messages_without_a_way_wait(connect, box) -> None:
    """Where no way to a chat is configured its messages wait, and do not stand in the way of mails."""
    inbox = Inbox()
    put(connect, message(recipient="slack:ops"), message())
    with mail_server(inbox) as port:
        assert sender(box, port).send_due().sent == 1
    assert sorted(standing(connect)) == [("sent", 1), ("waiting", 0)]

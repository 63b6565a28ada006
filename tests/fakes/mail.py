"""A mail server on loopback that keeps what it took, and a message to send to it."""

from __future__ import annotations

import email.message
import email.policy
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from fakes.ports import free_port
from gpuledger_collector.insight.notifications.messages import Content, Message

PLAIN = Content(
    "GPUs of vision", "Text\n.a line that begins with a dot\nä\n", "<p>Text</p>", {"a.csv": "a,b\n"}
)


class Inbox:
    """An aiosmtpd handler: every mail taken, and replies that a test scripts for recipients and for
    data.
    """

    def __init__(self) -> None:
        self.mails: list[email.message.EmailMessage] = []
        self.rcpt_replies: list[str] = []
        self.data_replies: list[str] = []
        self.logins: list[bytes] = []

    async def handle_RCPT(
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        """Takes every recipient, unless a reply is scripted."""
        reply = self.rcpt_replies.pop(0) if self.rcpt_replies else "250 OK"
        if reply.startswith("250"):
            envelope.rcpt_tos.append(address)
        return reply

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:
        """Keeps the mail; `drop` keeps it and ends the connection without an answer."""
        reply = self.data_replies.pop(0) if self.data_replies else "250 taken"
        if reply.startswith("250") or reply == "drop":
            self.mails.append(
                email.message_from_bytes(envelope.content, policy=email.policy.default)
            )
        if reply == "drop":
            server.transport.abort()
        return reply

    def authenticate(
        self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any
    ) -> AuthResult:
        """Knows one user."""
        assert isinstance(data, LoginPassword)
        self.logins.append(data.login)
        return AuthResult(
            success=(data.login, data.password) == (b"ledger", b"s3cret"), handled=False
        )

    def wait(self, count: int, seconds: float = 60) -> None:
        """Waits until this many mails came, then a little for one too many."""
        deadline = time.monotonic() + seconds
        while len(self.mails) < count:
            assert time.monotonic() < deadline, f"{len(self.mails)} mails of {count} came"
            time.sleep(0.02)
        time.sleep(0.15)


@contextmanager
def mail_server(inbox: Inbox, port: int = 0, **options: Any) -> Iterator[int]:
    """Serves on loopback while the block runs; the port."""
    controller = Controller(inbox, hostname="127.0.0.1", port=port or free_port(), **options)
    controller.start()
    try:
        yield int(controller.port)
    finally:
        controller.stop()


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context for 127.0.0.1, and the certificate that a client must trust."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(cert),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


def message(key: str = "event", recipient: str = "lead@example.com", at_ms: int = 0) -> Message:
    """A message that is due at once."""
    return Message(key, "test", recipient, PLAIN, at_ms, at_ms, "thread")

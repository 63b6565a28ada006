"""Mail over SMTP (RFC 5321), with STARTTLS or TLS, and a login.

The whole text is sent before the message counts as handed over; only the final dot completes it. A
sender that dies before the dot has sent no mail, one that dies after it has sent one. Only in the
microseconds between `hand_over` and the dot can a mail be lost, and never doubled.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gpuledger_collector.insight.notifications.messages import Message
from gpuledger_collector.notifications.mime import compose
from gpuledger_collector.notifications.transport import (
    DeliveryUnknown,
    NotAccepted,
    OnStep,
    no_step,
)

STEP_SECONDS = 30.0
"""For each answer of the server."""
SESSION_SECONDS = 120.0
"""For opening a session, and for sending a mail in it."""
_LEADING_DOT = re.compile(rb"(?m)^\.")


@dataclass(frozen=True)
class SmtpTransport:
    """A mail server.

    `security` is starttls, tls or none; `password` reads the secret for each login.
    """

    host: str
    port: int
    sender: str
    security: str = "starttls"
    user: str = ""
    password: Callable[[], str] = str
    ca_file: str | None = None
    timeout_s: float = STEP_SECONDS
    session_s: float = SESSION_SECONDS
    repeatable: bool = field(default=False, kw_only=True)

    def deliver(
        self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step
    ) -> None:
        """Send one mail. Raises NotAccepted or DeliveryUnknown."""
        try:
            # Before connecting: a message that cannot be written is given up without a connection.
            text = bytes(compose(message, self.sender))
        except ValueError as error:
            raise NotAccepted(str(error), permanent=True) from error
        on_step("composed")
        with self._session() as session:
            on_step("connected")
            try:
                # A refused sender is our configuration, which somebody can fix: the mail is kept. A
                # refused recipient is final.
                _expect(session.mail(self.sender), 250, is_about_us=True)
                on_step("sender_named")
                _expect(session.rcpt(message.recipient), 250, 251)
                on_step("recipient_named")
                _expect(session.docmd("data"), 354)
                # Not `session.data`: it sends the text and the final dot at once, and `hand_over`
                # must come between. A leading dot is doubled as RFC 5321 §4.5.2 demands.
                session.send(_LEADING_DOT.sub(b"..", text.rstrip(b"\r\n")) + b"\r\n")
            except (smtplib.SMTPException, OSError) as error:
                raise NotAccepted(_sentence(error), unreachable=True) from error
            on_step("text_sent")
            # Committed to the database before the dot: whoever finds the mark knows that the mail
            # may have been sent.
            hand_over()
            on_step("handing_over")
            self._finish(session, on_step)

    def _finish(self, session: smtplib.SMTP, on_step: OnStep) -> None:
        try:
            session.send(b".\r\n")
            on_step("dot_sent")
            reply = session.getreply()
        except (smtplib.SMTPException, OSError) as error:
            raise DeliveryUnknown(
                f"no answer of the mail server to a complete mail ({_sentence(error)})"
            ) from error
        on_step("taken")
        _expect(reply, 250)

    @contextmanager
    def _session(self) -> Iterator[smtplib.SMTP]:
        try:
            session = self._open()
        except (smtplib.SMTPException, OSError) as error:
            raise NotAccepted(
                f"{self.host}:{self.port}: {_sentence(error)}", unreachable=True
            ) from error
        try:
            with _cut_off_after(self.session_s, session):
                yield session
        finally:
            # Closing without QUIT: a session that ends before the dot has sent nothing, and the
            # reply to QUIT matters to nobody.
            with suppress(smtplib.SMTPException, OSError):
                session.close()

    def _open(self) -> smtplib.SMTP:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.security == "tls":
            session: smtplib.SMTP = smtplib.SMTP_SSL(timeout=self.timeout_s, context=context)
        else:
            session = smtplib.SMTP(timeout=self.timeout_s)
        # Not by the constructor: before it returns there is no session that could be cut off.
        session._host = self.host  # type: ignore[attr-defined]  # noqa: SLF001 - for the name in its certificate
        try:
            with _cut_off_after(self.session_s, session):
                _require_greeting(session.connect(self.host, self.port))
                if self.security == "starttls":
                    session.starttls(context=context)
                if self.user:
                    session.login(self.user, self.password())
                session.ehlo_or_helo_if_needed()
        # Also on cancellation: the caller has no session yet that it could close.
        except BaseException:
            session.close()
            raise
        return session


def _require_greeting(reply: tuple[int, bytes]) -> None:
    code, answer = reply
    if code != 220:
        raise smtplib.SMTPConnectError(code, answer)


@contextmanager
def _cut_off_after(seconds: float, session: smtplib.SMTP) -> Iterator[None]:
    """Cut a session off that takes longer: smtplib waits anew for each byte, and a server may send
    one now and then.
    """
    is_over = threading.Event()

    def watch() -> None:
        is_waiting = not is_over.wait(seconds)
        while is_waiting:
            with suppress(OSError):
                if session.sock is not None:
                    socket.socket.shutdown(session.sock, socket.SHUT_RDWR)
            is_waiting = not is_over.wait(1)

    watcher = threading.Thread(target=watch, name="mail-deadline", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()


def _expect(reply: tuple[int, bytes], *wanted: int, is_about_us: bool = False) -> None:
    """Raise NotAccepted for another code: 5xx is permanent, unless it is about us, which settings
    can fix.
    """
    code, answer = reply
    if code not in wanted:
        text = answer.decode("ascii", "replace").replace("\n", " ")[:200]
        unreachable = is_about_us or code in {421, -1}
        raise NotAccepted(
            f"the mail server answered {code} {text}",
            permanent=not unreachable and 500 <= code < 600,
            unreachable=unreachable,
        )


def _sentence(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"the mail server refuses our login ({error.smtp_code})"
    return (str(error) or type(error).__name__).partition("\n")[0][:200]

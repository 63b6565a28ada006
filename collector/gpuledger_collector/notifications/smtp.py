"""Mail over SMTP (RFC 5321), with STARTTLS or TLS, and a login.

The whole text is sent before the message counts as handed over; what completes it is the lone dot alone. So a sender
that dies before the dot left no mail, and one that dies after it left one: between `hand_over` and the dot lie a few
microseconds, and only in them can a mail be lost, never doubled.
"""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gpuledger_collector.notifications.mime import compose
from gpuledger_collector.notifications.transport import NotKnown, NotTaken, OnStep, no_step
from gpuledger_collector.storage.notifications.messages import Message

_LEADING_DOT = re.compile(rb"(?m)^\.")


@dataclass(frozen=True)
class Smtp:
    """A mail server. `security` is starttls, tls or none; `password` reads the secret anew for each login."""

    host: str
    port: int
    sender: str
    security: str = "starttls"
    user: str = ""
    password: Callable[[], str] = str
    ca_file: str | None = None
    timeout_s: float = 30.0
    repeatable: bool = field(default=False, kw_only=True)

    def deliver(self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step) -> None:
        """Send one mail. Raises NotTaken or NotKnown."""
        try:
            text = bytes(compose(message, self.sender))
        except ValueError as error:
            raise NotTaken(str(error), permanent=True) from error
        on_step("composed")
        with self._session() as session:
            on_step("connected")
            try:
                _expect(session.mail(self.sender), 250, about_us=True)
                on_step("sender_named")
                _expect(session.rcpt(message.recipient), 250, 251)
                on_step("recipient_named")
                _expect(session.docmd("data"), 354)
                session.send(_LEADING_DOT.sub(b"..", text.rstrip(b"\r\n")) + b"\r\n")
            except (smtplib.SMTPException, OSError) as error:
                raise NotTaken(_sentence(error), unreachable=True) from error
            on_step("text_sent")
            hand_over()
            on_step("handing_over")
            self._finish(session, on_step)

    def _finish(self, session: smtplib.SMTP, on_step: OnStep) -> None:
        try:
            session.send(b".\r\n")
            on_step("dot_sent")
            code, said = session.getreply()
        except (smtplib.SMTPException, OSError) as error:
            raise NotKnown(f"the mail server gave no answer to a whole mail ({_sentence(error)})") from error
        on_step("taken")
        _expect((code, said), 250)

    @contextmanager
    def _session(self) -> Iterator[smtplib.SMTP]:
        try:
            session = self._open()
        except (smtplib.SMTPException, OSError) as error:
            raise NotTaken(f"{self.host}:{self.port}: {_sentence(error)}", unreachable=True) from error
        try:
            yield session
        finally:
            with suppress(smtplib.SMTPException, OSError):
                session.close()

    def _open(self) -> smtplib.SMTP:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.security == "tls":
            session: smtplib.SMTP = smtplib.SMTP_SSL(self.host, self.port, timeout=self.timeout_s, context=context)
        else:
            session = smtplib.SMTP(self.host, self.port, timeout=self.timeout_s)
        try:
            if self.security == "starttls":
                session.starttls(context=context)
            if self.user:
                session.login(self.user, self.password())
            session.ehlo_or_helo_if_needed()
        except BaseException:
            session.close()
            raise
        return session


def _expect(reply: tuple[int, bytes], *wanted: int, about_us: bool = False) -> None:
    """A refusal of this mail with 5xx is permanent; one of ourselves can be cured in the settings."""
    code, said = reply
    if code not in wanted:
        text = said.decode("ascii", "replace").replace("\n", " ")[:200]
        away = about_us or code in {421, -1}
        raise NotTaken(
            f"the mail server said {code} {text}", permanent=not away and 500 <= code < 600, unreachable=away
        )


def _sentence(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"the mail server refuses our login ({error.smtp_code})"
    return (str(error) or type(error).__name__).partition("\n")[0][:200]

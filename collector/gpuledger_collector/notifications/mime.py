"""A message as RFC 5322 bytes; the same message always gives the same bytes."""

from __future__ import annotations

import email.policy
import email.utils
from email.message import EmailMessage

from gpuledger_collector.insight.notifications.messages import Message, digest_of, is_address
from gpuledger_common.escapes import escape_lines, escape_text

MAX_SUBJECT = 200
POLICY = email.policy.SMTP.clone(cte_type="7bit")


def one_line(text: str, longest: int = MAX_SUBJECT) -> str:
    """Text that is safe in a header: invisible characters are escaped, and long text ends in an
    ellipsis.
    """
    cleaned = " ".join(escape_text(text).split())
    return cleaned if len(cleaned) <= longest else cleaned[: longest - 1] + "…"


def message_id(digest: str, sender: str) -> str:
    """The Message-ID of a digest under the sender's domain."""
    return f"<{digest}@{sender.rpartition('@')[2]}>"


def compose(message: Message, sender: str) -> EmailMessage:
    """The mail with text, HTML and attachments.

    Raises ValueError when the recipient is not an address.
    """
    if not is_address(message.recipient):
        raise ValueError(f"{message.recipient!r} is not a mail address")
    mail = EmailMessage(policy=POLICY)
    mail["From"] = email.utils.formataddr(("GPU Ledger", sender))
    mail["To"] = message.recipient
    subject = one_line(message.content.subject)
    mail["Subject"] = subject
    mail["Date"] = email.utils.formatdate(message.made_ms // 1000)
    mail["Message-ID"] = message_id(message.digest, sender)
    if message.thread:
        mail["References"] = message_id(digest_of(message.thread, message.recipient), sender)
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(escape_lines(message.content.text), cte="quoted-printable")
    if message.content.html:
        mail.add_alternative(
            escape_lines(message.content.html), subtype="html", cte="quoted-printable"
        )
    for name, text in message.content.attachments.items():
        mail.add_attachment(
            escape_lines(text),
            subtype="csv" if name.endswith(".csv") else "plain",
            filename=one_line(name, 80),
        )
    _name_boundaries(mail, message.digest)
    if subject.isascii():
        # One line: some programs show a folded subject as an empty one. Encoded words keep the
        # limit that they need.
        mail.policy = POLICY.clone(max_line_length=MAX_SUBJECT + len("Subject: "))
    return mail


def _name_boundaries(mail: EmailMessage, digest: str) -> None:
    for at, part in enumerate(part for part in mail.walk() if part.is_multipart()):
        part.set_boundary(f"={digest}-{at}=")

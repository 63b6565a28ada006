"""Messages to people: content and recipient. Who writes a message needs no means to send it.

A message is stored in the transaction of the change of state that it reports, under a `key` that
names the change. The same key is stored once for each recipient: that is why a mail is sent once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_HOOK = re.compile(r"(slack|teams|webhook):[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a message: always plain text, HTML for clients that show it, and text files
    attached by name.

    For transports that show neither as they are: `page` leads to what it is about, `link`
    acknowledges it.
    """

    subject: str
    text: str
    html: str = ""
    attachments: Mapping[str, str] = field(default_factory=dict)
    link: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one recipient: an address, or `slack:NAME`, `teams:NAME` or `webhook:NAME` of
    a configured hook.

    Messages of one `thread` are shown as one conversation. An `urgent` message waits neither for
    the end of quiet hours nor for a digest.
    """

    key: str
    kind: str
    recipient: str
    content: Content
    made_ms: int
    not_before_ms: int
    thread: str = ""
    urgent: bool = False

    @property
    def digest(self) -> str:
        """Permanent identity of the message: part of its Message-ID, and the Idempotency-Key of a
        webhook.
        """
        return digest_of(self.key, self.recipient)


def digest_of(key: str, recipient: str) -> str:
    """Forty hexadecimal digits for an event and a recipient."""
    return hashlib.sha256(f"{key}\0{recipient}".encode()).hexdigest()[:40]


def is_address(text: str) -> bool:
    """Whether this is a plain ASCII mail address: no name, no brackets, nothing that could start a
    header.
    """
    return len(text) <= 254 and _ADDRESS.fullmatch(text) is not None


def is_recipient(text: str) -> bool:
    """Whether messages can be sent there: a mail address, `slack:NAME`, `teams:NAME` or
    `webhook:NAME`.
    """
    return is_address(text) or _HOOK.fullmatch(text) is not None

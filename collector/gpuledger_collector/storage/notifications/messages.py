"""Messages to people: what is to be said, to whom, and how far it is. Who writes them needs no way to send them.

A message is made in the transaction of the change of state that it tells of, under a `key` that names that change.
The same key to the same recipient a second time is no second message: that is what makes a mail be sent once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_HOOK = re.compile(r"(slack|webhook):[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True)
class Content:
    """What a message says: plain text always, HTML for those who show it, text files attached by name.

    `link`: where its reader says that it is known, for ways that show neither text nor HTML as they are.
    """

    subject: str
    text: str
    html: str = ""
    attachments: Mapping[str, str] = field(default_factory=dict)
    link: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one recipient: an address, `slack:NAME` or `webhook:NAME` of a configured hook.

    Messages of one `thread` are shown as one conversation. It is not sent before `not_before_ms`. What is `urgent`
    waits neither for the end of quiet hours nor for a digest.
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
        """Names this message for ever: part of its Message-ID, and the Idempotency-Key of a webhook."""
        return digest_of(self.key, self.recipient)


def digest_of(key: str, recipient: str) -> str:
    """Forty hexadecimal digits for an event and a recipient."""
    return hashlib.sha256(f"{key}\0{recipient}".encode()).hexdigest()[:40]


def is_address(text: str) -> bool:
    """Whether this is a plain mail address in ASCII: no name, no brackets, nothing that could begin a header."""
    return len(text) <= 254 and _ADDRESS.fullmatch(text) is not None


def is_recipient(text: str) -> bool:
    """Whether messages can be sent there: a mail address, `slack:NAME` or `webhook:NAME`."""
    return is_address(text) or _HOOK.fullmatch(text) is not None


class Claim(Protocol):
    """One message that nobody else can send while we hold it."""

    @property
    def message(self) -> Message: ...  # noqa: D102
    @property
    def attempts(self) -> int: ...  # noqa: D102
    @property
    def in_doubt(self) -> bool:
        """Whether an earlier sender ended between handing the message over and hearing that it was taken."""

    def hand_over(self) -> None:
        """Record, durably, that the next step completes the message. Raises when we lost the claim."""

    def sent(self, at_ms: int) -> None:
        """It was taken by the other side."""

    def again(self, not_before_ms: int, error: str) -> None:
        """It was certainly not taken: try again later."""

    def unconfirmed(self, error: str) -> None:
        """It was handed over, and nobody will know whether it was taken."""

    def dead(self, error: str) -> None:
        """It is given up."""
